"""`driftscope diagnose`: names the cause, from a run or from a target and a drafter."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftscope.cli.console import Json, console, print_json
from probes.errors import DriftscopeError, InputError, quotes_hidden

if TYPE_CHECKING:
    from driftscope.plan import Plan
    from driftscope.runs import Run

DEFAULT_OUT = Path("runs/diagnose.drift")


def diagnose(
    subject: Annotated[
        list[str],
        typer.Argument(metavar="RUN | TARGET DRAFTER", help="A run, or a target and a drafter (with --prompts)."),
    ],
    interventions: Annotated[
        bool | None,
        typer.Option(
            "--interventions/--no-interventions",
            help="With RUN: load what the run names, and run the interventions that it lacks. [asked in a terminal; "
            "without asking where all that it names ships with driftscope]",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="With RUN: the target to load, in place of the one that the run names.")
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="With RUN: a drafter of the run, in place of where the run has it."),
    ] = None,
    reference_target: Annotated[
        str | None, typer.Option(help="Target that the drafter was trained for, where this one was changed.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run of the same conditions to compare chain decay with.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16. [the run's, else float32]")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [the run's, else cpu]")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let the target's repository run its own code.")
    ] = False,
    prompts: Annotated[str | None, typer.Option(help="With TARGET DRAFTER: prompt file.")] = None,
    context_tokens: Annotated[
        str | None, typer.Option(help="With TARGET DRAFTER: document lengths, 0,1024. [0]")
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(help="With TARGET DRAFTER: only the first so many prompts.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="With TARGET DRAFTER: longest response. [128]")] = None,
    depth: Annotated[int | None, typer.Option(help="With TARGET DRAFTER: K, drafts in a round. [7]")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=f"With TARGET DRAFTER: the run's folder. [{DEFAULT_OUT}]")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With TARGET DRAFTER: replace an existing run.")
    ] = False,
    json: Json = False,
) -> int:
    """Say why drafts are not accepted: verdicts with evidence, confidence and remedy for every condition.

    A run may be anybody's: of what it names, only what ships with driftscope is loaded unasked (docs/security.md).
    Exit codes: 0 every condition is healthy and nothing else; 1 otherwise; 2 unusable input.
    """
    from driftscope.diagnosis.diagnose import diagnose as judge
    from driftscope.runs import read_run

    loading = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code or None}
    measuring = {
        "prompts": prompts,
        "context_tokens": context_tokens,
        "num_prompts": num_prompts,
        "max_new_tokens": max_new_tokens,
        "depth": depth,
    }
    naming = {"target": target, "drafter": drafter}
    if interventions is False:
        _refuse({"reference_target": reference_target}, "it is read by interventions: leave --no-interventions out")
    compared = None if reference is None else read_run(reference)
    if len(subject) == 1:
        only_new = {**measuring, "out": out, "overwrite": overwrite or None}
        _refuse(only_new, "it is of a new measurement: give TARGET DRAFTER in place of a run")
        if interventions is False:
            _refuse({**naming, **loading}, "nothing is loaded with --no-interventions")
        path = Path(subject[0])
        run = read_run(path)
        if interventions is not False:
            _intervene(
                run,
                given(loading),
                target=target,
                drafters=_drafters(run, drafter),
                reference_target=reference_target,
                is_asked=bool(interventions),
                may_ask=not json,
            )
    elif len(subject) == 2:
        _refuse(naming, "TARGET and DRAFTER are named already")
        path = DEFAULT_OUT if out is None else out
        plan = _measured_plan(subject[0], subject[1], given({**measuring, **loading}), path, overwrite)
        if interventions is not False:
            _intervene_on_own(read_run(path), plan, reference_target, is_asked=bool(interventions))
    else:
        raise InputError(
            f"{len(subject)} arguments were given",
            code="usage",
            where="driftscope diagnose",
            remedy="give a RUN, or TARGET and DRAFTER",
        )
    run = read_run(path)
    diagnosis = judge(run, compared)
    if json:
        print_json(diagnosis)
    else:
        from driftscope.cli.diagnose_text import print_diagnosis

        print_diagnosis(console(), run, diagnosis)
    return 0 if diagnosis.is_healthy else 1


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Without those that were left out."""
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: dict[str, Any], reason: str) -> None:
    """Raises InputError for the first option that was given."""
    for name in given(options):
        flag = "--" + name.replace("_", "-")
        raise InputError(f"{flag} has no effect here", code="option_without_effect", where=flag, remedy=f"{reason}.")


def _drafters(run: Run, named: list[str] | None) -> dict[str, str]:
    """NAME=PATH options by name. Raises InputError for a name that the run has not."""
    from driftscope.cli.probe import named_paths

    paths = {name: str(path) for name, path in (named_paths(named, "--drafter", ()) or {}).items()}
    known = [drafter.name for drafter in run.info.drafters]
    for name in paths:
        if name not in known:
            raise InputError(
                f"the run has no drafter {name!r}",
                code="no_such_drafter",
                where="--drafter",
                remedy=f"it has {', '.join(known) or 'none'}",
            )
    return paths


