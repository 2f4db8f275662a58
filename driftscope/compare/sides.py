"""One condition of one run as a side of a comparison, and which sides belong together.

Computes no difference. Conditions are matched by drafter, system prompt, template and context length. A value that only
one of two runs has is matched where there is one thing it can be: the only value on each side, or, of system prompts
named NAME@VERSION, the one of that name (then it is said).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from driftscope.compare.pairing import PromptName, turns_by_prompt
from driftscope.runs import Run
from driftscope.runs.schema import CONDITION
from driftscope.summary.sums import BatchSums, batch_sums
from probes.errors import InputError
from probes.record import ConditionKey

By = Literal["drafter", "system_prompt", "template", "context"]
COLUMN_OF = {"context": "context_tokens"}
"""Where a --by word is not the column's name."""

MOST_VALUES = 4  # in one message


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """A condition's prompts, one batch each, in the order in which they were measured."""

    run: Run
    run_name: str  # unique among the runs that are compared
    key: ConditionKey
    sums: BatchSums  # of the whole run
    rows: np.ndarray  # int [prompt]: this condition's batches
    names: list[PromptName]

    @property
    def is_degenerate(self) -> np.ndarray:
        """bool [prompt]"""
        is_degenerate: np.ndarray = self.sums.is_degenerate[self.rows]
        return is_degenerate

    @property
    def depth(self) -> int:
        """K."""
        return int(self.sums.num_depths[self.rows].max())

    @property
    def depths(self) -> list[int]:
        """Every K that its prompts were measured with: a server may limit some requests."""
        return sorted(set(self.sums.num_depths[self.rows].tolist()))

    @property
    def depth_basis(self) -> Literal["dense", "walk"]:
        """As in the summary: dense where every prompt was replayed."""
        return "dense" if bool(self.sums.is_replay[self.rows].all()) else "walk"

    @property
    def in_depth_basis(self) -> np.ndarray:
        """bool [prompt]: text given as finished is replayed in every engine and has no part beside live rounds."""
        is_replay = self.sums.is_replay[self.rows]
        return np.full(len(is_replay), True) if self.depth_basis == "dense" else ~is_replay

    @property
    def has_walk(self) -> bool:
        """Some prompt has rounds that an engine would make."""
        return bool(self.sums.num_walk_rounds[self.rows].any())


class Match(NamedTuple):
    """What is compared: candidate - baseline."""

    candidate: Side
    baseline: Side


class Unmatched(NamedTuple):
    """A condition without a counterpart."""

    side: Side
    is_candidate: bool
    reason: str


class Matching(NamedTuple):
    """What `match_runs` and `match_values` found."""

    baseline: str  # name of the baseline run, or the baseline value
    matches: list[Match]
    unmatched: list[Unmatched]
    notes: list[str]


def sides_of(run: Run, name: str) -> list[Side]:
    """Every condition of the run that has rounds. Raises RunError for an unreadable part."""
    sums = batch_sums(run)
    turns = turns_by_prompt(run)
    return [
        Side(
            run=run,
            run_name=name,
            key=key,
            sums=sums,
            rows=np.array(rows),
            names=[PromptName(sums.keys[row].prompt_id, turns.get(sums.keys[row].prompt)) for row in rows],
        )
        for key, rows in sums.rows_by_condition().items()
    ]


def match_runs(runs: Sequence[Sequence[Side]], names: Sequence[str], baseline: str | None) -> Matching:
    """Each run's conditions with the baseline run's. `baseline`: a run's name; the first where None."""
    name = names[0] if baseline is None else baseline
    if name not in names:
        raise _no_baseline(name, "run", names)
    base = runs[names.index(name)]
    matches: list[Match] = []
    unmatched: list[Unmatched] = []
    notes: list[str] = []
    for index, sides in enumerate(runs):
        if index == names.index(name):
            continue
        renamed = _renamed(base, sides)
        notes += [
            f"{CONDITION[column]} {old} of {name} is compared with {new} of {names[index]}"
            for (column, old), new in renamed.items()
        ]
        theirs = {tuple(renamed.get((c, str(v)), v) for c, v in enumerate(side.key)): side for side in base}
        for side in sides:
            if side.key in theirs:
                matches.append(Match(side, theirs.pop(side.key)))
            else:
                unmatched.append(Unmatched(side, True, _why_unmatched(side, base, name)))
        unmatched += [Unmatched(side, False, _why_unmatched(side, sides, names[index])) for side in theirs.values()]
    return Matching(name, matches, unmatched, notes)


