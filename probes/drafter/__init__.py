"""The drafter's forward pass: `fusion` (target states -> input), `llama`, `qwen3` (decoder layers), `model` (all); Triton
kernels beside `llama` for a CUDA device.

Knows neither caches, masks nor what is recorded: attention is given from outside (`probes.chain.step`, `training`).
One small file per decoder-layer family.
"""