def _measured_plan(target: str, drafter: str, options: dict[str, Any], out: Path, overwrite: bool) -> Plan:
    """Measure `out`, as far as it is not there already -> from which plan."""
    from driftscope.cli.measuring import measured_run
    from driftscope.cli.probe import numbers
    from driftscope.plan import make_plan

    if "context_tokens" in options:
        options["context_tokens"] = numbers(options["context_tokens"])
    plan = make_plan({"target": target, "drafter": {"drafter": drafter}, **options}, where="driftscope diagnose")
    measured_run(plan, out, resume=True, overwrite=overwrite)
    return plan


def _intervene_on_own(run: Run, plan: Plan, reference_target: str | None, *, is_asked: bool) -> None:
    """On a run of the plan that stands on the command line: all that it names is named now."""
    from driftscope.diagnosis.intervene import missing_interventions, why_not

    missing = missing_interventions(run, reference_target=_resolved(reference_target))
    if missing and (reason := why_not(run)) is not None:
        _left_out(reason, is_error=is_asked or reference_target is not None)
    elif missing:
        _run(run, missing, plan, reference_target, is_error=is_asked or reference_target is not None)


def _intervene(
    run: Run,
    loading: dict[str, Any],
    *,
    target: str | None,
    drafters: dict[str, str],
    reference_target: str | None,
    is_asked: bool,
    may_ask: bool,
) -> None:
    """Run what the run lacks, where its user agrees to what it names; else say what that would be and go on: verdicts
    then say needs_interventions.

    What the command line names replaces what the run names. Raises InputError where what was asked for cannot be done.
    """
    from driftscope.cli.consent import agreed, show, show_named
    from driftscope.diagnosis.intervene import look_at_files, missing_interventions, why_not
    from driftscope.diagnosis.named import (
        named_in,
        named_model,
        not_builtin,
        refuse_inside_runs,
        replaced,
        stored_plan,
    )
    from driftscope.runs.lock import RunLock

    is_error = is_asked or bool(target or drafters or loading or reference_target)
    missing = missing_interventions(run, reference_target=_resolved(reference_target))
    if not missing and not is_error:
        return
    if (reason := why_not(run)) is not None:
        _left_out(reason, is_error=is_error)
        return
    plan = replaced(stored_plan(run), target=target, drafters=drafters, options=loading)
    named = named_in(plan)
    given_now = [*(["target"] if target else []), *(f"drafter {name}" for name in drafters)]
    foreign = not_builtin(named, given_now)
    if is_asked:
        show_named(named)
    elif foreign and not (may_ask and agreed(foreign)):
        reason = "the run names models or files that do not come with driftscope"
        if is_error:  # an option was given that only loading has a use for
            show(run.path, foreign)
            raise InputError(
                f"interventions were not run: {reason}",
                code="not_agreed",
                where=str(run.path),
                remedy="Add --interventions, or name them: --target T --drafter NAME=PATH.",
            )
        _left_out(reason, is_error=False)
        show(run.path, foreign)
        return
    refuse_inside_runs(named + ([named_model("reference target", reference_target)] if reference_target else []))
    if not missing:
        sys.stderr.write("note: the run lacks no intervention: of its models only the files were looked at\n")
        with RunLock(run.path):
            look_at_files(run.path, plan.job()[0])
        return
    _run(run, missing, plan, reference_target, is_error=is_error)


def _run(run: Run, missing: list[str], plan: Plan, reference_target: str | None, *, is_error: bool) -> None:
    from driftscope.cli.measuring import follow
    from driftscope.diagnosis.intervene import intervene

    try:
        with quotes_hidden(plan.keeps_texts_private):
            job, _ = plan.job()
            job = replace(job, reference_target=_resolved(reference_target))
            notes = follow(
                lambda on_status, on_progress: intervene(
                    run.path, missing, job, on_status=on_status, on_progress=on_progress
                )
            )
    except DriftscopeError as error:
        if is_error or error.exit_code != InputError.exit_code:
            raise  # what was asked for by name must not be left out
        _left_out(str(error), is_error=False)
        return
    for note in notes:
        sys.stderr.write(f"note: {note}\n")


def _resolved(reference_target: str | None) -> str | None:
    from driftscope.builtin import resolve_target

    return None if reference_target is None else resolve_target(reference_target)


def _left_out(reason: str, *, is_error: bool) -> None:
    """Say that no intervention was run. Raises InputError where they were asked for."""
    if is_error:
        raise InputError(
            f"interventions cannot be run: {reason}",
            code="no_interventions",
            remedy="Leave --interventions and what belongs to it out to judge what the run holds.",
        )
    sys.stderr.write(f"interventions were not run: {reason}\n")
