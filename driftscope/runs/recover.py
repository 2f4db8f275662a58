"""Makes a stopped run whole again: `driftscope runs recover`, and the first step of resuming.

Knows no measured values. Nothing that was ever committed is deleted: what cannot be read is renamed (`.set_aside`), only
a killed writer's temporary files go.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pydantic import BaseModel, Field

from driftscope.runs.files import (
    DEPTHS,
    INTERVENTIONS,
    PROMPTS,
    ROUNDS,
    SUMMARY,
    TARGET_STATES,
    part_name,
    part_numbers,
    set_aside,
    temporary_files,
)
from driftscope.runs.info import Counts, RunStatus, read_info, write_info
from driftscope.runs.lock import RunLock
from driftscope.runs.parquet import num_rows, read_batches
from driftscope.runs.reader import SCHEMAS, batches_on_disk
from probes.errors import RunError


class SetAside(BaseModel):
    """A file that was renamed because it cannot be used."""

    file: str  # its new path
    reason: str


class Recovery(BaseModel):
    """What `recover` did, and what the run holds now."""

    schema_version: int = 1
    path: str
    status: RunStatus
    num_temporary_files_removed: int = 0
    set_aside: list[SetAside] = Field(default_factory=list)
    counts: Counts = Field(default_factory=Counts)


def recover(path: str | Path) -> Recovery:
    """Remove temporary files, set aside what cannot be read, recount, and mark a run that was stopped as incomplete.

    A complete run of which everything can be read stays complete. Raises RunError `run_is_being_written` and those of
    `read_info`.
    """
    run = Path(path)
    read_info(run)  # says what is wrong with a path that is no run
    with RunLock(run):
        return recover_locked(run)


def recover_locked(run: Path) -> Recovery:
    """`recover`, for who holds the run's lock."""
    info = read_info(run)
    temporary = temporary_files(run)
    for file in temporary:
        file.unlink()
    aside: list[SetAside] = []
    for place in (run / ROUNDS, run / DEPTHS):
        if not place.is_dir() and (place.exists() or place.is_symlink()):
            aside.append(SetAside(file=str(set_aside(place)), reason="it is not a folder"))
        place.mkdir(mode=0o700, exist_ok=True)

    for table in (PROMPTS, INTERVENTIONS, TARGET_STATES):
        _set_aside_unreadable(run / table, SCHEMAS[table], aside)
    for table in (ROUNDS, DEPTHS):
        for number in part_numbers(run / table):
            _set_aside_unreadable(run / table / part_name(number), SCHEMAS[table], aside)
    rounds, depths = set(part_numbers(run / ROUNDS)), set(part_numbers(run / DEPTHS))
    for number in sorted(rounds ^ depths):  # a part is both or none
        folder, other = (ROUNDS, DEPTHS) if number in rounds else (DEPTHS, ROUNDS)
        aside.append(
            SetAside(
                file=str(set_aside(run / folder / part_name(number))),
                reason=f"there is no {other}/{part_name(number)} that belongs to it",
            )
        )

    parts = part_numbers(run / ROUNDS)
    counts = Counts(
        num_prompts=num_rows(run / PROMPTS, SCHEMAS[PROMPTS]) if (run / PROMPTS).exists() else 0,
        num_batches=len(batches_on_disk(run).keys),
        num_rounds=sum(num_rows(run / ROUNDS / part_name(number), SCHEMAS[ROUNDS]) for number in parts),
        num_depth_rows=sum(num_rows(run / DEPTHS / part_name(number), SCHEMAS[DEPTHS]) for number in parts),
        num_parts=len(parts),
    )
    status = info.status
    if status is RunStatus.running or (status is RunStatus.complete and aside):
        status = RunStatus.incomplete
    if aside and (run / SUMMARY).exists():
        reason = "it was made from parts that are set aside"
        aside.append(SetAside(file=str(set_aside(run / SUMMARY)), reason=reason))
    tried = [] if any(Path(part.file).name.startswith(INTERVENTIONS) for part in aside) else info.interventions
    notes = [*info.notes, *(f"{Path(part.file).relative_to(run)}: {part.reason}" for part in aside)]
    write_info(
        run, info.model_copy(update={"status": status, "counts": counts, "notes": notes, "interventions": tried})
    )
    return Recovery(
        path=str(run), status=status, num_temporary_files_removed=len(temporary), set_aside=aside, counts=counts
    )


def _set_aside_unreadable(file: Path, schema: pa.Schema, aside: list[SetAside]) -> None:
    if not file.exists():
        return
    try:
        for _ in read_batches(file, schema):
            pass
    except RunError as error:
        aside.append(SetAside(file=str(set_aside(file)), reason=error.message))
