"""A branch of a captured CUDA graph: what it reads is not given to others before it ends."""

from __future__ import annotations

import pytest
import torch

from probes.vllm.branch import Branch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_what_a_branch_reads_stays_until_it_ends() -> None:
    device = torch.device("cuda")
    branch = Branch(device)
    x, out = torch.ones(1 << 20, device=device), torch.zeros(2, device=device)

    def slow_sum(y: torch.Tensor) -> None:
        torch.cuda._sleep(10_000_000)  # cycles
        torch.sum(y.view(1, -1), dim=1, out=out[:1])

    def step() -> None:
        y = x * 2
        branch.run(slow_sum, y, reads=(y,))
        del y
        for _ in range(4):
            torch.full_like(x, -1.0)  # would get y's memory
        branch.join()
        out[1:].copy_(out[:1] + 1)

    step()  # in line
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for value in (1.0, 3.0):
        x.fill_(value)
        out.zero_()
        graph.replay()
        assert out.tolist() == [2 * value * (1 << 20), 2 * value * (1 << 20) + 1]
