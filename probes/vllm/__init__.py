"""The same record, taken inside a running vLLM engine, at its own settings.

`recorder` is the public interface, `v1` and `v2` hook into vLLM's two model runners, `engine` and `job` build an engine and
run conditions through it. Nothing here knows files or runs. Only `v1`, `v2`, `settings`, `engine` and `job` import vLLM.
"""
