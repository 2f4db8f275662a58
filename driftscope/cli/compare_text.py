"""The text of `driftscope compare`: the gate's outcome, one table for each metric, what was not compared.

Computes nothing. Laid out for 100 columns.
"""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from driftscope.cli import compare_words as words
from driftscope.compare import Comparison, NotCompared
from probes.errors import printable

MOST_NOT_COMPARED = 12


def print_comparison(out: Console, comparison: Comparison) -> None:
    """Print the whole page."""
    what = "runs" if comparison.by is None else comparison.by
    out.print(Text(printable(f"{what} against {comparison.baseline}: {words.outcome_of(comparison)}"), style="bold"))
    for run in comparison.runs:
        temperature = "not known" if run.temperature is None else f"{run.temperature:g}"
        line = f"{run.name}: {run.status}, {run.engine}, temperature {temperature}  ({run.path})"
        out.print(Text(printable(line)), soft_wrap=True)
    if said := words.same_everywhere(comparison):
        out.print(Text(printable(f"in every cell: {said}")), soft_wrap=True)
    for index, metric in enumerate(comparison.metrics):
        _print_metric(out, comparison, index, metric)
    out.print(words.N_MEANS, markup=False)
    if said := words.left_out(comparison):
        out.print(said)
    for gate in comparison.gates:
        style = "red" if gate.is_failed else "green" if gate.is_decided else "yellow"
        out.print(Text(printable(f"gate {gate.expression!r}: {words.gate_words(gate)}"), style=style))
    _print_not_compared(out, comparison.not_compared)
    for note in comparison.notes:
        out.print(Text(printable(f"! {note}"), style="yellow"))


def _print_metric(out: Console, comparison: Comparison, index: int, metric: str) -> None:
    basis = ", ".join(dict.fromkeys(cell.differences[index].basis for cell in comparison.cells))
    out.print(Text.assemble("\n", (printable(metric), "bold"), f" ({basis}): candidate - baseline, 95 % interval"))
    columns = words.columns_of(comparison)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(words.head(column), overflow="fold", min_width=min(len(words.head(column)), 13), max_width=24)
    for title in ("n", "baseline", "candidate", "difference", "interval"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", min_width=len("not distinguishable"))
    failing = words.failing(comparison)
    for i in words.ordered(comparison):
        cell, one = comparison.cells[i], comparison.cells[i].differences[index]
        table.add_row(
            *(Text(printable(words.value_of(comparison, cell, column))) for column in columns),
            words.counts(cell, one),
            words.number(one.baseline),
            words.number(one.candidate),
            words.number(one.difference, "+.3f"),
            words.interval(one.low, one.high),
            Text(printable(words.verdict(one)) + (" FAILS" if i in failing else ""), "red" if i in failing else ""),
        )
    out.print(table)


def _print_not_compared(out: Console, not_compared: list[NotCompared]) -> None:
    if not not_compared:
        return
    out.print(f"\nNot compared ({len(not_compared)}):")
    for one in not_compared[:MOST_NOT_COMPARED]:
        sides = " vs ".join(words.condition_words(side) for side in (one.candidate, one.baseline) if side is not None)
        out.print(Padding(Text(printable(f"- {sides}: {one.reason}")), (0, 0, 0, 2)))
    if len(not_compared) > MOST_NOT_COMPARED:
        out.print(f"  {len(not_compared) - MOST_NOT_COMPARED} more: see --json")
