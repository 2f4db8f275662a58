"""Rows of logits reduced in plain torch and by the Triton kernel (its interpreter), against float64."""

from __future__ import annotations

import pytest
import torch

from probes.target.vocab_rows import overlap, row_statistics
from tests.vocab_cases import check_kernel


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_plain_torch(temperature: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 700) * 3
    threshold = logits[:, :3].clone()
    found = row_statistics(logits, 4, threshold=threshold, temperature=temperature)
    exact = logits.double() / temperature
    p = exact.softmax(-1)
    torch.testing.assert_close(found.lse.double(), exact.logsumexp(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropy.double(), torch.special.entr(p).sum(-1), atol=1e-5, rtol=0)
    assert found.top_id.tolist() == exact.topk(4).indices.tolist()
    assert found.num_above is not None
    assert found.num_above.tolist() == [
        [int((row > t).sum()) for t in ts] for row, ts in zip(logits, threshold, strict=True)
    ]
    other = torch.randn(5, 700)
    expected = torch.minimum(p, other.double().softmax(-1)).sum(-1)
    torch.testing.assert_close(overlap(p.float(), other, other.logsumexp(-1)).double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("num_ids", [7, 256, 2049, 5000])
@pytest.mark.parametrize("num_thresholds", [0, 3])
def test_the_kernel(num_ids: int, num_thresholds: int) -> None:
    pytest.importorskip("triton")
    check_kernel("cpu", torch.float32, num_rows=3, num_ids=num_ids, num_thresholds=num_thresholds, temperature=0.7)
