"""A run in another tool's format, on disk. Nothing that is there is replaced unless that is asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from driftscope.import_export.condition import Selection, walk_of
from driftscope.import_export.profile import speculation_profile
from driftscope.import_export.speculators import acceptance_csv
from driftscope.import_export.tables import OPTIONS, write_tables
from driftscope.runs import Run
from driftscope.runs.files import write_bytes_atomically
from probes.errors import InputError

PROFILE, SPECULATORS = "speculation-profile", "speculators-csv"
FORMATS = (*OPTIONS, PROFILE, SPECULATORS)


def export(run: Run, out: Path, *, format: str, selection: Selection, overwrite: bool = False) -> dict[Path, int]:
    """Writes `out`: a folder of tables, or one file -> rows (rounds, for a file) by path.

    Raises InputError `unknown_export_format`, `output_exists`, those of `walk_of`; RunError for an unreadable part.
    """
    if format not in FORMATS:
        raise InputError(
            f"there is no export format {format!r}",
            code="unknown_export_format",
            where="--to",
            remedy=f"one of {', '.join(FORMATS)}",
        )
    if out.exists() and not overwrite:
        raise InputError(
            "there is something of this name already",
            code="output_exists",
            where=str(out),
            remedy="choose another name, or replace it with --overwrite",
        )
    try:
        if format in OPTIONS:
            return _tables(run, out, format=format, selection=selection)
        walk = walk_of(run, selection)
        if format == PROFILE:
            text = json.dumps(speculation_profile(walk, run.info), indent=2, ensure_ascii=False) + "\n"
        else:
            text = acceptance_csv(walk)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(out, text.encode())
        return {out: int(walk.num_rounds.sum())}
    except OSError as error:
        raise InputError(
            f"the export cannot be written: {error.strerror}",
            code="not_writable",
            where=str(out),
            remedy="choose another place for --out",
        ) from error


def _tables(run: Run, out: Path, *, format: str, selection: Selection) -> dict[Path, int]:
    """Both tables appear together: they are written beside and moved into place."""
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    try:
        written = write_tables(run, unfinished, format=format, selection=selection)
        if not any(written.values()):
            raise InputError(
                "no condition matches",
                code="no_such_condition",
                where=str(run.path),
                remedy="`driftscope show RUN` lists the conditions",
            )
        out.mkdir(mode=0o700, exist_ok=True)
        for name in written:
            (unfinished / name).chmod(0o600)  # as in a run; `out` may be a folder that others look into
            (unfinished / name).replace(out / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return {out / name: rows for name, rows in written.items()}
