"""From the device's rows to the host without ever making the engine wait: one asynchronous copy a step, one thread.

On CUDA the rows go to pinned memory on a stream of their own; the engine's stream waits (on the device) for the last copy
before a new step overwrites the rows. Where all pinned buffers are in use the step is dropped and counted. The thread
takes many steps at a time: each time that it wakes, the engine's thread may have to wait for Python's lock. Knows nothing
of vLLM.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from probes.vllm.rows import Rows

RECORDER_THREAD = "driftscope-recorder"
PINNED_BYTES = 64 << 20
MAX_BUFFERS, MIN_BUFFERS = 256, 8
PAUSE_SECONDS = 0.05
"""How long the thread lets steps gather; less where half of the buffers are in use."""


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
            a, b, c = self._events
            return a.elapsed_time(b) * 1e3, b.elapsed_time(c) * 1e3
        a, b, c = self._times
        return b - a, c - b


@dataclass
class Buffer:
    """A place for one step's rows on the host, with the events that say when it is filled."""

    words: torch.Tensor  # int32 [row, word], pinned on CUDA
    clock: Clock
    copied: Any = None  # torch.cuda.Event


@dataclass
class Transport:
    """`handle(item, words, laps)` is called in the thread, in the order of `send` and `post`."""

    rows: Rows
    handle: Callable[[Any, np.ndarray | None, tuple[float, float]], None]
    num_dropped: int = 0
    _entries: deque = field(default_factory=deque)  # its two ends are used without a lock
    _some: threading.Event = field(default_factory=threading.Event)  # there are entries after there were none
    _hurry: threading.Event = field(default_factory=threading.Event)  # take them now

    def __post_init__(self) -> None:
        words = self.rows.words
        self._is_cuda = words.device.type == "cuda"
        num_bytes = max(1, words.numel() * 4)
        count = min(MAX_BUFFERS, max(MIN_BUFFERS, PINNED_BYTES // num_bytes))
        self._free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        self._half = count // 2
        for _ in range(count):
            host = torch.empty(words.shape, dtype=words.dtype, pin_memory=self._is_cuda)
            copied = torch.cuda.Event(blocking=True) if self._is_cuda else None
            self._free.put(Buffer(host, Clock(words.device), copied))
        self._stream = torch.cuda.Stream(words.device) if self._is_cuda else None
        self._last: Any = None  # event of the last copy
        self._thread = threading.Thread(target=self._run, name=RECORDER_THREAD, daemon=True)
        self._thread.start()

    def take(self) -> Buffer | None:
        """A buffer for the step that begins; None when the thread is behind."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            self.num_dropped += 1
            return None

    def give_back(self, buffer: Buffer) -> None:
        """For a step that needs no copy."""
        self._free.put(buffer)

    def before_writes(self) -> None:
        """The engine's stream waits until the last copy has read the rows; the host does not."""
        if self._last is not None:
            torch.cuda.current_stream().wait_event(self._last)

    def send(self, item: Any, buffer: Buffer, num_rows: int) -> None:
        """Starts the copy of the first `num_rows` rows."""
        source, target = self.rows.words[:num_rows], buffer.words[:num_rows]
        if self._stream is None:
            target.copy_(source)
        else:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                target.copy_(source, non_blocking=True)
                buffer.copied.record(self._stream)
            self._last = buffer.copied
        self._put((item, buffer, num_rows))
        if self._free.qsize() < self._half:
            self._hurry.set()

    def post(self, item: Any) -> None:
        """Something that needs no rows, in order with those that do."""
        self._put((item, None, 0))

    def flush(self) -> None:
        """Waits until everything sent so far was handled."""
        done = threading.Event()
        self.post(done)
        self._hurry.set()
        done.wait()

    def stop(self) -> None:
        self._put(None)
        self._hurry.set()
        self._thread.join()

    def _put(self, entry: Any) -> None:
        self._entries.append(entry)
        if not self._some.is_set():
            self._some.set()

    def _run(self) -> None:
        if self._is_cuda:  # a thread begins on the first device, a worker may have another
            torch.cuda.set_device(self.rows.words.device)
        while True:
            self._some.wait()
            self._hurry.wait(PAUSE_SECONDS)
            self._hurry.clear()
            self._some.clear()  # before the entries are looked at: one that comes now is taken, or wakes the thread again
            while self._entries:
                entry = self._entries.popleft()
                if entry is None:
                    return
                self._take(*entry)

    def _take(self, item: Any, buffer: Buffer | None, num_rows: int) -> None:
        if isinstance(item, threading.Event):
            item.set()
        elif buffer is None:
            self.handle(item, None, (0.0, 0.0))
        else:
            if buffer.copied is not None:
                buffer.copied.synchronize()
            words, laps = buffer.words[:num_rows].numpy().copy(), buffer.clock.laps_us()
            self._free.put(buffer)
            self.handle(item, words, laps)
