"""Which prompts of two conditions are the same one, and their sums side by side.

Knows no metric. A prompt is known by its id and its turns. System turns take no part: two releases of a system prompt are
compared on the same user turns. Where the turns are not known (an import, a prompt given as rendered text) the id alone
decides, and that is said.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from driftscope.runs import PromptKey, Run
from driftscope.runs.files import PROMPTS
from driftscope.runs.reader import prompt_keys

SYSTEM_ROLES = ("system", "developer")


class PromptName(NamedTuple):
    """A prompt of one condition. `turns`: sha256 of its messages without system turns; None where they are not known."""

    prompt_id: str
    turns: str | None


class PromptSums(NamedTuple):
    """What one prompt adds to a ratio of sums under one condition, e.g. tokens and rounds."""

    numerator: float
    denominator: float


Prompts = Mapping[PromptName, PromptSums]


class PairedBy(StrEnum):
    """What says that two prompts are the same."""

    id_and_turns = "id_and_turns"
    id = "id"  # the turns of one side or both are not known
    turns = "turns"  # no id is on both sides


class Pairs(NamedTuple):
    """Prompts of the first side and of the second, sorted; every prompt at most once."""

    pairs: list[tuple[PromptName, PromptName]]
    paired_by: PairedBy | None  # None without pairs
    num_other_turns: int  # ids on both sides whose turns differ: other prompts


def pair(first: Collection[PromptName], second: Collection[PromptName]) -> Pairs:
    """By id where the turns do not differ; where that finds none, by turns that occur once on each side."""
    by_id = {name.prompt_id: name for name in second}
    common = sorted((name for name in first if name.prompt_id in by_id), key=lambda name: name.prompt_id)
    both = [(name, by_id[name.prompt_id]) for name in common]
    pairs = [(a, b) for a, b in both if a.turns == b.turns or a.turns is None or b.turns is None]
    num_other_turns = len(both) - len(pairs)
    if pairs:
        is_known = all(a.turns is not None and b.turns is not None for a, b in pairs)
        return Pairs(pairs, PairedBy.id_and_turns if is_known else PairedBy.id, num_other_turns)
    unique = [_by_unique_turns(side) for side in (first, second)]
    pairs = sorted((unique[0][turns], unique[1][turns]) for turns in unique[0].keys() & unique[1].keys())
    return Pairs(pairs, PairedBy.turns if pairs else None, num_other_turns)


def paired_sums(pairs: Sequence[tuple[PromptName, PromptName]], first: Prompts, second: Prompts) -> np.ndarray:
    """[4, prompt]: numerator and denominator of the first side, then of the second, for `stats.paired_difference`."""
    rows = [(*first[a], *second[b]) for a, b in pairs]
    return np.array(rows, dtype=np.float64).reshape(-1, 4).T


def turns_by_prompt(run: Run) -> dict[PromptKey, str | None]:
    """The turns of every prompt of the run. Without stored text the hash is that of all messages, system turns too."""
    found: dict[PromptKey, str | None] = {}
    for prompts in run.batches(PROMPTS, [*PromptKey._fields, "messages", "messages_sha256"]):
        columns = (prompts[name].to_pylist() for name in ("messages", "messages_sha256"))
        found.update(zip(prompt_keys(prompts), map(_turns, *columns), strict=True))
    return found


_NO_MESSAGES = hashlib.sha256(b"[]").hexdigest()


@lru_cache(maxsize=4)  # a small file can repeat one long text
def _turns(messages: str | None, sha256: str | None) -> str | None:
    if messages is not None:
        turns = [turn for turn in json.loads(messages) if turn.get("role") not in SYSTEM_ROLES]
        sha256 = hashlib.sha256(
            json.dumps(turns, ensure_ascii=False, sort_keys=True).encode("utf-8", "surrogatepass")
        ).hexdigest()
    return None if sha256 in (None, "", _NO_MESSAGES) else sha256


def _by_unique_turns(names: Collection[PromptName]) -> dict[str, PromptName]:
    times = Counter(name.turns for name in names)
    return {name.turns: name for name in names if name.turns is not None and times[name.turns] == 1}
