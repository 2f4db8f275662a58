"""`driftscope export RUN`: a run in another tool's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from driftscope.cli.console import Json, print_json


class ExportedFile(BaseModel):
    """One file and how many rows it holds (rounds, where it holds figures only)."""

    path: str
    num_rows: int


class ExportOutput(BaseModel):
    """`export --json`."""

    schema_version: int = 1
    format: str
    files: list[ExportedFile]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A NAME.drift folder.")],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="parquet, csv (a folder), speculation-profile, speculators-csv.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write for tables, else a file.")],
    drafter: Annotated[str | None, typer.Option(help="Export only this drafter.")] = None,
    system_prompt: Annotated[str | None, typer.Option(help="Export only this system prompt, by name.")] = None,
    template: Annotated[str | None, typer.Option(help="Export only this template, by name.")] = None,
    context_tokens: Annotated[int | None, typer.Option(min=0, help="Export only this context length.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file or folder.")] = False,
    json: Json = False,
) -> None:
    """Write a run's rounds and depths as flat tables, or one condition's acceptance for other tools."""
    from driftscope.import_export.condition import Selection
    from driftscope.import_export.write import export as write
    from driftscope.runs import read_run

    selection = Selection(
        drafter=drafter, system_prompt=system_prompt, template=template, context_tokens=context_tokens
    )
    written = write(read_run(run), out, format=to, selection=selection, overwrite=overwrite)
    if json:
        files = [ExportedFile(path=str(path), num_rows=rows) for path, rows in written.items()]
        print_json(ExportOutput(format=to, files=files))
        return
    for path, rows in written.items():
        typer.echo(f"{path}: {rows:,} {'rows' if out.is_dir() else 'rounds'}")
