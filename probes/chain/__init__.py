"""Chains of drafts on a target's text: how they are made, and the rounds recorded from them.

`step` is one depth, `replay` starts a chain at every position of a finished text, `live` runs the real draft-verify loop
(`draft_loop`, `verification`), `rounds` records both. Knows no prompts, conditions or files.
"""
