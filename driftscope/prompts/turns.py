"""MT-Bench / Spec-Bench question files: {"question_id", "category", "turns": ["...", ...]}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.prompts.line import Line
from probes.conditions import PromptInput

LATER_TURNS_NOTE = "only the first of several turns was read: the later ones need answers in between"


def matches(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("turns"), list)


def read(line: Line) -> tuple[PromptInput, tuple[str, ...]]:
    turns = line.item.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t for t in turns):
        raise line.bad("has no list of texts under `turns`")
    category = line.item.get("category")
    prompt = PromptInput(
        prompt_id=line.id_of("question_id", "id"),
        messages=({"role": "user", "content": turns[0]},),
        category=category if isinstance(category, str) else None,
    )
    return prompt, (LATER_TURNS_NOTE,) if len(turns) > 1 else ()
