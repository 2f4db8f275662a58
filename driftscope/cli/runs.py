"""`driftscope runs list | recover | verify`: keep run folders in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftscope.cli.console import Json, console, print_json

if TYPE_CHECKING:
    from driftscope.runs import Recovery, RunList, Verification

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A NAME.drift folder.")]


runs = typer.Typer(help="List, recover and verify run folders.", no_args_is_help=True)


@runs.command("list")
def list_command(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder of runs.")] = Path("runs"),
    json: Json = False,
) -> None:
    """The runs in a folder, newest first."""
    from driftscope.runs import list_runs

    listing = list_runs(folder)
    print_json(listing) if json else _print_list(listing)


@runs.command("recover")
def recover_command(run: RunArgument, json: Json = False) -> None:
    """Make a run that was killed or damaged readable again. Deletes nothing but temporary files."""
    from driftscope.runs import recover

    recovery = recover(run)
    print_json(recovery) if json else _print_recovery(recovery)


@runs.command("verify")
def verify_command(run: RunArgument, json: Json = False) -> None:
    """Read every byte of a run and check its numbers against each other. Exit code 1 when a check fails."""
    from driftscope.runs import verify

    verification = verify(run)
    print_json(verification) if json else _print_verification(verification)
    if not verification.is_sound:
        raise typer.Exit(1)


def _print_list(listing: RunList) -> None:
    from rich.table import Table
    from rich.text import Text

    out = console()
    if not listing.runs:
        out.print(f"No runs in {listing.folder}.", markup=False)
        return
    table = Table("run", "status", "engine", "target", "drafters", box=None, pad_edge=False)
    for name in ("prompts", "rounds"):
        table.add_column(name, justify="right")
    table.add_column("made (UTC)")
    for entry in listing.runs:
        if entry.error is not None:
            table.add_row(Text(entry.name), "unreadable")
            continue
        table.add_row(
            Text(entry.name),
            entry.status,
            entry.engine,
            Text(entry.target),
            Text(", ".join(entry.drafters)),
            f"{entry.num_prompts:,}",
            f"{entry.num_rounds:,}",
            entry.created_at[:16].replace("T", " "),
        )
    out.print(table)
    for entry in listing.runs:
        if entry.error is not None:
            out.print(f"\n{entry.error}", markup=False)


def _print_recovery(recovery: Recovery) -> None:
    out = console()
    counts = recovery.counts
    out.print(f"{recovery.path}: {recovery.status}", markup=False)
    out.print(f"  {counts.num_prompts:,} prompts, {counts.num_rounds:,} rounds in {counts.num_parts} parts")
    if recovery.num_temporary_files_removed:
        out.print(f"  {recovery.num_temporary_files_removed} temporary files removed")
    for part in recovery.set_aside:
        out.print(f"  set aside as {part.file}: {part.reason}", markup=False)


def _print_verification(verification: Verification) -> None:
    out = console()
    out.print(f"{verification.path}: {verification.status}", markup=False)
    for check in verification.checks:
        verdict = "FAILED" if check.num_failed else "ok" if check.num_checked else "nothing to check"
        failed = f"{check.num_failed:,} of " if check.num_failed else ""
        out.print(f"  {verdict:<16} {check.statement} ({failed}{check.num_checked:,})", markup=False)
        for example in check.examples:
            out.print(f"{'':<19}{example}", markup=False)
    out.print("Nothing in it contradicts itself." if verification.is_sound else "Do not use these numbers.")
