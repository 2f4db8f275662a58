"""From the device's rows to the host without ever making the engine wait, and with next to nothing on its thread.

Every step's rows are kept in a ring on the device; a thread copies what is new on a stream of its own, many steps at a
time, as each time that it wakes the engine's thread may have to wait for Python's lock. The engine never waits for the
thread: a step that was overwritten before it was copied is lost and counted. Knows nothing of vLLM.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from probes.vllm.rows import Rows

RING_BYTES = 64 << 20
MAX_STEPS, MIN_STEPS = 256, 16
PAUSE_SECONDS = 0.05
"""How long the thread lets steps gather; less where half of the ring is new."""
TIMED_STEPS, TIMED_EVERY = 2, 16
"""On CUDA two steps in a row of every 16 are timed: a round's times come from its own step and the next one."""
NUM_CLOCKS = 32
SERIAL_MASK = 0x7FFFFFFF
"""A row says in 31 bits of which step it is."""


class Clock:
    """Three marks of a step: begin, sampled, drafted. Device events on CUDA, the host's clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(3)] if self._is_cuda else []
        self._times = [0.0, 0.0, 0.0]

    def mark(self, index: int) -> None:
        if self._is_cuda:
            self._events[index].record()
        else:
            self._times[index] = time.perf_counter() * 1e6

    def laps_us(self) -> tuple[float, float]:
        """-> (begin to sampled, sampled to drafted). On CUDA only once the last event has passed."""
        if self._is_cuda:
            begun, sampled, drafted = self._events
            return begun.elapsed_time(sampled) * 1e3, sampled.elapsed_time(drafted) * 1e3
        begin, sample, draft = self._times
        return sample - begin, draft - sample


@dataclass(frozen=True, slots=True)
class _Entry:
    item: Any
    serial: int = 0  # of a step, from 1; 0: an item without rows
    num_rows: int = 0
    clock: Clock | None = None


NOT_TIMED = (float("nan"), float("nan"))


@dataclass
class Transport:
    """`handle(item, words, laps)` is called in the thread, in the order of `send` and `post`; words None: none, or lost.

    `fail` is called there with what went wrong on the device; the steps in hand are lost then.
    """

    rows: Rows
    handle: Callable[[Any, np.ndarray | None, tuple[float, float]], None]
    fail: Callable[[Exception], None]
    num_lost: int = 0
    serial: int = 0  # of the last step that began
    _entries: deque[_Entry | None] = field(default_factory=deque)  # its two ends are used without a lock
    _some: threading.Event = field(default_factory=threading.Event)  # there are entries after there were none
    _hurry: threading.Event = field(default_factory=threading.Event)  # take them now

    def __post_init__(self) -> None:
        words = self.rows.words
        self._is_cuda = words.device.type == "cuda"
        self.num_steps = min(MAX_STEPS, max(MIN_STEPS, RING_BYTES // max(1, words.numel() * 4)))
        self.ring = torch.zeros(self.num_steps, *words.shape, dtype=words.dtype, device=words.device)
        self._taken = 0  # serial of the last step that the thread took
        self._clocks: queue.SimpleQueue[Clock] = queue.SimpleQueue()
        if self._is_cuda:
            for _ in range(NUM_CLOCKS):
                self._clocks.put(Clock(words.device))
            self._host = torch.empty(MIN_STEPS, *words.shape, dtype=words.dtype, pin_memory=True)
            self._stream = torch.cuda.Stream(words.device)
            self._copied = torch.cuda.Event(blocking=True)
            self.follow()
        self._thread = threading.Thread(target=self._run, name="driftscope-recorder", daemon=True)
        self._thread.start()

    # on the engine's thread

    def follow(self) -> None:
        """Steps are launched on the stream that is current now."""
        if self._is_cuda:
            self._engine_stream = torch.cuda.current_stream(self.rows.words.device)

    def begin(self) -> int:
        """Before a step's first write into the ring -> its serial; its rows go to slot serial % num_steps."""
        self.serial += 1
        return self.serial

    def clock(self) -> Clock | None:
        """For the step that comes; None where it is not timed."""
        if not self._is_cuda:
            return Clock(self.rows.words.device)
        if self.serial % TIMED_EVERY >= TIMED_STEPS:
            return None
        try:
            return self._clocks.get_nowait()
        except queue.Empty:
            return None

    def give_back(self, clock: Clock) -> None:
        """Takes back the clock of a step that is not sent, or was taken."""
        if self._is_cuda:
            self._clocks.put(clock)

    def keep(self, num_rows: int) -> None:
        """Puts the first rows of the step that began into the ring, where nothing on the device does so."""
        self.rows.first("serial", num_rows).fill_(self.serial & SERIAL_MASK)
        self.ring[self.serial % self.num_steps, :num_rows].copy_(self.rows.words[:num_rows])

    def keep_columns(self, num_rows: int, names: Sequence[str]) -> None:
        """The same of some columns alone, which stand side by side in a row."""
        first = self.rows.first_word(names[0])
        words = slice(first, first + sum(self.rows[name][0].numel() for name in names))
        self.ring[self.serial % self.num_steps, :num_rows, words].copy_(self.rows.words[:num_rows, words])

    def send(self, item: Any, num_rows: int, clock: Clock | None = None) -> None:
        """The step that began last is launched; its first `num_rows` rows belong to `item`."""
        self._put(_Entry(item, self.serial, num_rows, clock))
        if self.serial - self._taken > self.num_steps // 2:
            self._hurry.set()

    def post(self, item: Any) -> None:
        """Something that needs no rows, in order with those that do."""
        self._put(_Entry(item))

    def flush(self, seconds: float | None = None) -> bool:
        """Waits until everything sent so far was handled, for a limited time -> whether it was."""
        done = threading.Event()
        self.post(done)
        self._hurry.set()
        return done.wait(seconds)

    def stop(self) -> None:
        self._put(None)
        self._hurry.set()
        self._thread.join()

    def _put(self, entry: _Entry | None) -> None:
        self._entries.append(entry)
        if not self._some.is_set():
            self._some.set()

    # in the thread

    def _run(self) -> None:
        if self._is_cuda:  # a thread begins on the first device, a worker may have another
            torch.cuda.set_device(self.rows.words.device)
        while True:
            self._some.wait()
            self._hurry.wait(PAUSE_SECONDS)
            self._hurry.clear()
            self._some.clear()  # before the entries are looked at: one that comes now is taken, or wakes the thread again
            while self._entries:
                taken: list[_Entry | None] = []
                while self._entries and len(taken) < MIN_STEPS:
                    taken.append(self._entries.popleft())
                self._take([entry for entry in taken if entry is not None])
                if None in taken:
                    return

    def _take(self, entries: list[_Entry]) -> None:
        steps = [entry for entry in entries if entry.serial]
        taken: dict[int, tuple[np.ndarray | None, tuple[float, float]]] = {}
        try:
            for step, words in zip(steps, self._copies(steps), strict=True):
                taken[step.serial] = words, self._laps(step)
        except Exception as error:  # whatever it is, `flush` waits for this thread
            self.fail(error)
        for entry in entries:
            if isinstance(entry.item, threading.Event):
                entry.item.set()
            else:
                self.handle(entry.item, *taken.get(entry.serial, (None, NOT_TIMED)))
                time.sleep(0)  # Python's lock to the engine's thread, should it wait: else it would for up to 5 ms

    def _laps(self, step: _Entry) -> tuple[float, float]:
        if step.clock is None:
            return NOT_TIMED
        laps = step.clock.laps_us()
        self.give_back(step.clock)
        return laps

    def _copies(self, steps: list[_Entry]) -> list[np.ndarray | None]:
        """Each step's rows; None for one that a later step had begun to overwrite by the time that it was copied."""
        if not steps:
            return []
        places = [self.ring[step.serial % self.num_steps, : step.num_rows] for step in steps]
        if self._is_cuda:
            self._stream.wait_stream(self._engine_stream)  # all that was launched so far, these steps with it
            with torch.cuda.stream(self._stream):
                for place, host in zip(places, self._host, strict=False):
                    host[: len(place)].copy_(place, non_blocking=True)
                self._copied.record()
            self._copied.synchronize()
            places = [host[: len(place)] for place, host in zip(places, self._host, strict=False)]
        copies: list[np.ndarray | None] = [place.numpy().copy() for place in places]
        begun = self.serial
        for index, step in enumerate(steps):
            if begun >= step.serial + self.num_steps:
                copies[index] = None
                self.num_lost += 1
        self._taken = steps[-1].serial
        return copies
