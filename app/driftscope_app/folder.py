"""The runs of the chosen folder, and why others cannot be read. Knows no Streamlit and no numbers.

Nothing outside the folder is shown: a run whose real path leads out of it is listed as refused. A run is named by its
folder's name; names from the URL are looked up in this list and never made into paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from driftscope.runs import RunEntry, RunStatus, list_runs


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
    """What lies in `folder`; empty when it does not exist yet."""
    if not folder.is_dir():
        return FolderContents(folder, [], [])
    runs: list[RunRef] = []
    unreadable: list[Unreadable] = []
    for entry in list_runs(folder).runs:
        path = Path(entry.path)
        if not path.resolve().is_relative_to(folder.resolve()):
            unreadable.append(Unreadable(path.name, "a link that leads out of this folder: open the app there instead"))
        elif entry.error is not None:
            unreadable.append(Unreadable(path.name, entry.error))
        else:
            runs.append(RunRef(entry.name, entry.path, run_version(path), entry))
    return FolderContents(folder, runs, unreadable)


def run_version(path: Path) -> str:
    """Modification times of what is replaced when a run grows or is repaired."""
    parts = []
    for name in ("run.json", "prompts.parquet", "interventions.parquet", "target_states.parquet", "rounds", "depths"):
        try:
            parts.append(str((path / name).stat().st_mtime_ns))
        except FileNotFoundError:
            parts.append("-")
    return ".".join(parts)
