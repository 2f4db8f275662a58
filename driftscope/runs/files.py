"""Files of a run folder: names of parts, and writing so that a kill at any moment leaves whole files only.

Knows no columns. A file is written under a temporary name, synced, renamed, and its folder synced: readers see the old
file or the new one, never half of one. Temporary names start with a dot and never end in .parquet, so a glob over
`*.parquet` does not meet them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probes.errors import RunError

RUN_SUFFIX = ".drift"
PROMPTS = "prompts.parquet"
INTERVENTIONS = "interventions.parquet"
TARGET_STATES = "target_states.parquet"
SUMMARY = "summary.parquet"
ROUNDS = "rounds"
DEPTHS = "depths"
SET_ASIDE = ".set_aside"
TEMPORARY = ".tmp"

_PART = re.compile(r"part-([0-9]{6,})\.parquet")


def part_name(number: int) -> str:
    """The file name of part `number`, the same in rounds/ and depths/."""
    return f"part-{number:06d}.parquet"


def part_numbers(folder: Path) -> list[int]:
    """Numbers of the parts in `folder`, ascending; empty when it does not exist."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise RunError(
            "this is a file where a run has a folder of parts",
            code="not_a_folder",
            where=str(folder),
            remedy="Restore it from a copy of the run.",
        ) from error
    matches = (_PART.fullmatch(name) for name in names)
    return sorted(number for match in matches if match and part_name(number := int(match[1])) == match[0])


def refuse_links_out(run: Path) -> None:
    """Raises RunError `link_out` when something in the run is a link that leads out of its folder: neither is what lies
    there shown as the run's, nor is it written to."""
    own = os.path.realpath(run)
    for folder in (run, run / ROUNDS, run / DEPTHS):
        try:
            links = [entry.path for entry in os.scandir(folder) if entry.is_symlink()]
        except (FileNotFoundError, NotADirectoryError):  # said where the folder is needed
            continue
        for link in links:
            if not os.path.realpath(link).startswith(own + os.sep):
                raise RunError(
                    "this is a link that leads out of the run",
                    code="link_out",
                    where=link,
                    remedy="Put the file itself in its place, or remove the link.",
                )


def next_part_number(run: Path) -> int:
    """A number that no part has, nor had before it was set aside."""
    numbers = [-1]
    for folder in (run / ROUNDS, run / DEPTHS):
        if folder.is_dir():
            matches = (_PART.match(entry.name) for entry in folder.iterdir())
            numbers += [int(match[1]) for match in matches if match]
    return max(numbers) + 1


def temporary_files(run: Path) -> list[Path]:
    """What a killed writer left under temporary names."""
    folders = [folder for folder in (run, run / ROUNDS, run / DEPTHS) if folder.is_dir()]
    found = (e for f in folders for e in f.iterdir() if e.name.startswith(".") and e.name.endswith(TEMPORARY))
    return sorted(e for e in found if e.is_symlink() or not e.is_dir())


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Let `write` fill a binary file object; the result appears at `path` in one step and survives a power cut."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """`write_atomically` for bytes at hand."""
    write_atomically(path, lambda file: file.write(content))


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that no reader meets it and nothing is lost. Returns the new path."""
    new = path.with_name(path.name + SET_ASIDE)
    number = 1
    while new.exists():
        number += 1
        new = path.with_name(f"{path.name}{SET_ASIDE}.{number}")
    path.rename(new)
    sync_folder(path.parent)
    return new
