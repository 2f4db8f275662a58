"""Interventions: one change to one thing, then the same chains again. `registry` lists them, `run` walks texts with them.

A kind is a file: `changed_drafter` (`wiring`, `vocabulary`, `context`), `template`, `reference_target`, `engine_rounds`,
`chain_changes`, `path_patches`. Importing the registry imports no torch.
"""
