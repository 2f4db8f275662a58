"""`driftscope diagnose`: names the cause, from a run or from a target and a drafter."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftscope.builtin import resolve_target
from driftscope.cli.console import Json, console, print_json, without_effect
from driftscope.cli.plan_options import plan_options
from driftscope.plan import Plan, flag, make_plan
from probes.errors import DriftscopeError, InputError, quotes_hidden

if TYPE_CHECKING:
    from driftscope.diagnosis.named import Named
    from driftscope.runs import Run

DEFAULT_OUT = Path("runs/diagnose.drift")
LOADING = ("dtype", "device", "trust_remote_code")
MEASURING = ("prompts", "context_tokens", "num_prompts", "max_new_tokens", "depth")


@plan_options(
    {
        "target": "With RUN only, in place of the one that the run names.",
        "drafter": "With RUN only, in place of the one of this name that the run names.",
        "reference_target": "",
        "dtype": "With RUN, the run's if not given.",
        "device": "With RUN, the run's if not given.",
        "trust_remote_code": "",
        **dict.fromkeys(MEASURING, "With TARGET DRAFTER only."),
    }
)
def diagnose(
    subject: Annotated[
        list[str],
        typer.Argument(metavar="RUN | TARGET DRAFTER", help="A run, or a target and a drafter (with --prompts)."),
    ],
    interventions: Annotated[
        bool | None,
        typer.Option(
            "--interventions/--no-interventions",
            help="With RUN: load what the run names and run the interventions that it lacks. [asks in a terminal; does "
            "not ask if everything it names ships with driftscope]",
        ),
    ] = None,
    *,
    given: dict[str, Any],
    reference: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run of the same conditions to compare chain decay with.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=f"With TARGET DRAFTER: folder of the run. [{DEFAULT_OUT}]")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With TARGET DRAFTER: replace an existing run.")
    ] = False,
    json: Json = False,
) -> int:
    """Say why drafts are not accepted: verdicts with evidence, confidence and remedy for every condition.

    A run may be anybody's: of what it names, only what ships with driftscope is loaded without asking
    (docs/security.md). Exit codes: 0 every condition is healthy; 1 otherwise; 2 unusable input.
    """
    from driftscope.diagnosis.diagnose import diagnose as judge
    from driftscope.runs import read_run

    if interventions is False:
        _refuse(given, ("reference_target",), "Only interventions read it: leave --no-interventions out.")
    if "reference_target" in given:
        given["reference_target"] = resolve_target(given["reference_target"])
    compared = None if reference is None else read_run(reference)
    if len(subject) == 1:
        path = Path(subject[0])
        run = read_run(path)
        of_new = given | {"out": out} | ({"overwrite": True} if overwrite else {})
        _refuse(
            of_new, (*MEASURING, "out", "overwrite"), "It is for a new measurement: give TARGET DRAFTER, not a run."
        )
        if interventions is False:
            _refuse(given, ("target", "drafter", *LOADING), "Nothing is loaded with --no-interventions.")
        else:
            _intervene(run, given, is_asked=bool(interventions), may_ask=not json)
    elif len(subject) == 2:
        _refuse(given, ("target", "drafter"), "TARGET and DRAFTER are named already.")
        path = DEFAULT_OUT if out is None else out
        _measure(subject[0], subject[1], given, path, overwrite=overwrite, interventions=interventions)
    else:
        raise InputError(
            f"{len(subject)} arguments were given",
            code="usage",
            where="driftscope diagnose",
            remedy="Give a RUN, or TARGET and DRAFTER.",
        )
    run = read_run(path)
    diagnosis = judge(run, compared)
    if json:
        print_json(diagnosis)
    else:
        from driftscope.cli.diagnose_text import print_diagnosis

        print_diagnosis(console(), run, diagnosis)
    return 0 if diagnosis.is_healthy else 1


def _refuse(given: Mapping[str, Any], names: Sequence[str], reason: str) -> None:
    """Raises InputError for the first of these options that was given."""
    for name in names:
        if given.get(name) not in (None, False):
            raise without_effect(flag(name), reason)


def _drafters(run: Run, named: list[str]) -> dict[str, str]:
    """NAME=PATH options by name. Raises InputError for a name that the run has not."""
    drafters = make_plan({"target": ""}, {"drafter": named}, where="").drafter if named else {}
    known = [drafter.name for drafter in run.info.drafters]
    for name in drafters:
        if name not in known:
            raise InputError(
                f"the run has no drafter {name!r}",
                code="no_such_drafter",
                where="--drafter",
                remedy=f"It has {', '.join(known) or 'none'}.",
            )
    return drafters


def _measure(
    target: str, drafter: str, given: Mapping[str, Any], out: Path, *, overwrite: bool, interventions: bool | None
) -> None:
    """Measure `out`, as far as it is not there already, with interventions: all that is named is on the command line."""
    from driftscope.cli.measuring import measured_run
    from driftscope.diagnosis.intervene import missing_interventions, why_not
    from driftscope.runs import read_run

    options = {name: value for name, value in given.items() if name != "reference_target"}
    named = {"target": target, "drafter": {"drafter": drafter}}
    plan = make_plan(named, options, where="driftscope diagnose")
    measured_run(plan, out, resume=True, overwrite=overwrite)
    if interventions is False:
        return
    run, reference_target = read_run(out), given.get("reference_target")
    is_error = bool(interventions) or reference_target is not None
    missing = missing_interventions(run, reference_target=reference_target)
    if missing and (reason := why_not(run)) is not None:
        _left_out(reason, is_error=is_error)
    elif missing:
        _run(run, missing, plan, reference_target, is_error=is_error)


def _intervene(run: Run, given: Mapping[str, Any], *, is_asked: bool, may_ask: bool) -> None:
    """Run what the run lacks, where its user agrees to what it names; else say what that would be and go on: verdicts
    then say needs_interventions.

    What the command line names replaces what the run names. Raises InputError where what was asked for cannot be done.
    """
    from driftscope.diagnosis.intervene import look_at_files, missing_interventions, why_not
    from driftscope.diagnosis.named import named_in, named_model, refuse_inside_runs, replaced, stored_plan
    from driftscope.plan_files import read_job
    from driftscope.runs.lock import RunLock

    target, reference_target = given.get("target"), given.get("reference_target")
    drafters = _drafters(run, given.get("drafter", []))
    loading = {name: given[name] for name in LOADING if given.get(name)}
    is_error = is_asked or bool(target or drafters or loading or reference_target)
    missing = missing_interventions(run, reference_target=reference_target)
    if not missing and not is_error:
        return
    if (reason := why_not(run)) is not None:
        _left_out(reason, is_error=is_error)
        return
    plan = replaced(stored_plan(run), target=target, drafters=drafters, options=loading)
    named = named_in(plan)
    given_now = [*(["target"] if target else []), *(f"drafter {name}" for name in drafters)]
    if not _may_load(run, named, given_now, is_asked=is_asked, may_ask=may_ask, is_error=is_error):
        return
    refuse_inside_runs(named + ([named_model("reference target", reference_target)] if reference_target else []))
    if not missing:
        sys.stderr.write("note: the run lacks no intervention: only its models' files were checked\n")
        with RunLock(run.path):
            look_at_files(run.path, read_job(plan)[0])
        return
    _run(run, missing, plan, reference_target, is_error=is_error)


def _may_load(
    run: Run, named: Sequence[Named], given_now: Sequence[str], *, is_asked: bool, may_ask: bool, is_error: bool
) -> bool:
    """Whether the user agrees to what the run names; what it would be is shown. Raises InputError with `is_error`."""
    from driftscope.cli.consent import agreed, show, show_named
    from driftscope.diagnosis.named import not_builtin

    if is_asked:
        show_named(named)
        return True
    foreign = not_builtin(named, given_now)
    if not foreign or (may_ask and agreed(foreign)):
        return True
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
    return False


def _run(run: Run, missing: list[str], plan: Plan, reference_target: str | None, *, is_error: bool) -> None:
    from driftscope.cli.measuring import follow
    from driftscope.diagnosis.intervene import intervene
    from driftscope.plan_files import read_job

    try:
        with quotes_hidden(plan.keeps_texts_private):
            job, _ = read_job(plan)
            job = replace(job, reference_target=reference_target)
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


def _left_out(reason: str, *, is_error: bool) -> None:
    """Say that no intervention was run. Raises InputError where they were asked for."""
    if is_error:
        raise InputError(
            f"interventions cannot be run: {reason}",
            code="no_interventions",
            remedy="Leave out --interventions and its options to judge what the run holds.",
        )
    sys.stderr.write(f"interventions were not run: {reason}\n")
