"""Putting a new run in the place of an old one: the old one stays until the new one is complete.

Knows no run contents. The new run of `a.drift` is written beside it, as `a.new.drift`: a run like any other, which can be
looked at, and resumed under that name when it was stopped. When it is complete both change names, the old one goes. A
kill in between is set right by the next writer of `a.drift` (`finish_replacing`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from driftscope.runs.files import DEPTHS, INTERVENTIONS, PROMPTS, ROUNDS, RUN_SUFFIX, SET_ASIDE, SUMMARY, TARGET_STATES
from driftscope.runs.info import RUN_JSON, RunStatus, read_info
from driftscope.runs.lock import WRITER_LOCK, RunLock
from probes.errors import RunError

_OURS = {RUN_JSON, WRITER_LOCK, PROMPTS, INTERVENTIONS, TARGET_STATES, SUMMARY, ROUNDS, DEPTHS}


class Replacement:
    """A run that will be replaced, locked so that nobody goes on with it meanwhile; `path` is where the new one goes."""

    def __init__(self, run: Path) -> None:
        """Raises RunError `not_a_run` or `is_a_link` rather than delete what is no run, `run_is_being_written`, and
        `run_exists` where something else stands at `path`."""
        if run.is_symlink():
            raise RunError(
                "this is a link to a run",
                code="is_a_link",
                where=str(run),
                remedy=f"Overwrite {os.path.realpath(run)} itself, or remove the link.",
            )
        if not (run / RUN_JSON).is_file():
            raise RunError(
                "this is no run, it will not be overwritten",
                code="not_a_run",
                where=str(run),
                remedy="Choose another name.",
            )
        self.run = run
        self.path = successor(run)
        self._lock = RunLock(run)
        try:
            _clear(self.path, run)
        except BaseException:
            self._lock.release()
            raise

    def put_in_place(self) -> None:
        """Give the finished run its name; files of others in the old run's folder move over, the old run goes.

        Raises RunError `run_exists` where somebody took the name at that moment: the new run keeps its own name then.
        """
        self.run.rename(_former(self.run))
        _finish(self.run)
        if self.path.exists():
            raise RunError(
                "another run was begun under this name in the moment of replacing",
                code="run_exists",
                where=str(self.run),
                remedy=f"The complete run is {self.path.name}.",
            )

    def release(self) -> None:
        """Let others write the old run again, where it is still there."""
        self._lock.release()


def finish_replacing(run: Path) -> None:
    """Set right what a kill left half done. Raises RunError `run_is_being_written` where somebody is just at it."""
    former = _former(run)
    if former.is_dir() and not former.is_symlink():
        try:
            with RunLock(former):
                _finish(run)
        except RunError as error:
            if error.code != "run_vanished":  # somebody was quicker
                raise


def _finish(run: Path) -> None:
    former, new = _former(run), successor(run)
    if not run.exists():
        is_done = new.is_dir() and _replaces(new, run) and read_info(new).status is RunStatus.complete
        (new if is_done else former).rename(run)
    if former.exists():
        for entry in former.iterdir():
            if entry.name not in _OURS and SET_ASIDE not in entry.name and not (run / entry.name).exists():
                entry.rename(run / entry.name)
        shutil.rmtree(former)


def _clear(path: Path, run: Path) -> None:
    """Remove what an overwriting of `run` left that was stopped; nothing else."""
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_symlink() and (path / RUN_JSON).is_file():
        with RunLock(path):
            if _replaces(path, run):
                _remove(path)
                return
    raise RunError(
        "overwriting needs this name, and there is something of this name already",
        code="run_exists",
        where=str(path),
        remedy="Rename or remove it.",
    )


def _remove(run: Path) -> None:
    """Under a hidden name first: a kill in between leaves nothing that looks like a run and is half of one."""
    hidden = run.with_name(f".{run.name}.removed")
    if hidden.is_dir() and not hidden.is_symlink():
        shutil.rmtree(hidden)  # of an earlier kill
    run.rename(hidden)
    shutil.rmtree(hidden)


def _replaces(path: Path, run: Path) -> bool:
    return read_info(path).replaces == run.name


def successor(run: Path) -> Path:
    """Where a run that will take the place of `run` is written."""
    return run.with_name(f"{run.name.removesuffix(RUN_SUFFIX)}.new{RUN_SUFFIX}")


def _former(run: Path) -> Path:
    return run.with_name(f".{run.name}.former")
