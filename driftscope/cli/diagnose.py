"""`driftscope diagnose`: names the cause, from a run or from a target and a drafter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftscope.cli.console import Json, console, print_json
from probes.errors import DriftscopeError, InputError

if TYPE_CHECKING:
    from driftscope.runs import Run

DEFAULT_OUT = Path("runs/diagnose.drift")


def diagnose(
    subject: Annotated[
        list[str],
        typer.Argument(metavar="RUN | TARGET DRAFTER", help="A run, or a target and a drafter (with --prompts)."),
    ],
    prompts: Annotated[str | None, typer.Option(help="Prompt file; with TARGET DRAFTER.")] = None,
    reference_target: Annotated[
        str | None, typer.Option(help="Target that the drafter was trained for, where this one was changed.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run of the same conditions to compare chain decay with.")
    ] = None,
    interventions: Annotated[
        bool, typer.Option("--interventions/--no-interventions", help="Run interventions that the run lacks. [yes]")
    ] = True,
    context_tokens: Annotated[
        str | None, typer.Option(help="With TARGET DRAFTER: document lengths, 0,1024. [0]")
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(help="With TARGET DRAFTER: only the first so many prompts.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="With TARGET DRAFTER: longest response. [128]")] = None,
    depth: Annotated[int | None, typer.Option(help="With TARGET DRAFTER: K, drafts in a round. [7]")] = None,
    dtype: Annotated[str | None, typer.Option(help="With TARGET DRAFTER: float32, bfloat16, float16.")] = None,
    device: Annotated[str | None, typer.Option(help="With TARGET DRAFTER: cpu or cuda.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="With TARGET DRAFTER: the run's folder.")] = DEFAULT_OUT,
    overwrite: Annotated[bool, typer.Option(help="With TARGET DRAFTER: replace an existing run.")] = False,
    json: Json = False,
) -> int:
    """Say why drafts are not accepted: verdicts with evidence, confidence and remedy for every condition.

    Exit codes: 0 every condition is healthy and nothing else; 1 otherwise; 2 unusable input.
    """
    from driftscope.diagnosis.diagnose import diagnose as judge
    from driftscope.runs import read_run

    compared = None if reference is None else read_run(reference)
    if len(subject) == 1:
        path = Path(subject[0])
    elif len(subject) == 2:
        path = out
        options = {
            "prompts": prompts,
            "context_tokens": context_tokens,
            "num_prompts": num_prompts,
            "max_new_tokens": max_new_tokens,
            "depth": depth,
            "dtype": dtype,
            "device": device,
        }
        _measure(subject[0], subject[1], {k: v for k, v in options.items() if v is not None}, out, overwrite)
    else:
        raise InputError(
            f"{len(subject)} arguments were given",
            code="usage",
            where="driftscope diagnose",
            remedy="give a RUN, or TARGET and DRAFTER",
        )
    run = read_run(path)
    if interventions:
        _intervene(run, reference_target)
        run = read_run(path)
    diagnosis = judge(run, compared)
    if json:
        print_json(diagnosis)
    else:
        from driftscope.cli.diagnose_text import print_diagnosis

        print_diagnosis(console(), run, diagnosis)
    return 0 if diagnosis.is_healthy else 1


def _measure(target: str, drafter: str, options: dict[str, Any], out: Path, overwrite: bool) -> None:
    from driftscope.cli.measuring import measured_run
    from driftscope.cli.probe import numbers
    from driftscope.plan import make_plan

    if "context_tokens" in options:
        options["context_tokens"] = numbers(options["context_tokens"])
    plan = make_plan({"target": target, "drafter": {"drafter": drafter}, **options}, where="driftscope diagnose")
    measured_run(plan, out, resume=True, overwrite=overwrite)


def _intervene(run: Run, reference_target: str | None) -> None:
    """Run what the run lacks; where that cannot be done, say why and go on: verdicts then say needs_interventions."""
    from driftscope.builtin import resolve_target
    from driftscope.cli.measuring import follow
    from driftscope.diagnosis.intervene import intervene, missing_interventions, why_not

    reference = None if reference_target is None else resolve_target(reference_target)
    missing = missing_interventions(run, reference_target=reference)
    if not missing:
        return
    reason = why_not(run)
    if reason is None:
        try:
            notes = follow(
                lambda on_status, on_progress: intervene(
                    run.path, missing, reference_target=reference, on_status=on_status, on_progress=on_progress
                )
            )
            for note in notes:
                sys.stderr.write(f"note: {note}\n")
            return
        except DriftscopeError as error:
            if reference is not None or error.exit_code != InputError.exit_code:
                raise  # what was asked for by name must not be left out
            reason = str(error)
    sys.stderr.write(f"interventions were not run: {reason}\n")
