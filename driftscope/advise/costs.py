"""What a round costs: the one input of `advise` besides acceptance.

A round of K drafts takes the K draft steps and one verify of K + 1 tokens; plain decoding takes one verify of one token
for each token (Leviathan et al. 2023, arXiv 2211.17192, section 3.3, where all draft steps cost the same and a verify
costs what a plain step does). Only ratios matter, so any one unit of time will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.runs import Run
from driftscope.runs.info import Cost
from driftscope.runs.schema import CONDITION
from probes.errors import InputError
from probes.record import ConditionKey

MIN_TIMED_ROUNDS = 20  # fewer say too little about a median


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """Times in microseconds, index 0 is K = 1."""

    draft_us: tuple[float, ...]  # of draft step k, for each k
    verify_us: tuple[float, ...]  # of a verify of K + 1 tokens, for each K
    plain_us: float  # of one step of plain decoding
    source: str  # "measured" | "given" | "measured and given"
    assumptions: tuple[str, ...] = ()  # what was taken for what was not measured

    @property
    def max_depth(self) -> int:
        """The largest K that has a cost."""
        return min(len(self.draft_us), len(self.verify_us))

    def round_us(self, depth: int) -> float:
        """A round of `depth` drafts; 0 is a plain step."""
        if depth == 0:
            return self.plain_us
        return sum(self.draft_us[:depth]) + self.verify_us[depth - 1]


@dataclass(frozen=True, kw_only=True)
class GivenCosts:
    """What the user said, each one number for all depths or one for each of 1..K; None: not said."""

    draft_us: tuple[float, ...] | None = None
    verify_us: tuple[float, ...] | None = None
    plain_us: float | None = None


@dataclass(frozen=True, kw_only=True)
class TimedRounds:
    """Medians of a run's own device times, over the rounds of depth K that are not a conversation's first."""

    depth: int
    num_rounds: int
    draft_us: float  # of all K steps together
    verify_us: float


def given_costs(draft_us: str | None, verify_us: str | None, plain_us: float | None) -> GivenCosts:
    """From the command line: a number, or numbers for depths 1, 2, ... with commas. Raises InputError."""
    if plain_us is not None and not _is_time(plain_us):
        raise _bad("--plain-us", str(plain_us))
    return GivenCosts(
        draft_us=_numbers("--draft-us", draft_us), verify_us=_numbers("--verify-us", verify_us), plain_us=plain_us
    )


def round_costs(given: GivenCosts, timed: TimedRounds | None, *, depth: int) -> RoundCosts | None:
    """Costs for K = 1..`depth`; what is given wins over what was measured. None where a draft or a verify has no cost."""
    assumptions = []
    if given.draft_us is not None:
        draft = _spread(given.draft_us, depth)
        if len(given.draft_us) == 1:
            assumptions.append("every draft step costs the same")
    elif timed is not None:
        draft = (timed.draft_us / timed.depth,) * depth
        assumptions.append(f"every draft step costs 1/{timed.depth} of the measured draft of {timed.depth}")
    else:
        return None
    if given.verify_us is not None:
        verify = _spread(given.verify_us, depth)
        if len(given.verify_us) == 1:
            assumptions.append("a verify costs the same for every K")
    elif timed is not None:
        verify = (timed.verify_us,) * depth
        assumptions.append(f"a verify costs for every K what it was measured to cost at K = {timed.depth}")
    else:
        return None
    if given.plain_us is None:
        assumptions.append(
            "a plain step costs what a verify does (--plain-us says otherwise): true while reading the weights "
            "takes the time, false at large batch or on a CPU"
        )
    is_given = (given.draft_us is not None) + (given.verify_us is not None)
    return RoundCosts(
        draft_us=draft,
        verify_us=verify,
        plain_us=verify[0] if given.plain_us is None else given.plain_us,
        source=("measured", "measured and given", "given")[is_given],
        assumptions=tuple(assumptions),
    )


def at_context(costs: Sequence[Cost], context_tokens: int | None) -> list[Cost]:
    """One of a drafter's measured costs for each batch size, smallest first: at the measured context nearest to this one
    (the shortest of two; None: the shortest of all)."""
    found: dict[int, Cost] = {}
    for cost in sorted(costs, key=lambda c: (abs(c.context_tokens - (context_tokens or 0)), c.context_tokens)):
        found.setdefault(cost.batch_size, cost)
    return [found[size] for size in sorted(found)]


def measured_costs(cost: Cost, plain_us: float | None = None) -> RoundCosts:
    """As the run measured them; `plain_us` given wins."""
    requests = "one request" if cost.batch_size == 1 else f"{cost.batch_size} requests"
    return RoundCosts(
        draft_us=tuple(cost.draft_us),
        verify_us=tuple(cost.verify_us),
        plain_us=cost.plain_us if plain_us is None else plain_us,
        source="measured" if plain_us is None else "measured and given",
        assumptions=(
            f"costs are those of {requests} with {cost.context_tokens} tokens of context",
            "draft steps beyond the first cost alike",
        ),
    )


def timed_rounds(run: Run) -> dict[ConditionKey, TimedRounds]:
    """The run's own times by condition, where it has them. The first round of a conversation is left out: its draft
    includes the drafter's pass over the whole prompt."""
    table = run.query(
        f"with timed as (select {', '.join(CONDITION)}, prompt_id, num_depths, draft_us, verify_us, "
        f"row_number() over (partition by {', '.join(CONDITION)}, prompt_id order by start, round_id) as number "
        "from rounds where draft_us is not null and verify_us is not null and num_drafts = num_depths) "
        f"select {', '.join(CONDITION)}, num_depths, count(*) as num_rounds, median(draft_us)::double as draft_us, "
        "median(verify_us)::double as verify_us from timed where number > 1 group by all order by num_rounds"
    )
    found = {}
    for row in table.to_pylist():
        if row["num_rounds"] >= MIN_TIMED_ROUNDS:
            key = ConditionKey(*(row[name] for name in CONDITION))
            found[key] = TimedRounds(
                depth=row["num_depths"],
                num_rounds=row["num_rounds"],
                draft_us=row["draft_us"],
                verify_us=row["verify_us"],
            )
    return found


def _spread(values: Sequence[float], depth: int) -> tuple[float, ...]:
    return tuple(values) * depth if len(values) == 1 else tuple(values[:depth])


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise _bad(option, text) from None
    if not all(_is_time(value) for value in values):
        raise _bad(option, text)
    return values


def _is_time(value: float) -> bool:
    return bool(np.isfinite(value)) and value > 0


def _bad(option: str, text: str) -> InputError:
    return InputError(
        f"`{text}` is not a time",
        code="bad_cost",
        where=option,
        remedy="Give microseconds above 0: one number, or one for each depth with commas (410 or 520,410,410).",
    )
