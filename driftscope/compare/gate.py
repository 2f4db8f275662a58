"""The gate: `METRIC OP NUMBER [absolute|relative]` on candidate - baseline, in every cell.

Knows differences, no runs. With `interval` a cell fails when its whole 95 % interval satisfies the expression and this
holds over all cells together: Holm's correction of the p-values against NUMBER, not against 0. With `point` the
difference itself decides, uncorrected.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from driftscope.compare.comparison import Gate, GateCell, Outcome
from driftscope.compare.metrics import Metric, metric_of
from driftscope.stats.paired import Difference, holm
from probes.errors import InputError

FailOn = Literal["interval", "point"]
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EXPRESSION = re.compile(
    r"\s*(?P<metric>[^\s<>=!]+)\s*(?P<operator><=|>=|<|>)\s*"
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?)(?:\s+(?P<unit>absolute|relative))?\s*"
)
EXAMPLES = '"tokens_per_round < -0.1" or "tokens_per_round < -0.05 relative"'


@dataclass(frozen=True, kw_only=True)
class GateExpression:
    """One --fail-if, understood."""

    text: str
    metric: Metric
    operator: str
    number: float
    is_relative: bool

    def holds(self, value: float) -> bool:
        """Whether a difference satisfies it."""
        result: bool = _OPERATORS[self.operator](value, self.number)
        return result


def parse_gate(text: str) -> GateExpression:
    """Raises InputError `bad_gate` (not of the form) or `unknown_metric`."""
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        problem = (
            "a percentage: write 0.05 relative for 5 %" if "%" in text else "not METRIC OP NUMBER [absolute|relative]"
        )
        raise InputError(
            f"{text!r} is {problem}",
            code="bad_gate",
            where="--fail-if",
            remedy=f"OP is <, <=, > or >=; quote it for the shell, e.g. {EXAMPLES}",
        )
    return GateExpression(
        text=" ".join(text.split()),
        metric=metric_of(match["metric"]),
        operator=match["operator"],
        number=float(match["number"]),
        is_relative=match["unit"] == "relative",
    )


def judge(expression: GateExpression, differences: Sequence[Difference], fail_on: FailOn) -> Gate:
    """`differences`, one for each cell, with p-values against `expression.number`."""
    p_values = [_p_value(expression, difference) for difference in differences]
    are_sure = holm(p_values)
    cells = []
    for index, (found, p_value, is_sure) in enumerate(zip(differences, p_values, are_sure, strict=True)):
        is_whole = (
            found.low is not None
            and found.high is not None
            and expression.holds(found.low)
            and expression.holds(found.high)
        )
        if found.estimate is None:
            outcome = Outcome.not_compared
        elif fail_on == "point":
            outcome = Outcome.fails if expression.holds(found.estimate) else Outcome.passes
        elif found.low is None:
            outcome = Outcome.not_decided
        else:
            outcome = Outcome.fails if is_whole and is_sure else Outcome.passes
        cells.append(
            GateCell(
                cell=index,
                outcome=outcome,
                value=found.estimate,
                low=found.low,
                high=found.high,
                p_value=p_value,
                is_satisfied_alone=is_whole,
            )
        )
    return Gate(
        expression=expression.text,
        metric=expression.metric.name,
        operator=expression.operator,
        number=expression.number,
        is_relative=expression.is_relative,
        fail_on=fail_on,
        is_failed=any(cell.outcome is Outcome.fails for cell in cells),
        is_decided=any(cell.outcome in (Outcome.fails, Outcome.passes) for cell in cells),
        cells=cells,
    )


def _p_value(expression: GateExpression, found: Difference) -> float | None:
    """Two-sided as the interval is, so that one cell alone is decided by its interval; 1 on the wrong side."""
    if found.estimate is None or found.p_value is None:
        return None
    if not expression.holds(found.estimate):
        return 1.0
    return 0.0 if found.low == found.high else found.p_value  # every prompt says the same
