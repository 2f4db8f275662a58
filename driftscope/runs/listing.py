"""Which runs a folder holds: `driftscope runs list`, and the app's start page.

Reads run.json only. A run whose run.json cannot be read is listed with the reason, never left out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from driftscope.runs.files import RUN_SUFFIX
from driftscope.runs.info import RunStatus
from driftscope.runs.reader import read_run
from probes.errors import InputError, RunError, bounded, file_error

MAX_PATH = 4_096  # characters; Linux opens no longer path


class RunEntry(BaseModel):
    """One run; everything after `error` is as run.json says, empty when it cannot be read."""

    path: str
    name: str
    error: str | None = None
    status: RunStatus | None = None
    engine: str = ""
    target: str = ""
    drafters: list[str] = Field(default_factory=list)
    num_prompts: int = 0
    num_rounds: int = 0
    created_at: str = ""
    updated_at: str = ""


class RunList(BaseModel):
    """`driftscope runs list --json`."""

    schema_version: int = 1
    folder: str
    runs: list[RunEntry]


def list_runs(folder: str | Path) -> RunList:
    """Runs in `folder` (NAME.drift, not deeper), newest first; `folder` itself when it is a run.

    Raises RunError `folder_not_found`.
    """
    root = Path(folder)
    if not root.is_dir():
        raise RunError(
            "there is no such folder", code="folder_not_found", where=str(root), remedy="Give a folder that holds runs."
        )
    paths = [root] if root.suffix == RUN_SUFFIX else [p for p in root.iterdir() if p.suffix == RUN_SUFFIX]
    entries = sorted((_entry(path) for path in paths), key=lambda entry: entry.name)
    entries.sort(key=lambda entry: entry.created_at, reverse=True)
    return RunList(folder=str(root), runs=entries)


def _entry(path: Path) -> RunEntry:
    """Whatever stands there costs this run its row's text, never the others theirs."""
    try:
        os.fsencode(path).decode()
        if not path.is_dir():
            return _unreadable(path, "a file, not a folder: a run is a folder")
        run = read_run(path)
    except UnicodeDecodeError:
        return _unreadable(path, "the name of this folder is not UTF-8: rename it")
    except InputError as error:
        return _unreadable(path, str(error))
    except OSError as error:
        return _unreadable(path, str(file_error(error)))
    info = run.info
    return RunEntry(
        path=str(path),
        name=path.stem,
        status=run.status,
        engine=info.engine,
        target=info.target.name,
        drafters=[drafter.name for drafter in info.drafters],
        num_prompts=info.counts.num_prompts,
        num_rounds=info.counts.num_rounds,
        created_at=info.created_at,
        updated_at=info.updated_at,
    )


def _unreadable(path: Path, reason: str) -> RunEntry:
    shown = Path(bounded(str(path), MAX_PATH))
    return RunEntry(path=str(shown), name=shown.stem, error=reason)


def names_apart(paths: Sequence[Path]) -> list[str]:
    """A name for each run: its folder's without .drift, behind as many folders as tell it from the others; numbered
    where a path is given twice."""
    real = [Path(os.path.realpath(path)) for path in paths]
    parts = [(*path.parent.parts, path.name.removesuffix(RUN_SUFFIX) or RUN_SUFFIX) for path in real]
    names = []
    for index, own in enumerate(parts):
        others = [other for other in parts if other != own]
        num_shown = next(n for n in range(1, len(own) + 1) if all(other[-n:] != own[-n:] for other in others))
        name = str(Path(*own[-num_shown:]))
        before = parts[:index].count(own)
        names.append(f"{name} ({before + 1})" if before else name)
    return names
