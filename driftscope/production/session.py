"""One server's run: a thread of its own takes finished requests, writes them, and keeps run.json up to date.

The only user of the run's writer, so nothing is locked. Whatever fails here is counted, logged once and told in the run.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driftscope.production.config import ProductionConfig
from driftscope.production.records import prompt_name, records_of
from driftscope.production.sampling import Sampler
from driftscope.production.workers import TakenHeads
from driftscope.runs.writer import RunWriter
from probes.vllm.ranks import joined
from probes.vllm.requests import RequestRounds

logger = logging.getLogger("driftscope.production")

MAX_WAITING = 256  # finished requests that wait for the thread; more are dropped and counted


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
    num_headless: int = 0  # without masses, because another worker's heads did not come
    num_failed: int = 0
    failure: str | None = None
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

    def close(self) -> None:
        """Everything that was recorded is on disk afterwards, and the run complete."""
        self.sampler.is_open = False
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self.writer:
                reason = "the server ended"
                while not self._stop.is_set():
                    reason = self._cap() or reason
                    if not self.sampler.is_open and self._waiting.empty() and self._is_idle():
                        break
                    self._take_until(time.monotonic() + self.config.flush_seconds)
                    self._save([])
                self._take_all()
                self._save([f"recording ended: {reason}"])
        except Exception as error:  # a full disk, a run that was removed
            self.sampler.is_open = False
            self._fail(error)
        finally:
            if self.heads is not None:
                self.heads.close()

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
            try:
                self._write_one(self._waiting.get(timeout=min(left, 0.5)))
            except queue.Empty:
                continue

    def _take_all(self) -> None:
        while not self._waiting.empty():
            self._write_one(self._waiting.get_nowait())

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
        self.writer.write_batch(prompt)
        if batch is None:
            self.num_short += 1
        else:
            self.writer.write_batch(batch)
        self.num_written += 1
        self.num_sampling += rounds.request.temperature > 0

    def _with_all_heads(self, rounds: RequestRounds) -> RequestRounds:
        if self.heads is None:
            return rounds
        whole = joined(rounds, self.heads.take(rounds.request.request_id))
        self.num_headless += "mass" in whole.unmeasured and "mass" not in rounds.unmeasured
        return whole

    def _fail(self, error: Exception) -> None:
        self.num_failed += 1
        if self.failure is None:
            self.failure = f"{type(error).__name__}: {error}"
            logger.exception("driftscope could not write what it recorded; requests are not affected")

    def _save(self, more: list[str]) -> None:
        """Rounds to disk, then the counts into run.json; nothing is written while nothing happens."""
        notes = [*self._notes, *self.sentences(), *more]
        if self.heads is not None:
            self.heads.sweep()
        if notes != self.writer.info.notes:
            self.writer.flush()
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
            "requests were not written: the writing thread was behind": self.num_dropped,
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
