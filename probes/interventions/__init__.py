"""Interventions: one change to one thing, then the same chains again. `registry` lists them, `run` makes them.

`paths` patches one path inside a step; the others change a drafter (`wiring`, `vocabulary`, `context`), a text
(`template`), the target (`reference`) or the chain itself (`sensitivity`). Importing the registry imports no torch.
"""
