"""`driftscope check TARGET DRAFTER`: what the files alone show; `driftscope check --list`: every check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.console import Json, console, print_json, without_effect
from driftscope.plan import described
from probes.errors import InputError


def check(
    target: Annotated[str | None, typer.Argument(help=described("target"))] = None,
    drafter: Annotated[str | None, typer.Argument(help=described("drafter"))] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompt file; says how much of its text the draft vocabulary covers.")
    ] = None,
    prompt_format: Annotated[str | None, typer.Option(help=described("prompt_format"))] = None,
    list_: Annotated[bool, typer.Option("--list", help="List every check with its id.")] = False,
    json: Json = False,
) -> None:
    """Check a drafter's files against its target and against how engines read them. No torch, no GPU.

    Exit codes: 0 clean; 1 a finding of severity warning or above; 2 unusable input.
    """
    from driftscope.check import check_pair, list_checks
    from driftscope.cli.check_text import print_checks, print_report

    needs = {"TARGET": target, "--prompts": prompts, "--prompt-format": prompt_format} if list_ else {}
    if prompts is None and not list_:
        needs = {"--prompt-format": prompt_format}
    for name, value in needs.items():
        if value is not None:
            raise without_effect(
                name, "--list names every check and looks at no files." if list_ else "It needs --prompts: add that."
            )
    if list_:
        listing = list_checks()
        print_json(listing) if json else print_checks(console(), listing)
        return
    if target is None or drafter is None:
        raise InputError(
            f"no {'TARGET' if target is None else 'DRAFTER'} was given",
            code="argument_missing",
            where="driftscope check",
            remedy="driftscope check TARGET DRAFTER, or driftscope check --list",
        )
    from driftscope.builtin import resolve_drafter, resolve_target

    report = check_pair(
        resolve_target(target), resolve_drafter(drafter), prompt_file=prompts, prompt_format=prompt_format
    )
    print_json(report) if json else print_report(console(), report)
    if not report.is_clean:
        raise typer.Exit(1)
