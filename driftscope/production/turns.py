"""Regions of a prompt that is known as token ids only: the template's role markers, learnt once from the tokenizer.

A few made-up conversations are rendered; the token ids between two turns (`<|im_end|>\n<|im_start|>user\n`) are then looked
for in every prompt. What lies between two of them belongs to the role that they name. Nothing is guessed: a conversation
whose markers do not begin with a special token is not learnt, and text after a marker that was not learnt is `unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from probes.errors import DriftscopeError
from probes.record import TEXT_REGIONS
from probes.rendering import Rendered, render
from probes.tokenization import special_tokens

TEMPLATE, UNKNOWN = TEXT_REGIONS.index("template"), TEXT_REGIONS.index("unknown")
START, END = -1, -2  # before the first turn, after the last: no region

EXAMPLES: tuple[tuple[Mapping[str, str], ...], ...] = tuple(
    tuple({"role": role, "content": f"{word} of a made-up conversation"} for role, word in turns)
    for turns in (
        (("system", "Rules"), ("user", "Words"), ("assistant", "Answer"), ("user", "Question")),
        (("user", "Words"), ("assistant", "Answer"), ("user", "Question")),
        (("user", "Words"),),
    )
)


@dataclass(frozen=True)
class RoleMarkers:
    """`markers`: (region before, region after) -> the token ids between; START and END stand at the ends."""

    markers: Mapping[tuple[int, int], tuple[int, ...]]
    special_ids: frozenset[int]

    def regions(self, token_ids: np.ndarray) -> np.ndarray:
        """int [token] -> uint8 [token], index into TEXT_REGIONS."""
        region = np.full(len(token_ids), UNKNOWN, np.uint8)
        starts = [(m, to) for (before, to), m in self.markers.items() if before == START and _at(token_ids, m, 0)]
        marker, now = max(starts, key=lambda found: len(found[0]), default=((), UNKNOWN))
        region[: len(marker)] = TEMPLATE
        place = len(marker)
        special = [int(i) for i in np.flatnonzero(np.isin(token_ids, list(self.special_ids)))]
        for at in special:
            if at < place:
                continue
            fitting = [
                (marker, to)
                for (before, to), marker in self.markers.items()
                if (before == now or (now == UNKNOWN and before != START))
                and _at(token_ids, marker, at)
                and (to != END or at + len(marker) == len(token_ids))
            ]
            if now != UNKNOWN:
                region[place:at] = now
            if not fitting:
                now, place = UNKNOWN, at
                continue
            marker, now = max(fitting, key=lambda one: len(one[0]))
            region[at : at + len(marker)] = TEMPLATE
            place = at + len(marker)
        if now not in (UNKNOWN, END):
            region[place:] = now
        return region


def learn(tokenizer: Any) -> tuple[RoleMarkers | None, str]:
    """-> (None where nothing could be learnt, a sentence for the run's notes)."""
    special_ids, _ = special_tokens(tokenizer)
    markers: dict[tuple[int, int], tuple[int, ...]] = {}
    reason = "its markers do not begin with special tokens"
    for messages in EXAMPLES:
        try:
            rendered = render(tokenizer, messages)
        except DriftscopeError as error:
            reason = str(error)
            continue
        markers |= _between(rendered, special_ids)
    if not any(before == START for before, _ in markers):
        return (
            None,
            f"regions of prompts are unknown: no role markers could be learnt from the chat template ({reason})",
        )
    names = sorted({TEXT_REGIONS[to] for _, to in markers if to != END})
    return RoleMarkers(
        markers, special_ids
    ), f"regions learnt from the chat template's role markers: {', '.join(names)}"


def _between(rendered: Rendered, special_ids: frozenset[int]) -> dict[tuple[int, int], tuple[int, ...]]:
    """The runs of template tokens of one rendered conversation that can be found again."""
    runs: list[tuple[int, Sequence[int]]] = []
    for region, group in groupby(
        zip(rendered.region.tolist(), rendered.token_ids.tolist(), strict=True), lambda x: x[0]
    ):
        runs.append((region, [token for _, token in group]))
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    before = START
    for index, (region, ids) in enumerate(runs):
        if region != TEMPLATE:
            before = region
            continue
        after = runs[index + 1][0] if index + 1 < len(runs) else END
        if ids[0] in special_ids and UNKNOWN not in (before, after):
            found[before, after] = tuple(ids)
    return found


def _at(token_ids: np.ndarray, marker: Sequence[int], place: int) -> bool:
    return bool(np.array_equal(token_ids[place : place + len(marker)], marker))
