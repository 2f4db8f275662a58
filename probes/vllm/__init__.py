"""The same record, taken inside a running vLLM engine, at its own settings.

`recorder` is the public interface, `v1` and `v2` hook into vLLM's two model runners, `worker` carries a recorder into every
worker process, `ranks` joins what they recorded, `engine` and `job` build an engine and run conditions through it. Nothing
here knows files or runs. Importing `worker` imports vLLM; `hooks`, `v1`, `v2`, `settings`, `engine` and `job` work with it.
"""
