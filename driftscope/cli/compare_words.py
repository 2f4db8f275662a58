"""The words of a comparison, for text and Markdown alike: labels of cells, verdicts, what a gate came to.

Computes nothing but which columns differ; every number comes from the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.compare import ComparedCondition, Comparison, ComparisonCell, Gate, MetricDifference
from driftscope.compare.comparison import Outcome

COLUMNS = ("run", "drafter", "system_prompt", "template", "context_tokens")
_HEADS = {"context_tokens": "context"}


def columns_of(comparison: Comparison) -> list[str]:
    """The columns in which the cells differ; `same_everywhere` has what they share."""
    return [c for c in COLUMNS if len({_values(cell, c) for cell in comparison.cells}) > 1] or ["drafter"]


def same_everywhere(comparison: Comparison) -> str:
    """Text for what all cells share, and for what differs from the baseline in the same way in all of them."""
    said = []
    for column in COLUMNS:
        new, old = _values(comparison.cells[0], column)
        is_known = column == "run" if comparison.by is None else column == "run" and new == old
        if column not in columns_of(comparison) and (new != old or column == "drafter") and not is_known:
            said.append(f"{head(column)} {new}" + (f" against {old}" if new != old else ""))
    return ", ".join(said)


def _values(cell: ComparisonCell, column: str) -> tuple[str, str]:
    return str(getattr(cell.candidate, column)), str(getattr(cell.baseline, column))


def head(column: str) -> str:
    """A column's title."""
    return _HEADS.get(column, column)


def value_of(comparison: Comparison, cell: ComparisonCell, column: str) -> str:
    """The candidate's value, and the baseline's where it is another than the heading says."""
    new, old = _values(cell, column)
    is_said = column == "run" if comparison.by is None else old == comparison.baseline and head(column) == comparison.by
    return new if new == old or is_said else f"{new} (against {old})"


def condition_words(condition: ComparedCondition) -> str:
    """One condition in a sentence."""
    template = "" if condition.template == "default" else f", template {condition.template}"
    return (
        f"{condition.run}: {condition.drafter}, {condition.system_prompt}{template}, context {condition.context_tokens}"
    )


def verdict(difference: MetricDifference) -> str:
    """The verdict of one cell's interval, taken by itself."""
    if difference.difference is None:
        return difference.reason or ""
    if difference.low is None or difference.high is None:
        return "no interval"
    if difference.low == difference.high == 0:
        return "equal"
    if difference.low <= 0 <= difference.high:
        return "not distinguishable"
    return ("higher" if difference.difference > 0 else "lower") + ("" if difference.is_sure else ", not after Holm")


N_MEANS = (
    "n: prompts with data on both sides (n/m: of m that both sides have). All numbers of a row are over these n. So a "
    "baseline may differ from `driftscope show`, which takes all prompts of its condition."
)


def counts(cell: ComparisonCell, difference: MetricDifference) -> str:
    """Prompts that count, of those paired where some do not."""
    n = difference.num_prompts
    return str(n) if n == cell.num_paired else f"{n}/{cell.num_paired}"


def interval(low: float | None, high: float | None) -> str:
    """A difference's interval, with signs."""
    return "" if low is None or high is None else f"{low:+.3f} to {high:+.3f}"


def number(value: float | None, form: str = ".3f") -> str:
    """Empty where it is missing."""
    return "" if value is None else format(value, form)


def gate_words(gate: Gate) -> str:
    """One sentence: what a gate came to, without its expression."""
    num = {outcome: sum(cell.outcome is outcome for cell in gate.cells) for outcome in Outcome}
    num_judged = num[Outcome.fails] + num[Outcome.passes]
    if not gate.is_decided:
        said = "NOT DECIDED in any cell: fewer than 5 prompts, so no interval"
        return said if num[Outcome.not_decided] else "NOT DECIDED in any cell: the metric is missing"
    rule = "whole interval" if gate.fail_on == "interval" else "point estimate"
    if num_judged == 1:
        said = "FAILS" if gate.is_failed else "passes"
    else:
        said = f"FAILS in {num[Outcome.fails]} of" if gate.is_failed else "passes in all"
        said += f" {num_judged} cells"
        rule += ", Holm-corrected over the cells" if gate.fail_on == "interval" else ""
    said += f" ({rule})"
    if num[Outcome.not_decided]:
        said += f"; {num[Outcome.not_decided]} not decided (fewer than 5 prompts)"
    if num[Outcome.not_compared]:
        said += f"; {num[Outcome.not_compared]} without the metric"
    alone = sum(cell.is_satisfied_alone and cell.outcome is Outcome.passes for cell in gate.cells)
    if alone:
        said += f"; {alone} would fail alone, but not after Holm's correction"
    return said


def outcome_of(comparison: Comparison) -> str:
    """The whole in a few words."""
    if not comparison.gates:
        return f"{len(comparison.cells)} {'cell' if len(comparison.cells) == 1 else 'cells'} compared"
    if comparison.exit_code == 1:
        return "gate failed"
    return "gate passed" if comparison.exit_code == 0 else "gate not decided"


def failing(comparison: Comparison) -> set[int]:
    """Cells that some gate fails."""
    return {cell.cell for gate in comparison.gates for cell in gate.cells if cell.outcome is Outcome.fails}


def ordered(comparison: Comparison) -> Sequence[int]:
    """Indices of the cells, failing ones first."""
    first = failing(comparison)
    return sorted(range(len(comparison.cells)), key=lambda index: index not in first)


def left_out(comparison: Comparison) -> str:
    """Says how many prompts take no part and why; empty where all do."""
    sums = {
        "with a degenerate response on either side": sum(c.num_degenerate for c in comparison.cells),
        "on one side only": sum(c.num_unpaired for c in comparison.cells),
        "with other messages under the same id": sum(c.num_other_turns for c in comparison.cells),
    }
    said = ", ".join(f"{num} {why}" for why, num in sums.items() if num)
    return f"Prompts left out, over all cells: {said}." if said else ""
