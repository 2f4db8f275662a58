"""`driftscope report RUN ... -o F.html`: one self-contained, offline HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from driftscope.cli.console import Json, print_json


class ReportOutput(BaseModel):
    """`report --json`."""

    schema_version: int = 1
    path: str
    num_bytes: int
    num_runs: int
    num_figures: int
    has_text: bool  # words of the prompts are in the file


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="One or several NAME.drift folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="F.html", help="File to write.")],
    text: Annotated[
        bool, typer.Option("--text/--no-text", help="Include words of the prompts in the worst rounds.")
    ] = True,
    overwrite: Annotated[bool, typer.Option(help="Replace the file even if it is not a report.")] = False,
    json: Json = False,
) -> None:
    """Write one HTML file that opens anywhere without a network: verdicts first, then figures, numbers, provenance."""
    from driftscope.report import write_report

    written, num_bytes = write_report(runs, out, with_text=text, overwrite=overwrite)
    if json:
        print_json(
            ReportOutput(
                path=str(out),
                num_bytes=num_bytes,
                num_runs=written.num_runs,
                num_figures=written.num_figures,
                has_text=written.has_text,
            )
        )
        return
    words = "with words of the prompts" if written.has_text else "without text"
    typer.echo(f"{out}: {num_bytes / 1e6:.1f} MB, {written.num_figures} figures, {words}")
