"""The recorder: which requests are recorded, which rows are theirs. `install` puts it into vLLM's model runners.

`decide` is called once for each request, on the engine's thread: be quick. `write` is called in the recorder's own thread.
A failure inside the recorder never reaches the engine: it is counted, logged once, and the recorder stops recording.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from probes.errors import InputError, bounded
from probes.record import TEXT_REGIONS
from probes.vllm.boundaries import NO_SLOT, Boundaries
from probes.vllm.requests import ContradictionError, NewRequest, OpenRequest, RequestRounds, Sampled
from probes.vllm.rows import LEVELS, RowLayout, Rows, as_records
from probes.vllm.transport import SERIAL_MASK, Clock, Transport

logger = logging.getLogger("driftscope.recorder")

MAX_FAILURE = 500  # characters


def record_all(request: NewRequest) -> Sampled | None:
    """Every request; regions unknown."""
    return Sampled(label=request.label)


@dataclass(frozen=True, kw_only=True)
class RecorderConfig:
    level: str = "default"  # one of rows.LEVELS
    num_sink_slots: int = 1  # S: how many first slots are the sink
    decide: Callable[[NewRequest], Sampled | None] = record_all
    write: Callable[[RequestRounds], None]
    # gets the model runner and its recorder, attached or failed; must not raise
    on_loaded: Callable[[Any, Recorder], None] | None = None
    # gets the failure by which an attached recorder went off, in the recorder's own thread
    on_failed: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise InputError(
                f"unknown level {self.level!r}", code="bad_option", where="level", remedy=f"use {', '.join(LEVELS)}"
            )


@dataclass(frozen=True, kw_only=True)
class RecorderStatus:
    """What a run must say of its recording."""

    level: str
    runner: str  # "V1" | "V2" | "": no engine was built yet
    attention_backend: str
    num_requests: int  # sampled
    num_written: int
    num_steps: int
    num_dropped_steps: int  # the thread was behind
    num_lost: int  # requests that a dropped step belonged to, or whose record contradicts itself: not written
    num_failures: int
    failure: str | None  # the first
    contradiction: str | None = None  # why a request's record contradicts itself: the first such request's
    unmeasured: Mapping[str, str] = field(default_factory=dict)  # column -> why it is null here


@dataclass(slots=True)
class _Step:
    """One engine step: which requests its rows are of, and how many drafts each verified."""

    request_ids: Sequence[str]
    num_drafts: Mapping[str, int]
    clock: Clock | None  # None: not timed
    serial: int = 0
    output: Any = None  # the engine's, where what was sampled is read from it


@dataclass(frozen=True)
class _Ended:
    request_id: str
    end: str


@dataclass(frozen=True)
class _Failed:
    failure: str


class Recorder:
    """The host's side: which requests are recorded, which rows are theirs. One to each model runner."""

    def __init__(self, config: RecorderConfig) -> None:
        self.config = config
        self.runner_name = ""
        self.attention_backend = ""
        self.unmeasured: dict[str, str] = {}
        self.num_requests = self.num_written = self.num_lost = self.num_steps = self.num_failures = 0
        self.failure: str | None = None
        self.contradiction: str | None = None
        self.is_ready = False
        self._open: dict[str, OpenRequest] = {}  # the thread's
        self._recorded: dict[str, tuple[NewRequest, Sampled]] = {}  # the engine's thread's
        self._decided: set[str] = set()  # requests that have not ended, recorded or not
        self._slot_of: dict[str, int] = {}  # request -> its slot in the boundaries, while it is not preempted
        self._step: _Step | None = None
        self._uploaded: list[str] | None = []  # whose slots the device has, row by row; None: others than it should
        # puts what the engine's output says was sampled into the rows' records [row], in the recorder's thread
        self.read_output: Callable[[Any, np.ndarray], None] | None = None

    def prepare(self, layout: RowLayout, *, num_rows: int, max_model_len: int, device: torch.device) -> None:
        """Allocates everything. Called once, before the engine measures what memory is left."""
        self.layout = layout
        self.rows = Rows(layout, num_rows, device)
        self.transport = Transport(self.rows, self._handle, self._fail)
        self.device = device
        self._free_slots = list(range(num_rows))[::-1]
        region = None
        if layout.level == "heads":
            unknown = TEXT_REGIONS.index("unknown")
            region = torch.full((num_rows, max_model_len), unknown, dtype=torch.uint8, device=device)
        self.boundaries = Boundaries(
            slot=torch.full((num_rows,), NO_SLOT, dtype=torch.int32, device=device),
            num_prompt_tokens=torch.zeros(num_rows, dtype=torch.int32, device=device),
            region=region,
            num_sink_slots=self.config.num_sink_slots,
        )
        self.is_ready = True

    # on the engine's thread

    def guarded(self, work: Callable[..., None], *args: Any) -> None:
        """Does `work`; a failure stops the recording, never the engine."""
        if self.failure is not None:
            return
        try:
            work(*args)
        except Exception as error:  # whatever it is, requests must be answered
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.num_failures += 1
        if self.failure is not None:
            return
        self.failure = bounded(f"{type(error).__name__}: {error}", MAX_FAILURE)  # a client's text may be in it
        if isinstance(error, NotImplementedError):
            logger.error("driftscope's recorder is off, requests are not affected: %s", error)
        else:
            logger.exception("driftscope's recorder failed and is off; requests are not affected")
        if self.is_ready:
            self.transport.post(_Failed(self.failure))

    def requests_changed(self, new: Iterable[NewRequest], ended: Iterable[str], preempted: Iterable[str]) -> None:
        """What the scheduler did since the last step. A preempted request comes back, as a new one or not: its record
        goes on, and the drafts that it lost stay unverified."""
        for request_id in ended:
            self._decided.discard(request_id)
            self._end(request_id, "finished")
        for request_id in preempted:
            self._release_slot(request_id)
        for request in new:
            if request.request_id in self._decided:  # the V2 runner gets one that was preempted as a new one
                continue
            self._decided.add(request.request_id)
            sampled = self.config.decide(request)
            if sampled is not None:
                request = replace(request, extra_args={})  # whatever a client sent along is not kept alive
                self._recorded[request.request_id] = (request, sampled)
                self.num_requests += 1
                self.transport.follow()
                self.transport.post(OpenRequest(request=request, sampled=sampled, layout=self.layout))

    def _end(self, request_id: str, end: str) -> None:
        self._release_slot(request_id)
        if self._recorded.pop(request_id, None) is not None:
            self.transport.post(_Ended(request_id, end))

    def _release_slot(self, request_id: str) -> None:
        slot = self._slot_of.pop(request_id, None)
        if slot is not None:
            self._free_slots.append(slot)

    def _take_slots(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if request_id in self._recorded and request_id not in self._slot_of:
                slot = self._slot_of[request_id] = self._free_slots.pop()
                self._upload_boundaries(slot, *self._recorded[request_id])
                self._uploaded = None

    def end_all(self) -> None:
        """Every request that has not ended is "open"."""
        for request_id in list(self._recorded):
            self._end(request_id, "open")

    def _upload_boundaries(self, slot: int, request: NewRequest, sampled: Sampled) -> None:
        num_prompt = len(request.prompt_token_ids)
        self._upload(self.boundaries.num_prompt_tokens[slot : slot + 1], np.array([num_prompt], np.int32))
        if self.boundaries.region is not None:
            unknown = np.full(num_prompt, TEXT_REGIONS.index("unknown"), np.uint8)
            region = unknown if sampled.region is None else np.array(sampled.region[:num_prompt])
            self._upload(self.boundaries.region[slot, : len(region)], region)

    def _upload_slots(self, request_ids: list[str]) -> None:
        """Which row is whose; nothing is computed for the others, those beyond the batch among them."""
        if request_ids == self._uploaded:
            return
        slots = np.full(len(self.boundaries.slot), NO_SLOT, np.int32)
        slots[: len(request_ids)] = [self._slot_of.get(r, NO_SLOT) for r in request_ids]
        self._upload(self.boundaries.slot, slots)
        self._uploaded = request_ids

    def _upload(self, target: torch.Tensor, values: np.ndarray) -> None:
        source = torch.from_numpy(values)
        if self.device.type == "cuda":
            source = source.pin_memory()
        target.copy_(source, non_blocking=True)

    def begin_step(self, request_ids: Sequence[str], num_drafts: Mapping[str, int]) -> None:
        """A step that will sample. Nothing is kept of one without a recorded request."""
        self.drop_step()
        if not any(r in self._recorded for r in request_ids):
            self._upload_slots([])
            return
        self._take_slots(request_ids)
        self._step = _Step(request_ids, num_drafts, self.transport.clock())
        self.mark(0)

    def drop_step(self) -> None:
        """A step that was begun and will not be sent."""
        if self._step is not None and self._step.clock is not None:
            self.transport.give_back(self._step.clock)
        self._step = None

    @property
    def is_recording(self) -> bool:
        """Whether the rows of this step will be read."""
        return self._step is not None and self.failure is None

    def before_writes(self, request_ids: Sequence[str]) -> None:
        """Before the first write of a step: the batch's order of requests is known now."""
        step = self._step
        assert step is not None
        step.request_ids = list(request_ids)
        step.serial = self.transport.serial
        self._upload_slots(step.request_ids)

    def mark(self, index: int) -> None:
        if self._step is not None and self._step.clock is not None:
            self._step.clock.mark(index)

    def keep_rows(self) -> None:
        """Where the device does not put the step's rows into the ring by itself."""
        if self._step is not None and self._step.serial:
            self.transport.keep(len(self._step.request_ids))

    def send_step(self, output: Any = None) -> None:
        """All of the step is launched. `output`: see `read_output`."""
        step = self._step
        if step is None or not step.serial:
            self.drop_step()
            return
        self.num_steps += 1
        step.output = output
        self.transport.send(step, len(step.request_ids), step.clock)
        self._step = None

    # in the transport's thread

    def _handle(self, item: Any, words: np.ndarray | None, laps: tuple[float, float]) -> None:
        try:
            if isinstance(item, OpenRequest):
                self._open[item.request.request_id] = item
            elif isinstance(item, _Ended):
                self._close(item.request_id, item.end)
            elif isinstance(item, _Failed):
                if self.config.on_failed is not None:
                    self.config.on_failed(item.failure)
            elif words is None:  # lost
                for request_id in item.request_ids:
                    if request_id in self._open:
                        self._open[request_id].has_gap = True
            else:
                self._keep(item, words, laps)
        except Exception as error:
            self._fail(error)

    def _keep(self, step: _Step, words: np.ndarray, laps: tuple[float, float]) -> None:
        """As little as can be: this thread takes its turns from the engine's."""
        records = as_records(words, self.layout)
        if not (records["serial"] == step.serial & SERIAL_MASK).all():
            raise RuntimeError(f"rows of step {records['serial'].tolist()} where those of {step.serial} should be")
        if self.read_output is not None:
            self.read_output(step.output, records)
        for row, request_id in zip(records, step.request_ids, strict=True):
            request = self._open.get(request_id)
            if request is not None:
                request.add(row, step.num_drafts.get(request_id, 0), laps)

    def _close(self, request_id: str, end: str) -> None:
        request = self._open.pop(request_id, None)
        if request is None:
            return
        if request.has_gap:
            self.num_lost += 1
            return
        try:
            rounds = request.close(end, self.unmeasured)
        except ContradictionError as error:  # this request's alone
            self.num_lost += 1
            if self.contradiction is None:
                self.contradiction = str(error)
                logger.warning("driftscope does not record a request (more are counted only): %s", error)
            return
        self.config.write(rounds)
        self.num_written += 1


@dataclass
class Recording:
    """A recorder that was installed. `recorders` has one entry for each model runner built since."""

    config: RecorderConfig
    recorders: list[Recorder] = field(default_factory=list)
    is_installed: bool = True

    def flush(self, seconds: float | None = None) -> bool:
        """Everything recorded so far is given to `write`: requests that have not ended too, as "open".

        -> False where that took each recorder longer than `seconds`.
        """
        is_done = True
        for recorder in self.recorders:
            if recorder.is_ready:
                recorder.end_all()
                is_done &= recorder.transport.flush(seconds)
        return is_done

    def status(self) -> RecorderStatus:
        """The status of the last model runner's recorder."""
        recorder = self.recorders[-1] if self.recorders else Recorder(self.config)
        return RecorderStatus(
            level=self.config.level,
            runner=recorder.runner_name,
            attention_backend=recorder.attention_backend,
            num_requests=recorder.num_requests,
            num_written=recorder.num_written,
            num_steps=recorder.num_steps,
            num_dropped_steps=recorder.transport.num_lost if recorder.is_ready else 0,
            num_lost=recorder.num_lost,
            num_failures=recorder.num_failures,
            failure=recorder.failure,
            contradiction=recorder.contradiction,
            unmeasured=dict(recorder.unmeasured),
        )

    def uninstall(self) -> None:
        """Engines built from now on are not recorded; those that are stay so until they are gone."""
        self.is_installed = False
        for recorder in self.recorders:
            if recorder.is_ready:
                recorder.transport.stop()
                recorder.is_ready = False
