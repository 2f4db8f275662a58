"""The runs of the chosen folder, and why others cannot be read. Knows no Streamlit and no numbers.

Nothing outside the folder is shown: a run that is a link out of it, or holds one, is listed as refused. A run is named
by its folder's name; names from the URL are looked up in this list and never made into paths.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from driftscope.runs import RunEntry, RunStatus, list_runs
from driftscope.runs.files import RUN_SUFFIX
from probes.errors import DriftscopeError, file_error


@dataclass(frozen=True)
class RunRef:
    """A readable run, as it stood when the folder was listed."""

    name: str
    path: str
    version: str  # changes whenever the run's files do: the key of every cache
    entry: RunEntry

    @property
    def is_live(self) -> bool:
        """Somebody is writing it."""
        return self.entry.status is RunStatus.running


@dataclass(frozen=True)
class Unreadable:
    """A folder that looks like a run and cannot be read as one."""

    name: str
    reason: str


@dataclass(frozen=True)
class FolderContents:
    """Readable runs, newest first, and the others."""

    folder: Path
    runs: list[RunRef]
    unreadable: list[Unreadable]

    def run(self, name: str) -> RunRef | None:
        """The run of that name."""
        return next((run for run in self.runs if run.name == name), None)

    @property
    def drafters(self) -> list[str]:
        """All drafters of the folder, oldest run first: a drafter's place here is its colour."""
        return list(dict.fromkeys(d for run in reversed(self.runs) for d in run.entry.drafters))


def list_folder(folder: Path) -> FolderContents:
    """What lies in `folder`; empty when it does not exist yet. Each run by itself: a bad one costs no other."""
    runs: list[RunRef] = []
    unreadable: list[Unreadable] = []
    try:
        names = sorted(name for name in os.listdir(folder) if Path(name).suffix == RUN_SUFFIX)
    except FileNotFoundError:
        names = []
    except OSError as error:
        names = []
        unreadable.append(Unreadable(folder.name, str(file_error(error))))
    for name in names:
        found = _read(folder, name)
        if isinstance(found, RunRef):
            runs.append(found)
        else:
            unreadable.append(found)
    runs.sort(key=lambda run: run.entry.created_at, reverse=True)
    return FolderContents(folder, runs, unreadable)


def _read(folder: Path, name: str) -> RunRef | Unreadable:
    path = folder / name
    try:
        name.encode()
    except UnicodeEncodeError:
        return Unreadable(name, "its name is not UTF-8: rename it")
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return Unreadable(name, "a file, not a folder: a run is a folder")
        link = _link_out(path, folder)
        if link is not None:
            where = "a link" if link == path else f"{link.relative_to(path)} is a link"
            return Unreadable(name, f"{where} that leads out of this folder: open the app there instead")
        [entry] = list_runs(path).runs
        if entry.error is not None:
            return Unreadable(name, entry.error)
        return RunRef(entry.name, entry.path, run_version(path), entry)
    except DriftscopeError as error:
        return Unreadable(name, str(error))
    except OSError as error:
        return Unreadable(name, str(file_error(error)))


def _link_out(path: Path, folder: Path) -> Path | None:
    """The first link of a run that leads out of `folder`: the run itself, one of its files, or a part."""
    inside = os.path.realpath(folder) + os.sep
    if not os.path.realpath(path).startswith(inside):
        return path
    for below in (path, path / "rounds", path / "depths"):
        if not below.is_dir():
            continue
        with os.scandir(below) as entries:
            for entry in entries:
                if entry.is_symlink() and not os.path.realpath(entry.path).startswith(inside):
                    return Path(entry.path)
    return None


def run_version(path: Path) -> str:
    """Modification times of what is replaced when a run grows or is repaired."""
    parts = []
    for name in ("run.json", "prompts.parquet", "interventions.parquet", "target_states.parquet", "rounds", "depths"):
        try:
            parts.append(str((path / name).stat().st_mtime_ns))
        except OSError:  # not there, or not to be looked at: its reader says which
            parts.append("-")
    return ".".join(parts)
