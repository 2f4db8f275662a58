"""The recorder's thread gets every step and message once and in order, lets them gather, hurries when it must, and says
which steps it came too late for."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from probes.vllm import transport as transport_module
from probes.vllm.rows import RowLayout, Rows, as_records
from probes.vllm.transport import Transport

LAYOUT = RowLayout(level="counts", depth=2, num_aux=3, num_layers=1, num_heads=1)


class Handled:
    """What the thread was given."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.num_sampled: list[list[int]] = []
        self.lost: list[Any] = []
        self.failures: list[Exception] = []

    def __call__(self, item: Any, words: np.ndarray | None, laps: tuple[float, float]) -> None:
        self.items.append(item)
        if words is not None:
            records = as_records(words, LAYOUT)
            assert records["serial"].tolist() == [int(records["serial"][0])] * 2
            self.num_sampled.append(records["num_sampled"].tolist())
        elif isinstance(item, int):
            self.lost.append(item)


@pytest.fixture
def handled() -> Handled:
    return Handled()


@pytest.fixture
def transport(handled: Handled, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its pause never ends by itself."""
    monkeypatch.setattr(transport_module, "PAUSE_SECONDS", 3600.0)
    made = Transport(Rows(LAYOUT, 3, torch.device("cpu")), handled, handled.failures.append)
    yield made
    made.stop()


def send(transport: Transport, number: int) -> None:
    transport.begin()
    transport.rows.first("num_sampled", 2).fill_(number)
    transport.keep(2)
    transport.send(number, 2)


def wait_for(handled: Handled, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(handled.items) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(handled.items) >= count


def test_a_flush_ends_the_pause_and_keeps_the_order(transport: Transport, handled: Handled) -> None:
    for number in range(0, 40, 2):
        send(transport, number)
        transport.post(f"after {number}")
    transport.flush()
    assert handled.items == [item for n in range(0, 40, 2) for item in (n, f"after {n}")]
    assert handled.num_sampled == [[n, n] for n in range(0, 40, 2)]  # each step's own rows, not the last ones
    transport.post("later")
    transport.flush()
    assert handled.items[-1] == "later"


def test_a_flush_with_a_limit_does_not_wait_for_a_thread_that_is_stuck(transport: Transport, handled: Handled) -> None:
    is_free = threading.Event()
    transport.handle = lambda *_: is_free.wait()
    transport.post("stuck")
    assert not transport.flush(0.05)
    is_free.set()
    assert transport.flush(600.0)


def test_steps_are_taken_before_the_ring_is_full(transport: Transport, handled: Handled) -> None:
    count = transport.num_steps // 2 + 1  # the last hurries the thread; one more might wait for the pause's end
    for number in range(count):
        send(transport, number)
    wait_for(handled, count)
    assert transport.num_lost == 0
    assert handled.num_sampled == [[n, n] for n in range(count)]


def test_a_step_that_was_overwritten_is_lost_and_those_after_it_are_not(
    handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transport, "_run", lambda self: None)  # the thread comes late: below
    transport = Transport(Rows(LAYOUT, 3, torch.device("cpu")), handled, handled.failures.append)
    for number in range(transport.num_steps + 3):
        send(transport, number)
    transport._take([transport._entries.popleft() for _ in range(transport.num_steps + 3)])
    assert handled.lost == [0, 1, 2]
    assert transport.num_lost == 3
    assert handled.num_sampled == [[n, n] for n in range(3, transport.num_steps + 3)]


def test_columns_written_late_come_along(transport: Transport, handled: Handled) -> None:
    transport.begin()
    transport.keep(2)
    transport.rows["emitted"].fill_(7)
    transport.rows["start"].fill_(5)
    transport.rows["draft_token"].fill_(9)
    transport.keep_columns(2, ("emitted", "start"))
    records = as_records(transport.ring[1, :2].numpy(), LAYOUT)
    assert records["emitted"].tolist() == [[7, 7, 7]] * 2
    assert records["start"].tolist() == [5, 5]
    assert records["draft_token"].tolist() == [[0, 0]] * 2


def test_no_message_is_lost_between_a_thread_that_falls_asleep_and_one_that_sends(
    handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "PAUSE_SECONDS", 0.0)
    transport = Transport(Rows(LAYOUT, 3, torch.device("cpu")), handled, handled.failures.append)
    for number in range(3_000):
        transport.post(number)
        if number % 100 == 0:
            wait_for(handled, number + 1)  # nothing but the sending wakes it
    wait_for(handled, 3_000)
    assert handled.items == list(range(3_000))
    transport.stop()


def test_a_device_that_fails_is_told_and_nobody_waits_forever(
    transport: Transport, handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(steps: Any) -> Any:
        raise RuntimeError("device-side assert")

    with monkeypatch.context() as patched:
        patched.setattr(transport, "_copies", broken)
        send(transport, 1)
        flushing = threading.Thread(target=transport.flush, daemon=True)
        flushing.start()
        flushing.join(timeout=60)
        assert not flushing.is_alive()
    assert [str(error) for error in handled.failures] == ["device-side assert"]
    assert handled.lost == [1]
    send(transport, 2)
    transport.flush()
    assert handled.num_sampled == [[2, 2]]
