"""`driftscope schema COMMAND`: the JSON schema of what a command prints with --json."""

from __future__ import annotations

import importlib
import json
from typing import Annotated

import typer
from pydantic import BaseModel

from probes.errors import InputError

OUTPUTS = {
    "check": "driftscope.check:CheckReport",
    "check list": "driftscope.check:CheckList",
    "demo": "driftscope.cli.measuring:MeasureOutput",
    "probe": "driftscope.cli.measuring:MeasureOutput",
    "show": "driftscope.summary:Summary",
    "compare": "driftscope.compare:Comparison",
    "diagnose": "driftscope.diagnosis.diagnosis:Diagnosis",
    "advise": "driftscope.advise:Advice",
    "bench": "driftscope.bench.bench_result:BenchResult",
    "report": "driftscope.cli.report:ReportOutput",
    "import": "driftscope.cli.import_:ImportOutput",
    "export": "driftscope.cli.export:ExportOutput",
    "runs list": "driftscope.runs:RunList",
    "runs recover": "driftscope.runs:Recovery",
    "runs verify": "driftscope.runs:Verification",
    "error": "driftscope.cli.errors:ErrorOutput",
}
"""Command -> "module:Model" of what it prints with --json; imported only when asked for."""


def schema(
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, e.g. `show` or `runs list`; `error` for failures.")
    ] = None,
) -> None:
    """Print the JSON schema of a command's --json. Without a command: the commands that have one."""
    if not command:
        for name in OUTPUTS:
            typer.echo(name)
        return
    name = " ".join(command)
    if name not in OUTPUTS:
        raise InputError(
            f"no command `{name}` prints JSON",
            code="unknown_command",
            where="command line",
            remedy=f"Commands with a schema: {', '.join(OUTPUTS)}.",
        )
    typer.echo(json.dumps(model_of(OUTPUTS[name]).model_json_schema(mode="serialization"), indent=2))


def model_of(path: str) -> type[BaseModel]:
    """The model that "module:Model" names."""
    module, _, name = path.partition(":")
    model: type[BaseModel] = getattr(importlib.import_module(module), name)
    return model
