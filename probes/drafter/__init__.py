"""The drafter's forward pass: `fusion` (target states -> input), `llama` (decoder layer), `model` (the whole drafter).

Knows neither caches, masks nor what is recorded: attention is given from outside (`probes.chain`, `training`).
One small file per decoder-layer family.
"""
