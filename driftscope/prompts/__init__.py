"""Readers for the prompt files people have: one small file per family of formats, registered in `formats.FORMATS`.

A reader turns one line into `PromptInput`s and says what it left out or changed; `redact` takes personal and secret
text out before anything else sees it. Knows nothing of templates, models or runs.
"""

from driftscope.prompts.formats import FORMATS, PROMPT_SUFFIXES
from driftscope.prompts.read import PromptFile, read_prompts
from driftscope.prompts.redact import redact_prompts, redact_text

__all__ = ["FORMATS", "PROMPT_SUFFIXES", "PromptFile", "read_prompts", "redact_prompts", "redact_text"]
