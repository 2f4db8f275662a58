"""`driftscope bench` as text and as Markdown. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.bench.bench_result import BenchResult, Estimate, Ratio, Row
from driftscope.cli.console import console
from probes.errors import printable

COLUMNS = ("engine", "at once", "user", "speed-up", "all", "speed-up", "recording", "per round", "texts")


def as_markdown(result: BenchResult) -> str:
    lines = [*_head(result), ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    lines += [
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in _cells(row)) + " |"
        for row in result.rows
    ]
    lines += ["", *(f"- **{warning}**" for warning in _warnings(result))]
    return "\n".join(lines).rstrip() + "\n"


def print_result(result: BenchResult) -> None:
    from rich.table import Table

    out = console()
    for line in _head(result):
        out.print(line, markup=False)
    table = Table(box=None)
    for index, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in result.rows:
        table.add_row(*_cells(row))
    out.print(table)
    for warning in _warnings(result):
        out.print(f"warning: {warning}", markup=False)


def _warnings(result: BenchResult) -> Sequence[str]:
    if result.ended_early is None:
        return result.warnings
    return [f"ended early, some repetitions are missing: {printable(result.ended_early)}", *result.warnings]


def _head(result: BenchResult) -> list[str]:
    machine = result.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return [
        f"{result.num_prompts} prompts, {result.options.repetitions} repetitions, K = {result.plan['depth']}, "
        f"{result.plan['dtype']}, temperature {result.plan['temperature']:g}",
        f"{machine.gpu or machine.cpu} ({machine.num_cores} cores, load before {machine.load_before:.2f} a core), "
        f"{packages}",
        "`user`, `all`: tokens/s of one user and of all together; 95 % intervals over prompts and over repetitions. "
        "`recording`: the rate of all beside the same drafter's without. "
        "`per round`: tokens. `texts`: equal to those without speculation.",
    ]


def _cells(row: Row) -> Sequence[str]:
    equal = "" if row.num_texts_equal is None else f"{row.num_texts_equal}/{row.num_texts}"
    return (
        printable(str(row.variant)),
        str(row.concurrency),
        _rate(row.user_tokens_per_s),
        _ratio(row.user_speedup),
        _rate(row.total_tokens_per_s),
        _ratio(row.total_speedup),
        _ratio(row.total_recording),
        "" if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}",
        equal,
    )


def _rate(one: Estimate) -> str:
    return "" if one.estimate is None else f"{one.estimate:.1f}{_interval(one, '.1f')}"


def _ratio(one: Ratio | None) -> str:
    if one is None or one.estimate is None:
        return ""
    return f"{one.estimate:.3f}{_interval(one, '.3f')}" + ("" if one.resolved else "\nnot resolved")


def _interval(one: Estimate, form: str) -> str:
    return "" if one.low is None or one.high is None else f"\n{one.low:{form}}..{one.high:{form}}"