def match_values(sides: Sequence[Side], by: By, baseline: str | None) -> Matching:
    """Conditions that differ in `by` only, over all runs; the same run's is preferred. `baseline`: the first value
    where None. Raises InputError without sides that differ in `by`, or one with that value."""
    column = CONDITION.index(COLUMN_OF.get(by, by))
    values = list(dict.fromkeys(str(side.key[column]) for side in sides))
    value = values[0] if baseline is None else baseline
    if value not in values:
        raise _no_baseline(value, by, values)
    if len(values) == 1:
        raise InputError(
            f"there is one {by} only: {value}",
            code="nothing_to_compare",
            where="--by",
            remedy="give a second run, or compare by what differs",
        )
    rest = [tuple(v for c, v in enumerate(side.key) if c != column) for side in sides]
    is_base = [str(side.key[column]) == value for side in sides]
    matches: list[Match] = []
    unmatched: list[Unmatched] = []
    used: set[int] = set()
    for index, side in enumerate(sides):
        if is_base[index]:
            continue
        found = [i for i in range(len(sides)) if is_base[i] and rest[i] == rest[index]]
        if not found:
            unmatched.append(Unmatched(side, True, f"no condition with {by} {value} and all else equal"))
            continue
        chosen = next((i for i in found if sides[i].run is side.run), found[0])
        used.add(chosen)
        matches.append(Match(side, sides[chosen]))
    for index, side in enumerate(sides):
        if is_base[index] and index not in used:
            unmatched.append(Unmatched(side, False, f"no condition with another {by} and all else equal"))
    return Matching(value, matches, unmatched, [])


def _why_unmatched(side: Side, others: Sequence[Side], name: str) -> str:
    """Which value of the condition the run `name` lacks, and what it has instead."""
    for column, what in enumerate(CONDITION):
        values = list(dict.fromkeys(str(other.key[column]) for other in others))
        if str(side.key[column]) not in values:
            listed = ", ".join(values[:MOST_VALUES]) + (", .." if len(values) > MOST_VALUES else "")
            return f"{name} has no {what} {side.key[column]}" + (f", but {listed}" if values else "")
    return f"{name} has each of these, but not together"


def _renamed(base: Sequence[Side], sides: Sequence[Side]) -> dict[tuple[int, str], str]:
    """(column, the baseline's value) -> the candidate's; context lengths are numbers and never renamed."""
    renamed = {}
    for column in range(3):
        old, new = ([*dict.fromkeys(str(s.key[column]) for s in these)] for these in (base, sides))
        old_only, new_only = [v for v in old if v not in new], [v for v in new if v not in old]
        if len(old) == len(new) == len(old_only) == 1:
            renamed[column, old[0]] = new[0]
        elif CONDITION[column] == "system_prompt":
            for name in {_release(v) for v in old_only} - {None}:
                releases = [[v for v in values if _release(v) == name] for values in (old_only, new_only)]
                if len(releases[0]) == len(releases[1]) == 1:
                    renamed[column, releases[0][0]] = releases[1][0]
    return renamed


def _release(name: str) -> str | None:
    """The name of a system prompt NAME@VERSION."""
    head, at, _ = name.rpartition("@")
    return head if at else None


def _no_baseline(name: str, what: str, names: Sequence[str]) -> InputError:
    return InputError(
        f"there is no {what} {name!r}",
        code="unknown_baseline",
        where="--baseline",
        remedy=f"choose one of {', '.join(names)}",
    )
