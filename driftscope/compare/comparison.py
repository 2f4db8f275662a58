"""A comparison as data: exactly what `driftscope compare --json` prints.

Field names are a contract. What could not be computed is null.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, Field


class ComparedRun(BaseModel):
    """One of the runs, with what must agree between them."""

    name: str
    path: str
    status: str
    engine: str
    temperature: float | None  # null where an import does not know it
    acceptance_rule: str


class ComparedCondition(BaseModel):
    """One condition of one run."""

    run: str  # its name in `runs`
    drafter: str
    system_prompt: str
    template: str
    context_tokens: int


class MetricDifference(BaseModel):
    """One metric of one cell: candidate - baseline over the paired prompts."""

    metric: str
    basis: str  # walk | dense: the rounds it is over; prompts: no rounds
    num_prompts: int  # n: with data on both sides, degenerate ones left out where the metric leaves them out
    baseline: float | None = Field(description="Over these num_prompts alone: `show` is over all of its condition.")
    candidate: float | None
    difference: float | None
    low: float | None = Field(description="95 % interval over prompts, of this cell by itself.")
    high: float | None
    interval_method: str | None  # jackknife_t | bca | percentile; null below 5 prompts
    relative_difference: float | None  # difference / baseline; null where the baseline is not above 0
    relative_low: float | None
    relative_high: float | None
    p_value: float | None  # two-sided, of no difference
    is_sure: bool  # holds over all cells of this metric together (Holm)
    reason: str | None  # why there is no difference


class ComparisonCell(BaseModel):
    """Two conditions on the same prompts."""

    candidate: ComparedCondition
    baseline: ComparedCondition
    paired_by: str  # id_and_turns | id | turns
    num_paired: int  # prompts on both sides
    num_degenerate: int  # of these, whose response is degenerate on either side
    num_unpaired: int  # prompts on one side only
    num_other_turns: int  # ids on both sides whose user turns differ: other prompts, left out
    differences: list[MetricDifference]


class NotCompared(BaseModel):
    """A condition without a counterpart, or two that must not be compared."""

    candidate: ComparedCondition | None
    baseline: ComparedCondition | None
    reason: str


class Outcome(StrEnum):
    """What the gate says of a cell."""

    fails = "fails"
    passes = "passes"
    not_decided = "not_decided"  # no interval: fewer than 5 prompts
    not_compared = "not_compared"  # the metric is missing on a side


class GateCell(BaseModel):
    """One cell under one expression."""

    cell: int  # index into `cells`
    outcome: Outcome
    value: float | None  # the absolute or relative difference that was judged
    low: float | None
    high: float | None
    p_value: float | None  # that the difference is not beyond the number: two-sided, 1 on the wrong side of it
    is_satisfied_alone: bool  # its whole interval satisfies the expression, before Holm's correction


class Gate(BaseModel):
    """One --fail-if over all cells."""

    expression: str
    metric: str
    operator: str
    number: float
    is_relative: bool
    fail_on: str  # interval | point
    is_failed: bool  # some cell fails
    is_decided: bool  # some cell fails or passes; a gate that says nothing of any cell must not look green
    cells: list[GateCell]


class Comparison(BaseModel):
    """`driftscope compare --json`."""

    schema_version: int = 1
    by: str | None  # null: runs are compared
    baseline: str  # name of the baseline run, or the baseline value of `by`
    runs: list[ComparedRun]
    metrics: list[str]
    cells: list[ComparisonCell]
    not_compared: list[NotCompared]
    gates: list[Gate]
    notes: list[str]

    @property
    def exit_code(self) -> int:
        """1 when a gate fails, 2 when one could not be decided in any cell, else 0."""
        if any(gate.is_failed for gate in self.gates):
            return 1
        return 0 if all(gate.is_decided for gate in self.gates) else 2
