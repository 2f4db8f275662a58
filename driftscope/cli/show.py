"""`driftscope show RUN`: the summary of a run, as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.console import Json, console, print_json


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A NAME.drift folder.")],
    json: Json = False,
) -> None:
    """Print what a run measured: acceptance, norms, attention and fusion shares by drafter, condition and depth."""
    from driftscope.runs import read_run
    from driftscope.summary import summarise

    stored = read_run(run)
    summary = summarise(stored)
    if json:
        print_json(summary)
    else:
        from driftscope.cli.show_text import print_summary

        print_summary(console(), stored, summary)
