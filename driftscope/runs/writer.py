"""Writes a run: takes the records that a measuring part yields, leaves whole files on disk at every moment.

Knows no engine. A batch (one prompt with one drafter) lies whole in one part. Order of every flush: prompts.parquet,
depths/part-N, rounds/part-N, run.json. The rounds part commits: a depths part without its rounds part was never
finished and no reader looks at it; rounds never refer to a prompt that is not on disk.

prompts.parquet is rewritten whole when prompts were added, so that it is one file at every moment; the time between
flushes stretches with what a flush costs, which bounds all writing to about a tenth of the run.

The run's lock is taken before anything is looked at and held until the writer is left: `driftscope.runs.lock`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from driftscope.runs.files import DEPTHS, PROMPTS, ROUNDS, RUN_SUFFIX, next_part_number, part_name, part_numbers
from driftscope.runs.info import RUN_JSON, RunInfo, RunStatus, read_info, write_info
from driftscope.runs.lock import RunLock
from driftscope.runs.parquet import read_table, write_table
from driftscope.runs.reader import batches_on_disk, prompt_keys
from driftscope.runs.recover import Recovery, recover_locked
from driftscope.runs.replace import Replacement, finish_replacing
from driftscope.runs.schema import PROMPT_SCHEMA, BatchKey, PromptKey
from driftscope.runs.to_arrow import batch_key, depth_table, prompt_key, prompt_table, round_table
from probes.errors import RunError
from probes.record import PromptRecord, Record

FLUSH_ROUNDS = 2_000
FLUSH_SECONDS = 5.0
FLUSH_COST_RATIO = 10  # seconds of work between flushes for each second that the last flush took


class RunWriter:
    """A run being written; use it as a context manager.

    Leaving it without an error marks the run complete, on KeyboardInterrupt incomplete, on another error failed; what
    was given to `write_batch` before is on disk in each case. A killed process leaves the run `running` with a dead
    writer, which every reader recognises.
    """

    complete_batches: set[BatchKey]
    """Batches that are written; a resumed job leaves them out. One without a single round leaves no trace here."""
    recovery: Recovery | None
    """What resuming had to set right first; None for a new run."""

    def __init__(self, path: str | Path, info: RunInfo, *, overwrite: bool = False) -> None:
        """Create the folder `path` (its name ends in .drift). With `overwrite`, a run that is there is replaced when
        this one is complete, and until then it is written beside it: see `driftscope.runs.replace`.

        Raises RunError `bad_run_name`, `run_exists` when it is there and `overwrite` is not asked for,
        `run_is_being_written`, `not_a_run` rather than delete what is no run.
        """
        run = Path(path)
        if run.suffix != RUN_SUFFIX:
            raise RunError(
                f"a run's name ends in {RUN_SUFFIX}",
                code="bad_run_name",
                where=str(run),
                remedy=f"Call it {run.name}{RUN_SUFFIX}.",
            )
        finish_replacing(run)
        is_there = run.exists() or run.is_symlink()
        if is_there and not overwrite:
            raise _exists(run)
        replacement = Replacement(run) if is_there else None
        now = _now()
        replaces = None if replacement is None else run.name
        times = {"created_at": now, "updated_at": now}
        info = info.model_copy(update={"status": RunStatus.running, "replaces": replaces, **times})
        new = run if replacement is None else replacement.path
        try:
            lock = _create(new, info)
        except BaseException:
            if replacement is not None:
                replacement.release()
            raise
        self._start(new, info, lock, replacement)

    @classmethod
    def resume(cls, path: str | Path, *, plan: Mapping[str, Any] | None = None) -> Self:
        """Go on with a run that was stopped. Repairs it first (`recovery` says what was done), then appends.

        With `plan` given, it must equal the stored one. Raises RunError `run_is_being_written`, `plan_differs`, and
        those of `read_info`.
        """
        run = Path(path)
        finish_replacing(run)
        read_info(run)  # says what is wrong with a path that is no run
        lock = RunLock(run)
        try:
            return cls._resumed(run, lock, plan)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _resumed(cls, run: Path, lock: RunLock, plan: Mapping[str, Any] | None) -> Self:
        info = read_info(run)
        if plan is not None and dict(plan) != info.plan:
            names = sorted(k for k in {*plan, *info.plan} if plan.get(k) != info.plan.get(k))
            raise RunError(
                f"the run was started with another plan (it differs in {', '.join(names)})",
                code="plan_differs",
                where=str(run / RUN_JSON),
                remedy="Resume with the same options, write to another folder, or replace it with --overwrite.",
            )
        recovery = recover_locked(run)
        info = read_info(run)
        writer = cls.__new__(cls)
        update = {"status": RunStatus.running, "finished_at": None, "error": None, "replaces": None}
        writer._start(run, info.model_copy(update=update), lock, None)
        writer.recovery = recovery
        if (run / PROMPTS).exists():
            prompts = read_table(run / PROMPTS, PROMPT_SCHEMA)
            hashes = prompts["token_ids_sha256"].to_pylist()
            writer._prompts = [prompts]
            writer._prompt_hashes = dict(zip(prompt_keys(prompts), hashes, strict=True))
        on_disk = batches_on_disk(run)
        writer.complete_batches = set(on_disk.keys)
        writer._next_round_id = on_disk.last_round_id + 1
        writer._part_number = next_part_number(run)
        writer._parts = set(part_numbers(run / ROUNDS))
        write_info(run, writer._info)
        return writer

    def _start(self, run: Path, info: RunInfo, lock: RunLock, replacement: Replacement | None) -> None:
        self.path = run
        self._lock = lock
        self._replacement = replacement
        self.complete_batches = set()
        self.recovery = None
        self._info = info
        self._prompts: list[pa.Table] = []  # all of the run
        self._prompt_hashes: dict[PromptKey, str] = {}  # of their token ids
        self._has_new_prompts = False
        self._buffer: list[tuple[pa.Table, pa.Table]] = []  # rounds and depths of each batch not yet on disk
        self._num_buffered_rounds = 0
        self._next_round_id = 0
        self._part_number = 0
        self._parts: set[int] = set()  # on disk
        self._last_flush = time.monotonic()
        self._last_flush_seconds = 0.0

    @property
    def info(self) -> RunInfo:
        """run.json as it stands."""
        return self._info

    def amend(self, info: RunInfo) -> None:
        """Replace run.json by `info`, what only the running measurement could say added. Counts and status stay ours."""
        kept = {name: getattr(self._info, name) for name in ("status", "counts", "created_at")}
        self._info = info.model_copy(update=kept)
        write_info(self.path, self._info)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        finally:
            self._lock.release()
            if self._replacement is not None:
                self._replacement.release()

    def _end(self, error: BaseException | None) -> None:
        """The last flush, then how it ended. What the flush could not write is said in run.json where that can be."""
        try:
            self.flush()
        except Exception as failure:
            lost = [f"{self._num_buffered_rounds:,} rounds could not be written: {failure}"] * bool(self._buffer)
            with suppress(OSError):
                self._mark(RunStatus.failed, failure, lost)
            raise
        if error is not None:
            self._mark(RunStatus.failed if isinstance(error, Exception) else RunStatus.incomplete, error)
            return
        self._mark(RunStatus.complete, None)
        if self._replacement is not None:
            self._replacement.put_in_place()
            self.path = self._replacement.run
            self._info = self._info.model_copy(update={"replaces": None})
            write_info(self.path, self._info)

    def _mark(self, status: RunStatus, error: BaseException | None, notes: Sequence[str] = ()) -> None:
        self._info = self._info.model_copy(
            update={
                "status": status,
                "finished_at": _now(),
                "error": str(error) if error is not None else None,
                "notes": [*self._info.notes, *notes],
            }
        )
        write_info(self.path, self._info)

    def write_batch(self, record: Record) -> None:
        """Take a prompt, or all rounds of one prompt with one drafter; flush when it is time.

        A prompt comes before its rounds (RunError `unknown_prompt`). A prompt that is there already is passed over
        when its tokens are the same, replaced when no batch uses it, and RunError `prompt_changed` otherwise. A batch
        that is there already is RunError `batch_exists`.
        """
        if isinstance(record, PromptRecord):
            self._add_prompt(record)
        else:
            key = batch_key(record)
            if key.prompt not in self._prompt_hashes:
                raise RunError(
                    f"rounds of a prompt that was not written before them: {key}",
                    code="unknown_prompt",
                    where=str(self.path),
                )
            if key in self.complete_batches:
                raise RunError(f"this batch is in the run already: {key}", code="batch_exists", where=str(self.path))
            rounds = round_table(record, self._next_round_id)
            depths = depth_table(record, self._next_round_id, has_text=self._info.has_text)
            self._buffer.append((rounds, depths))
            self._next_round_id += rounds.num_rows
            self._num_buffered_rounds += rounds.num_rows
            self.complete_batches.add(key)
        elapsed = time.monotonic() - self._last_flush
        is_due = self._num_buffered_rounds >= FLUSH_ROUNDS or elapsed >= FLUSH_SECONDS
        if is_due and elapsed >= FLUSH_COST_RATIO * self._last_flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Put everything that was given so far on disk. What failed is tried again by the next call.

        Raises RunError `part_missing` where a part that was written before is gone; OSErrors pass.
        """
        begin = time.monotonic()
        if self._has_new_prompts or (self._prompts and not (self.path / PROMPTS).exists()):
            self._prompts = [pa.concat_tables(self._prompts)]
            write_table(self.path / PROMPTS, self._prompts[0])
        counts = self._info.counts.model_copy(update={"num_prompts": len(self._prompt_hashes)})
        part_number = self._part_number
        if any(rounds.num_rows for rounds, _ in self._buffer):
            rounds = pa.concat_tables([rounds for rounds, _ in self._buffer])
            depths = pa.concat_tables([depths for _, depths in self._buffer])
            write_table(self.path / DEPTHS / part_name(part_number), depths)
            write_table(self.path / ROUNDS / part_name(part_number), rounds)
            counts.num_batches += sum(rounds.num_rows > 0 for rounds, _ in self._buffer)
            counts.num_rounds += rounds.num_rows
            counts.num_depth_rows += depths.num_rows
            counts.num_parts += 1
            self._parts.add(part_number)
            part_number += 1
        info = self._info.model_copy(update={"counts": counts, "updated_at": _now()})
        # Without a call in between no signal is handled here: an interrupted flush is repeated whole, under the same
        # part number, or not at all.
        self._buffer, self._num_buffered_rounds, self._has_new_prompts = [], 0, False
        self._part_number, self._info = part_number, info
        write_info(self.path, self._info)
        self._last_flush = time.monotonic()
        self._last_flush_seconds = self._last_flush - begin
        self._refuse_missing_parts()

    def _refuse_missing_parts(self) -> None:
        for folder in (ROUNDS, DEPTHS):
            missing = self._parts.difference(part_numbers(self.path / folder))
            if missing:
                raise RunError(
                    "this part was written and is gone: somebody removed it while the run was made",
                    code="part_missing",
                    where=str(self.path / folder / part_name(min(missing))),
                    remedy="All other parts are kept. Start the same command with --resume: it measures the rest again.",
                )

    def _add_prompt(self, record: PromptRecord) -> None:
        key = prompt_key(record)
        row = prompt_table(record, has_text=self._info.has_text)
        digest = row["token_ids_sha256"][0].as_py()
        known = self._prompt_hashes.get(key)
        if known == digest:
            return
        if known is not None:
            if any(batch.prompt == key for batch in self.complete_batches):
                raise RunError(
                    f"this prompt now has another text, but rounds of the former one are stored: {key}",
                    code="prompt_changed",
                    where=str(self.path),
                    remedy="Resume with the same target, options and seed, or write to another folder.",
                )
            table = pa.concat_tables(self._prompts)
            self._prompts = [table.filter(pa.array([found != key for found in prompt_keys(table)]))]
        self._prompts.append(row)
        self._prompt_hashes[key] = digest
        self._has_new_prompts = True


def _create(run: Path, info: RunInfo) -> RunLock:
    """The folder `run` with its run.json; it appears whole and locked, or not at all."""
    run.parent.mkdir(parents=True, exist_ok=True)
    unfinished = run.with_name(f".{run.name}.new")
    if unfinished.is_symlink():
        raise _exists(unfinished)
    unfinished.mkdir(mode=0o700, exist_ok=True)
    try:
        lock = RunLock(unfinished)
    except RunError as error:
        if error.code == "run_vanished":  # the same run was begun elsewhere, and has just got its name
            raise _exists(run) from error
        raise
    try:
        for folder in (ROUNDS, DEPTHS):  # they are there where a kill has left them
            (unfinished / folder).mkdir(mode=0o700, exist_ok=True)
        write_info(unfinished, info)
        unfinished.rename(run)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        lock.release()
        if isinstance(error, OSError) and run.exists():
            raise _exists(run) from error
        raise
    return lock


def _exists(run: Path) -> RunError:
    return RunError(
        "there is something of this name already",
        code="run_exists",
        where=str(run),
        remedy="Resume it, ask to overwrite it, or choose another name.",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
