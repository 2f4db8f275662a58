"""`driftscope compare RUN [RUN ...]`: paired differences and the gate, as text, Markdown or JSON."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.console import Json, Markdown, console, one_form, print_json, without_effect


class ByWord(StrEnum):
    """The part of a condition in which the compared ones differ."""

    drafter = "drafter"
    system_prompt = "system_prompt"
    template = "template"
    context = "context"


class FailOnWord(StrEnum):
    """The part of a difference that the gate reads."""

    interval = "interval"
    point = "point"


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="NAME.drift folders; the first is the baseline.")
    ],
    by: Annotated[ByWord | None, typer.Option(help="Compare conditions that differ in this, instead of runs.")] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Baseline: a value of --by, or a run. [the first]")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help='Gate on candidate - baseline: "METRIC OP NUMBER [absolute|relative]".'),
    ] = None,
    fail_on: Annotated[
        FailOnWord | None,
        typer.Option(
            help="With --fail-if: a cell fails if its whole interval, or its point estimate, satisfies EXPR. [interval]"
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="Compare this metric too. [tokens_per_round over the walk]"),
    ] = None,
    markdown: Markdown = False,
    json: Json = False,
) -> int:
    """Differences between runs or conditions on the same prompts, paired by prompt, and a gate for CI.

    Exit codes: 0 no gate fails; 1 a gate fails; 2 nothing could be compared, or no cell decides a gate.
    docs/compare.md has the metrics, the rule of the gate and a workflow.
    """
    from driftscope.compare import compare as compared
    from driftscope.compare import parse_gate
    from driftscope.runs import read_run

    one_form(json, markdown)
    if fail_on is not None and not fail_if:
        raise without_effect("--fail-on", "It says how --fail-if is read: add --fail-if.")
    gates = [parse_gate(text) for text in fail_if or ()]
    comparison = compared(
        [read_run(run) for run in runs],
        by=None if by is None else by.value,
        baseline=baseline,
        gates=gates,
        fail_on=(fail_on or FailOnWord.interval).value,
        metrics=metric or (),
    )
    if json:
        print_json(comparison)
    elif markdown:
        from driftscope.cli.compare_markdown import as_markdown

        sys.stdout.write(as_markdown(comparison))
    else:
        from driftscope.cli.compare_text import print_comparison

        print_comparison(console(), comparison)
    return comparison.exit_code
