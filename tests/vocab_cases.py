"""The vocabulary kernels against float64: under Triton's interpreter (tests/cpu) and on a GPU (tests/gpu)."""

from __future__ import annotations

import torch

from probes.target import vocab_kernel


def check_kernel(
    device: str, dtype: torch.dtype, *, num_rows: int, num_ids: int, num_thresholds: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(num_ids)
    logits = (torch.randn(num_rows, num_ids, generator=generator) * 4).to(device, dtype)
    columns = torch.randint(num_ids, (num_rows, num_thresholds), generator=generator).to(device)
    threshold = logits.gather(1, columns) if num_thresholds else None
    lse, entropy, group_max, above = vocab_kernel.statistics(logits, threshold, temperature)
    exact = logits.double() / temperature
    p = exact.softmax(-1)
    torch.testing.assert_close(lse.double(), exact.logsumexp(-1), atol=2e-5, rtol=0)
    torch.testing.assert_close(entropy.double(), torch.special.entr(p).sum(-1), atol=2e-5, rtol=0)
    if threshold is not None:
        assert above is not None
        assert torch.equal(above.long(), (logits[:, None, :] > threshold[:, :, None]).sum(-1))
    count = min(5, num_ids)
    top, top_id = vocab_kernel.largest(logits, group_max, count)
    assert torch.equal(top, logits.float().topk(count).values)
    assert torch.equal(logits.float().gather(1, top_id), top)
    other = (torch.randn(num_rows, num_ids, generator=generator) * 4).to(device, dtype)
    expected = torch.minimum(p, other.double().softmax(-1)).sum(-1)
    found = vocab_kernel.overlap(p.float(), other, other.float().logsumexp(-1))
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=0)
