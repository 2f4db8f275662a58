"""From a plan to a run on disk: `run.measure` for driftscope's own engines, `vllm` inside vLLM's, `describe` for what
run.json says of models and machine. Progress goes to callables: no consoles here. Torch is imported only when called.
"""
