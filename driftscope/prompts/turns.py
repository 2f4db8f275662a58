"""MT-Bench, Spec-Bench and SPEED-Bench (JSON Lines or Parquet): {"question_id", "category", "turns": ["...", ...]}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.prompts.conversation import finished
from driftscope.prompts.line import Line, Reading, left_out
from probes.conditions import PromptInput

LATER_TURNS_NOTE = "only the first of several turns was read: the later ones need answers in between"
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
NOT_PREPARED = "SPEED-Bench's placeholder in place of the text: run the benchmark's own prepare script first"


def matches(item: Mapping[str, Any]) -> bool:
    turns = item.get("turns")
    return isinstance(turns, list) and all(isinstance(turn, str) for turn in turns)


def read(line: Line) -> Reading:
    turns = line.item.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t for t in turns):
        raise line.bad("has no list of texts under `turns`")
    if any(PLACEHOLDER in turn for turn in turns):
        return left_out(NOT_PREPARED)
    prompt = PromptInput(
        prompt_id=line.id_of("question_id", "id"),
        messages=({"role": "user", "content": turns[0]},),
        category=line.label_of("category"),
    )
    return finished(line, prompt, (LATER_TURNS_NOTE,) if len(turns) > 1 else ())
