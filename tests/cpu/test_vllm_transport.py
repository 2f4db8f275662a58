"""The recorder's thread gets every step and message once and in order, lets them gather, and hurries when it must."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from probes.vllm import transport as transport_module
from probes.vllm.rows import RowLayout, Rows
from probes.vllm.transport import Transport

LAYOUT = RowLayout(level="counts", depth=2, num_aux=3, num_layers=1, num_heads=1)


class Handled:
    """What the thread was given."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.num_sampled: list[list[int]] = []

    def __call__(self, item: Any, words: np.ndarray | None, laps: tuple[float, float]) -> None:
        self.items.append(item)
        if words is not None:
            self.num_sampled.append(words[:, 0].tolist())


@pytest.fixture
def handled() -> Handled:
    return Handled()


@pytest.fixture
def transport(handled: Handled, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its pause never ends by itself."""
    monkeypatch.setattr(transport_module, "PAUSE_SECONDS", 3600.0)
    made = Transport(Rows(LAYOUT, 3, torch.device("cpu")), handled)
    yield made
    made.stop()


def send(transport: Transport, number: int) -> None:
    buffer = transport.take()
    assert buffer is not None
    transport.rows.first("num_sampled", 2).fill_(number)
    transport.send(number, buffer, 2)


def wait_for(handled: Handled, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(handled.items) < count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(handled.items) >= count


def test_a_flush_ends_the_pause_and_keeps_the_order(transport: Transport, handled: Handled) -> None:
    for number in range(0, 40, 2):
        send(transport, number)
        transport.post(number + 1)
    transport.flush()
    assert handled.items == list(range(40))
    assert handled.num_sampled == [[n, n] for n in range(0, 40, 2)]  # each step's own rows, not the last ones
    transport.post("later")
    transport.flush()
    assert handled.items[-1] == "later"


def test_steps_are_taken_before_the_buffers_run_out(transport: Transport, handled: Handled) -> None:
    count = transport_module.MAX_BUFFERS // 2 + 1
    for number in range(count):
        send(transport, number)
    wait_for(handled, count)
    assert transport.num_dropped == 0


def test_a_step_without_a_buffer_is_counted(handled: Handled) -> None:
    transport = Transport(Rows(LAYOUT, 3, torch.device("cpu")), handled)
    taken = [transport.take() for _ in range(transport_module.MAX_BUFFERS)]
    assert transport.take() is None
    assert transport.num_dropped == 1
    assert taken[0] is not None
    transport.give_back(taken[0])
    assert transport.take() is taken[0]
    transport.stop()


def test_no_message_is_lost_between_a_thread_that_falls_asleep_and_one_that_sends(
    handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "PAUSE_SECONDS", 0.0)
    transport = Transport(Rows(LAYOUT, 3, torch.device("cpu")), handled)
    for number in range(3_000):
        transport.post(number)
        if number % 100 == 0:
            wait_for(handled, number + 1)  # nothing but the sending wakes it
    wait_for(handled, 3_000)
    assert handled.items == list(range(3_000))
    transport.stop()
