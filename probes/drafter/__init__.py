"""The drafter's forward pass: `model` (the parts, and what an algorithm answers), `algorithms` (how a chain is drafted
and fed back), `layers` (how a decoder layer computes).

Knows neither caches, masks nor what is recorded: attention is given from outside (`probes.chain.step`, `training`).
"""
