"""`driftscope probe`: makes a run from options, a plan file, or both (options win)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from driftscope.cli.console import Json
from driftscope.cli.measuring import make_run
from driftscope.cli.plan_options import ON_COMMAND_LINE, plan_options
from driftscope.plan import make_plan
from driftscope.plan_files import read_plan
from probes.errors import InputError

DEFAULT_OUT = Path("runs/probe.drift")


@plan_options(ON_COMMAND_LINE)
def probe(
    plan: Annotated[Path | None, typer.Argument(help="TOML file with these options, underscores for dashes.")] = None,
    *,
    given: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run; its name ends in .drift.")] = DEFAULT_OUT,
    resume: Annotated[bool, typer.Option(help="Go on with a run that was stopped.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing run once the new one is complete.")] = False,
    json: Json = False,
) -> None:
    """Measure drafters under system prompts, templates and context lengths, and write a run.

    Exit codes: 0; 2 unusable input; 3 the numbers contradict themselves (self-check).
    """
    if resume and overwrite:
        raise InputError(
            "--resume keeps the run that is there, --overwrite replaces it",
            code="usage",
            where="command line",
            remedy="Choose one.",
        )
    options = read_plan(plan, trust_remote_code=given.get("trust_remote_code", False)) if plan is not None else {}
    checked = make_plan(options, given, where=str(plan or "driftscope probe"))
    make_run(checked, out, resume=resume, overwrite=overwrite, as_json=json)
