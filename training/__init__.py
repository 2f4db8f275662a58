"""The recipe of the demo drafters: data by the target itself, both kinds trained side by side, evaluation, checkpoints.

Imports `probes` and torch only. Nothing in `driftscope` or `app` imports it, and no wheel carries it.
"""
