"""Readers for the prompt files people have: one small file per format, registered in `FORMATS`.

A reader turns one file into `PromptInput`s and reports what it left out. Knows nothing of templates, models or runs.
"""

from driftscope.prompts.read import FORMATS, PromptFile, read_prompts

__all__ = ["FORMATS", "PromptFile", "read_prompts"]
