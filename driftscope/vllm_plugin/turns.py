"""Regions of a prompt that is known as token ids only: the template's role markers, learnt once from the tokenizer.

A few made-up conversations are rendered; the token ids between two turns (`<|im_end|>\n<|im_start|>user\n`) are then looked
for in every prompt. What lies between two of them belongs to the role that they name. Nothing is guessed: a conversation
whose markers do not begin with a special token is not learnt, and text after a marker that was not learnt is `unknown`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from typing import Any

import numpy as np

from probes.errors import DriftscopeError
from probes.prompt.rendering import Rendered, render
from probes.prompt.tokenization import special_tokens
from probes.record import TEXT_REGIONS

TEMPLATE, UNKNOWN = TEXT_REGIONS.index("template"), TEXT_REGIONS.index("unknown")
START, END = -1, -2  # before the first turn, after the last: no region
MAX_MARKERS = 256  # of a prompt that are looked at

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
        """int [token] -> uint8 [token], index into TEXT_REGIONS. After the first MAX_MARKERS markers all is unknown.

        At level `heads` this runs on the engine's thread, and the prompt is a client's: numpy over its tokens, Python over
        the markers in it alone.
        """
        num_tokens = len(token_ids)
        at_markers, markers = self._found(token_ids)
        end = int(at_markers[MAX_MARKERS]) if len(at_markers) > MAX_MARKERS else num_tokens
        at_markers, markers = at_markers[:MAX_MARKERS], markers[:MAX_MARKERS]
        special = np.append(np.flatnonzero(self._is_special.take(token_ids, mode="clip")), num_tokens)
        next_special = {  # length of a marker -> the first special token after it, for each place
            length: special.take(np.searchsorted(special, at_markers + length), mode="clip").tolist()
            for length in {0, *map(len, self.markers.values())}
        }
        place, now = self._first(token_ids)
        special_at = int(special[np.searchsorted(special, place)])
        starts, regions = [0, place], [TEMPLATE, now]  # from which token on which region
        longest: dict[tuple[int, int], tuple[int, int]] = {}
        for index, (at, bits) in enumerate(zip(at_markers.tolist(), markers.tolist(), strict=True)):
            if at < place:  # inside a marker
                continue
            if special_at < at:  # it begins no marker: this turn is given up
                starts.append(special_at)
                regions.append(UNKNOWN)
                now = UNKNOWN
            if (now, bits) not in longest:
                longest[now, bits] = self._longest(now, bits)
            length, now = longest[now, bits]
            place, special_at = at + length, next_special[length][index]
            starts += (at, place)
            regions += (TEMPLATE, now)
        starts.append(min(special_at, max(end, place)))
        regions.append(UNKNOWN)
        return np.repeat(np.array(regions, np.int8).astype(np.uint8), np.diff([*starts, num_tokens]))

    @cached_property
    def _is_special(self) -> np.ndarray:
        """bool [token id]; the last is False and stands for all that are larger."""
        table = np.zeros(max(self.special_ids, default=0) + 2, bool)
        table[list(self.special_ids)] = True
        return table

    def _found(self, token_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """-> (int64 [place]: where markers stand, in order; int64 [place]: bit i for marker i). Without those of a prompt's
        begin; the first MAX_MARKERS + 1 places are complete."""
        num_tokens = len(token_ids)
        is_token = {token: token_ids == token for token in set(chain.from_iterable(self.markers.values()))}
        places: dict[int, np.ndarray] = {}
        for index, ((before, to), marker) in enumerate(self.markers.items()):
            last = num_tokens - len(marker)
            if before == START or last < 0:
                continue
            first = last if to == END else 0
            here = np.ones(last + 1 - first, bool)
            for offset, token in enumerate(marker):
                here &= is_token[token][first + offset : last + 1 + offset]
            places[index] = first + np.flatnonzero(here)[: MAX_MARKERS + 1]
        found = np.unique(np.concatenate([np.empty(0, np.int64), *places.values()]))
        bits = np.zeros(len(found), np.int64)
        for index, at in places.items():
            bits[np.searchsorted(found, at)] |= 1 << index
        return found, bits

    def _first(self, token_ids: np.ndarray) -> tuple[int, int]:
        """-> (length of the longest marker that a prompt begins with here, region after it)."""
        fitting = [
            (len(marker), to)
            for (before, to), marker in self.markers.items()
            if before == START and to != END and np.array_equal(token_ids[: len(marker)], marker)
        ]
        return max(fitting, key=lambda one: one[0], default=(0, UNKNOWN))

    def _longest(self, now: int, bits: int) -> tuple[int, int]:
        """The same of the markers `bits`, in region `now`."""
        fitting = [
            (len(marker), to)
            for index, ((before, to), marker) in enumerate(self.markers.items())
            if bits >> index & 1 and now in (before, UNKNOWN)
        ]
        return max(fitting, key=lambda one: one[0], default=(0, UNKNOWN))


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
