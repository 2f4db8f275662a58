"""`driftscope import FILE`: an engine's per-request acceptance metrics -> a run with acceptance columns only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from driftscope.cli.console import Json, console, print_json
from driftscope.cli.measuring import MeasuredRun


class ImportOutput(BaseModel):
    """`import --json`: the run, whose metrics they were, what was left out or is not known."""

    schema_version: int = 1
    run: MeasuredRun
    source: str  # vllm | sglang | aiperf | prometheus
    notes: list[str]


def import_(
    file: Annotated[
        Path,
        typer.Argument(help="vLLM or SGLang answers (JSON Lines), AIPerf's profile_export.jsonl, or a /metrics page."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run; its name ends in .drift. [runs/FILE.drift]")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="vllm, sglang, aiperf or prometheus; detected if not given.")
    ] = None,
    drafter: Annotated[str, typer.Option(help="Name of the drafter that was serving.")] = "drafter",
    system_prompt: Annotated[
        str, typer.Option(help="Name of the system prompt; `prompt` is each request's own.")
    ] = "prompt",
    depth: Annotated[
        int | None, typer.Option(min=1, max=64, help="K, the number of drafts in a round, if the file does not say it.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature of the requests, which no file says.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Keep only the requests of this model.")] = None,
    since: Annotated[Path | None, typer.Option(help="Earlier /metrics page of the same server, to subtract.")] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing run once the new one is complete.")] = False,
    json: Json = False,
) -> None:
    """Make a run from the acceptance metrics that an engine reports, for show, compare and the app."""
    from driftscope.import_export import ImportOptions, read_acceptance, store_run
    from driftscope.runs import read_run

    found = read_acceptance(file, source=source, depth=depth, model=model, since=since)
    path = out if out is not None else Path("runs") / f"{file.stem}.drift"
    options = ImportOptions(drafter=drafter, system_prompt=system_prompt, temperature=temperature)
    notes = store_run(found, path, options, overwrite=overwrite)
    run = read_run(path)
    if json:
        print_json(ImportOutput(run=MeasuredRun.of(run), source=found.source, notes=notes))
        return
    from driftscope.cli.show_text import print_summary
    from driftscope.summary import summarise

    print_summary(console(), run, summarise(run))
