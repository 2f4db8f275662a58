"""Logits that are computed when they are looked at: the same rows, and how often the output head is asked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probes.target import trace as trace_module
from probes.target.trace import HeadLogits, TargetTrace


@pytest.mark.parametrize("is_kept", [False, True])
def test_logits_are_those_of_the_head(monkeypatch: pytest.MonkeyPatch, is_kept: bool) -> None:
    monkeypatch.setattr(HeadLogits, "is_kept", is_kept)
    monkeypatch.setattr(trace_module, "BLOCK_ELEMENTS", 3 * 11)
    generator = torch.Generator().manual_seed(0)
    states, weight = (torch.randn(n, 5, generator=generator) for n in (7, 11))
    num_asked = []

    def head(states: Tensor) -> Tensor:
        num_asked.append(len(states))
        return states @ weight.T

    trace = TargetTrace(
        token_ids=torch.arange(10),
        num_prompt_tokens=3,
        num_response_tokens=7,
        finish_reason="forced",
        aux={},
        logits=HeadLogits(states, head, 11),
    )
    exact = states @ weight.T
    assert trace.choices.best.tolist() == exact.argmax(dim=-1).tolist()
    torch.testing.assert_close(trace.logits[2:5], exact[2:5])
    torch.testing.assert_close(trace.logits[torch.tensor([6, 0])], exact[[6, 0]])
    assert num_asked == ([7] if is_kept else [3, 3, 1, 3, 2])
    assert HeadLogits(states, head, 11).is_kept is is_kept


def test_the_host_keeps_no_logits() -> None:
    assert not HeadLogits(torch.zeros(7, 5), torch.nn.Identity(), 11).is_kept
