"""One server's run: a thread of its own takes finished requests, writes them, and keeps run.json up to date.

The only user of the run's writer, so nothing is locked. Whatever fails here is counted, logged once and told in the run. A
write that failed is tried again with the next flush; until it works, finished requests stay in the queue.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driftscope.runs.writer import RunWriter
from driftscope.vllm_plugin.config import ProductionConfig
from driftscope.vllm_plugin.records import prompt_name, records_of
from driftscope.vllm_plugin.sampling import Sampler
from driftscope.vllm_plugin.workers import TakenHeads
from probes.errors import bounded
from probes.record import Record
from probes.vllm.ranks import joined
from probes.vllm.recorder import MAX_FAILURE
from probes.vllm.requests import RequestRounds

logger = logging.getLogger("driftscope.vllm_plugin")

MAX_WAITING = 256  # finished requests that wait for the thread; more are dropped and counted
CLOSE_SECONDS = 10.0  # that a server which ends waits for its run
RETRY_SECONDS = 0.5  # between two tries to write while it does


@dataclass(kw_only=True)
class Session:
    """`status` is of the recorder: an object with `failure`, `num_failures`, `num_dropped_steps`, `num_lost`,
    `contradiction`."""

    config: ProductionConfig
    sampler: Sampler
    writer: RunWriter
    drafter: str
    in_draft_vocab: np.ndarray  # bool [vocab]
    norm_output: bool
    status: Callable[[], Any]
    regions: Callable[[np.ndarray], np.ndarray] | None = None  # of prompts whose regions the sampler left open
    heads: TakenHeads | None = None  # of the other tensor parallel workers
    num_written: int = 0
    num_sampling: int = 0  # at temperature > 0
    num_short: int = 0
    num_dropped: int = 0
    num_late: int = 0  # in the queue when the time to close was over
    num_headless: int = 0  # without masses, because another worker's heads did not come
    num_failed: int = 0
    failure: str | None = None
    _num_given: int = 0  # requests that the writer got
    _is_behind: bool = False  # the writer has what it could not put on disk
    _end: float | None = None  # when the time to close is over
    _times_seen: Counter[tuple[str | None, str]] = field(default_factory=Counter)  # (label, prompt)
    _waiting: queue.Queue[RequestRounds] = field(default_factory=lambda: queue.Queue(MAX_WAITING))
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._notes = list(self.writer.info.notes)  # those that stay
        self._deadline = time.monotonic() + self.config.max_hours * 3600
        if self.heads is not None:
            self.heads.open()
        self._thread = threading.Thread(target=self._run, name="driftscope-production", daemon=True)
        self._thread.start()

    def write(self, rounds: RequestRounds) -> None:
        """Called in the recorder's thread; returns at once."""
        try:
            self._waiting.put_nowait(rounds)
        except queue.Full:
            self.num_dropped += 1

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Everything that was recorded is on disk afterwards, and the run complete. What is not after `seconds`, because
        the disk is full or slow, is lost: the log says how much, the run too where it can still be written."""
        self.sampler.is_open = False
        self._end = time.monotonic() + seconds
        self._stop.set()
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            logger.error(
                "driftscope did not finish %s in time: up to %d requests are not in it",
                self.writer.path,
                self.num_unsaved,
            )

    @property
    def num_unsaved(self) -> int:
        """Finished requests that are not on disk yet."""
        return self._waiting.qsize() + self.num_late + self._num_given - self.writer.info.counts.num_prompts

    def _run(self) -> None:
        try:
            with self.writer:
                self._finish(self._record())
        except Exception as error:  # logged where it came up, unless the writer could not begin or end
            self.sampler.is_open = False
            self._fail(error)
        finally:
            if self.heads is not None:
                self.heads.close()

    def _record(self) -> str:
        """Until the server ends or a cap is reached -> which."""
        reason = "the server ended"
        while not self._stop.is_set():
            try:
                reason = self._cap() or reason
                if not self.sampler.is_open and self._waiting.empty() and self._is_idle():
                    break
                self._take_until(time.monotonic() + self.config.flush_seconds)
                self._save([])
            except Exception as error:  # a full disk, a run that was removed: it may not last
                self._is_behind = True
                self._fail(error)
                self._stop.wait(self.config.flush_seconds)
        return reason

    def _finish(self, reason: str) -> None:
        """What waits, and the last notes. Raises what the last try met, once the time to close is over."""
        while True:
            try:
                self._take_all()
                is_all = self._waiting.empty()
                self._save([f"recording ended: {reason}"] if is_all else [])
                if is_all:
                    return
            except Exception as error:
                self._is_behind = True
                self._fail(error)
                if self._is_late():
                    self._give_up(reason)
                    raise
                if self._stop.wait(self.config.flush_seconds):  # a cap was reached before: there is time
                    time.sleep(min(RETRY_SECONDS, self.config.flush_seconds))

    def _is_late(self) -> bool:
        return self._end is not None and time.monotonic() >= self._end

    def _give_up(self, reason: str) -> None:
        """run.json may be written where parts cannot."""
        num_lost = self.num_unsaved
        logger.error("driftscope could not finish %s: up to %d requests are not in it", self.writer.path, num_lost)
        lost = f"when the server ended, up to {num_lost} requests were not on disk: writing failed"
        with suppress(OSError):
            self._amend([*self._notes, *self.sentences(), lost, f"recording ended: {reason}"])

    def _is_idle(self) -> bool:
        """Whether every request that was sampled has come through the recorder."""
        status = self.status()
        return status.failure is not None or status.num_requests == status.num_written + status.num_lost

    def _cap(self) -> str | None:
        """Closes the sampler where a cap is reached -> which."""
        reason = None
        if time.monotonic() >= self._deadline:
            reason = f"max_hours = {self.config.max_hours:g}"
        elif self._num_bytes() >= self.config.max_mb * 1e6:
            reason = f"max_mb = {self.config.max_mb:g}"
        if reason is not None:
            self.sampler.is_open = False
        return reason

    def _num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.writer.path.rglob("*.parquet"))

    def _take_until(self, end: float) -> None:
        while (left := end - time.monotonic()) > 0 and not self._stop.is_set():
            if self._is_behind:  # what waits stays in the queue, which is bounded; the writer is not
                return
            try:
                self._write_one(self._waiting.get(timeout=min(left, 0.5)))
            except queue.Empty:
                continue

    def _take_all(self) -> None:
        while not self._waiting.empty() and (self._is_late() or not self._is_behind):
            rounds = self._waiting.get_nowait()
            if self._is_late():
                self.num_late += 1
            else:
                self._write_one(rounds)

    def _write_one(self, rounds: RequestRounds) -> None:
        name = prompt_name(rounds)
        self._times_seen[rounds.sampled.label, name] += 1
        times = self._times_seen[rounds.sampled.label, name]
        try:
            rounds = self._with_all_heads(rounds)
            prompt, batch = records_of(
                rounds,
                prompt_id=name if times == 1 else f"{name}-{times}",
                drafter=self.drafter,
                in_draft_vocab=self.in_draft_vocab,
                norm_output=self.norm_output,
                regions=self.regions,
            )
        except Exception as error:  # this request's record contradicts itself: the next may not
            self._fail(error)
            return
        if not self._give(prompt):
            return
        self._num_given += 1
        if batch is None:
            self.num_short += 1
        elif not self._give(batch):
            return
        self.num_written += 1
        self.num_sampling += rounds.request.temperature > 0

    def _give(self, record: Record) -> bool:
        """-> whether the writer has it. It puts it on disk when that is due, and keeps it where that fails."""
        try:
            self.writer.write_batch(record)
        except (OSError, MemoryError) as error:
            self._is_behind = True
            self._fail(error)
        except Exception as error:  # this record's own fault: the next may not
            self._fail(error)
            return False
        return True

    def _with_all_heads(self, rounds: RequestRounds) -> RequestRounds:
        if self.heads is None:
            return rounds
        whole = joined(rounds, self.heads.take(rounds.request.request_id))
        self.num_headless += "mass" in whole.unmeasured and "mass" not in rounds.unmeasured
        return whole

    def _fail(self, error: Exception) -> None:
        self.num_failed += 1
        if self.failure is None:
            self.failure = bounded(f"{type(error).__name__}: {error}", MAX_FAILURE)
            logger.exception("driftscope could not write what it recorded; requests are not affected")

    def _save(self, more: list[str]) -> None:
        """Rounds to disk, then the counts into run.json; nothing is written while nothing happens."""
        notes = [*self._notes, *self.sentences(), *more]
        if notes != self.writer.info.notes or self._is_behind:
            self.writer.flush()  # after a failure it is repeated whole
            self._amend(notes)
            self._is_behind = False
        if self.heads is not None:
            self.heads.sweep()

    def _amend(self, notes: list[str]) -> None:
        self.writer.amend(self.writer.info.model_copy(update={"notes": notes}))

    def sentences(self) -> list[str]:
        """What a reader of the run must know of how it was sampled."""
        status = self.status()
        said = [f"recorded {self.num_written} of {self.sampler.num_seen} requests that the server saw"]
        counts = {
            "requests were answered at temperature > 0: rejections by chance cannot be told from disagreements": (
                self.num_sampling
            ),
            "responses were too short for a round": self.num_short,
            "requests had a longer prompt than max_prompt_tokens": self.sampler.num_too_long,
            "requests have no masses: the heads of another worker did not come": self.num_headless,
            "requests had a label that is not text: they count as unlabelled": self.sampler.num_unusable_labels,
            "requests were not written: the writing thread was behind, or could not write": self.num_dropped,
            "requests were not written: the server ended before the disk took them": self.num_late,
            "steps were not recorded: the recorder was behind": status.num_dropped_steps,
            "requests were not written: one of their steps was not recorded, or the engine dropped its tokens": (
                status.num_lost
            ),
        }
        said += [f"{count} {text}" for text, count in counts.items() if count]
        if status.contradiction is not None:
            said.append(f"the first that contradicts itself: {status.contradiction}")
        if status.failure is not None:
            said.append(
                f"THE RECORDER FAILED ({status.num_failures} times) and is off; requests were answered: {status.failure}"
            )
        said += [
            f"THE RECORDER OF RANK {rank} FAILED and is off; requests were answered: {failure}"
            for rank, failure in (self.heads.failures() if self.heads is not None else {}).items()
        ]
        if self.failure is not None:
            said.append(f"WRITING FAILED ({self.num_failed} times); requests were answered: {self.failure}")
        return said
