"""How fast a target is with and without drafters, with and without recording: vLLM engines beside each other.

`run` starts one process for each engine and asks them in turn, `worker` is such a process, `results` makes the numbers.
Only `worker` imports vLLM.
"""
