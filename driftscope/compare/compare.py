"""Runs -> comparison: matches conditions, pairs prompts, takes differences, judges the gate.

Knows no display. Degenerate prompts are left out where they are degenerate on either side, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftscope.compare.comparison import (
    ComparedCondition,
    ComparedRun,
    Comparison,
    ComparisonCell,
    Gate,
    MetricDifference,
    NotCompared,
)
from driftscope.compare.contract import notes_on, temperature_of, why_not_comparable
from driftscope.compare.differences import PairedSides, difference_from, metric_differences
from driftscope.compare.gate import FailOn, GateExpression, judge
from driftscope.compare.metrics import TOKENS_PER_ROUND, Metric, metric_of
from driftscope.compare.pairing import PairedBy
from driftscope.compare.sides import COLUMN_OF, By, Matching, Side, match_runs, match_values, sides_of
from driftscope.runs import Run
from driftscope.runs.listing import names_apart
from driftscope.runs.schema import CONDITION
from probes.errors import InputError

MOST_REASONS = 4  # in one message


def compare(
    runs: Sequence[Run],
    *,
    by: By | None = None,
    baseline: str | None = None,
    gates: Sequence[GateExpression] = (),
    fail_on: FailOn = "interval",
    metrics: Sequence[str] = (),
) -> Comparison:
    """Every cell: a condition and its baseline. Several runs: the first, or the one named `baseline`, is the baseline;
    with `by`, and for one run, conditions that differ in `by` only.

    `metrics` beside those of the gates; tokens_per_round where there are none. Raises InputError for one run without
    `by`, an unknown baseline or metric, and where nothing could be compared; RunError for an unreadable part.
    """
    shown = _metrics(metrics, gates)
    names = names_apart([run.path for run in runs])
    of_runs = [sides_of(run, name) for run, name in zip(runs, names, strict=True)]
    sides = [side for these in of_runs for side in these]
    if not sides:
        raise _nothing([])
    if by is not None:
        matching = match_values(sides, by, baseline)
    elif len(runs) > 1:
        matching = match_runs(of_runs, names, baseline)
    else:
        raise _one_run(sides)
    cells, not_compared = _comparable(matching)
    if not cells:
        raise _nothing(list(dict.fromkeys(one.reason for one in not_compared)))
    differences = [metric_differences(cells, metric) for metric in shown]  # [metric][cell]
    found = [one for of_metric in differences for one in of_metric]
    if all(one.difference is None for one in found):
        raise _nothing(list(dict.fromkeys(one.reason or "" for one in found)))
    return Comparison(
        by=by,
        baseline=matching.baseline,
        runs=[_run(run, name) for run, name in zip(runs, names, strict=True)],
        metrics=[metric.name for metric in shown],
        cells=[_cell(cell, of_cell) for cell, *of_cell in zip(cells, *differences, strict=True)],
        not_compared=not_compared,
        gates=[_gate(gate, cells, fail_on) for gate in gates],
        notes=list(dict.fromkeys((*matching.notes, *_notes(cells), *_gate_notes(gates)))),
    )


def _metrics(names: Sequence[str], gates: Sequence[GateExpression]) -> list[Metric]:
    found = [metric_of(name) for name in names] + [gate.metric for gate in gates]
    return list({metric.name: metric for metric in found or [metric_of(TOKENS_PER_ROUND)]}.values())


def _comparable(matching: Matching) -> tuple[list[PairedSides], list[NotCompared]]:
    cells = []
    not_compared = [
        NotCompared(
            candidate=_condition(one.side) if one.is_candidate else None,
            baseline=None if one.is_candidate else _condition(one.side),
            reason=one.reason,
        )
        for one in matching.unmatched
    ]
    for candidate, baseline in matching.matches:
        cell = PairedSides.of(candidate, baseline)
        reason = why_not_comparable(candidate, baseline) or _why_no_pairs(cell)
        if reason is None:
            cells.append(cell)
        else:
            not_compared.append(
                NotCompared(candidate=_condition(candidate), baseline=_condition(baseline), reason=reason)
            )
    return cells, not_compared


def _why_no_pairs(cell: PairedSides) -> str | None:
    if cell.pairs.pairs:
        return None
    if not cell.pairs.num_other_turns:
        return "no prompt id is on both sides"
    has_text = cell.candidate.run.info.has_text and cell.baseline.run.info.has_text
    why = "" if has_text else "; without stored text a prompt's own system turn counts as part of it"
    return f"the prompts differ: {cell.pairs.num_other_turns} ids are on both sides, with other messages{why}"


def _cell(cell: PairedSides, differences: Sequence[MetricDifference]) -> ComparisonCell:
    num_paired = len(cell.pairs.pairs)
    num_common = num_paired + cell.pairs.num_other_turns
    assert cell.pairs.paired_by is not None  # those without pairs were left out
    return ComparisonCell(
        candidate=_condition(cell.candidate),
        baseline=_condition(cell.baseline),
        paired_by=cell.pairs.paired_by.value,
        num_paired=num_paired,
        num_degenerate=num_paired - len(cell.kept),
        num_unpaired=len(cell.candidate.names) + len(cell.baseline.names) - 2 * num_common,
        num_other_turns=cell.pairs.num_other_turns,
        differences=list(differences),
    )


def _gate(gate: GateExpression, cells: Sequence[PairedSides], fail_on: FailOn) -> Gate:
    found = [difference_from(cell, gate.metric, is_relative=gate.is_relative, null=gate.number) for cell in cells]
    return judge(gate, found, fail_on)


def _notes(cells: Sequence[PairedSides]) -> Iterator[str]:
    for cell in cells:
        yield from notes_on(cell.candidate, cell.baseline)
        where = " and ".join(dict.fromkeys((cell.candidate.run_name, cell.baseline.run_name)))
        if cell.pairs.paired_by is PairedBy.id:
            yield f"{where}: prompts are paired by id alone; that they are the same cannot be checked without messages"
        elif cell.pairs.paired_by is PairedBy.turns:
            yield f"{where}: no prompt id is on both sides; prompts with the same user turns are paired"


def _gate_notes(gates: Sequence[GateExpression]) -> Iterator[str]:
    for gate in gates:
        if gate.holds(0.0):
            yield (
                f"--fail-if {gate.text!r} is on candidate - baseline: equal sides satisfy it. It asks for an improvement, "
                "not against a regression"
            )


def _condition(side: Side) -> ComparedCondition:
    return ComparedCondition(run=side.run_name, **side.key._asdict())


def _run(run: Run, name: str) -> ComparedRun:
    return ComparedRun(
        name=name,
        path=str(run.path),
        status=run.status.value,
        engine=run.info.engine,
        temperature=temperature_of(run.info),
        acceptance_rule=run.info.acceptance_rule,
    )


def _one_run(sides: Sequence[Side]) -> InputError:
    several = []
    for by in ("drafter", "system_prompt", "template", "context"):
        column = CONDITION.index(COLUMN_OF.get(by, by))
        if len({side.key[column] for side in sides}) > 1:
            several.append(f"--by {by}")
    return InputError(
        "one run is nothing to compare by itself",
        code="nothing_to_compare",
        where="driftscope compare",
        remedy="give a second run" + (f", or {' or '.join(several)}" if several else "") + ".",
    )


def _nothing(reasons: Sequence[str]) -> InputError:
    remedy = "compare runs of the same prompts, K, temperature and acceptance rule, with the same names; or use --by"
    if any("no walk" in reason for reason in reasons):
        remedy = "without a walk, compare dense rounds: --metric dense.tokens_per_round"
    return InputError(
        f"nothing could be compared: {'; '.join(reasons[:MOST_REASONS]) or 'no run has rounds'}",
        code="nothing_to_compare",
        where="driftscope compare",
        remedy=remedy,
    )
