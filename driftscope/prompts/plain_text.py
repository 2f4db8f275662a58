"""A text file: one user turn."""

from __future__ import annotations

from pathlib import Path

from driftscope.prompts.line import label
from probes.conditions import PromptInput
from probes.errors import InputError


def read(path: Path, text: str) -> PromptInput:
    if not text.strip():
        raise InputError("the file is empty", code="no_prompts", where=str(path), remedy="Write a prompt into it.")
    return PromptInput(prompt_id=label(path.stem), messages=({"role": "user", "content": text.strip()},))
