"""The packed flash kernel with merged own keys against one plain softmax, forward and backward, on a CUDA device."""

from __future__ import annotations

import pytest
import torch

from training.attention import Packing, attend_flash, attend_plain

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("num_own", [0, 1, 2, 6])
def test_flash_with_own_keys_equals_plain(num_own: int) -> None:
    torch.manual_seed(num_own)
    lengths = [37, 1, 200, 90]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    conversation = torch.repeat_interleave(torch.arange(4, dtype=torch.int32), torch.tensor(lengths)).cuda()
    packing = Packing(conversation, starts, max(lengths))
    n, heads, kv_heads, head_dim = sum(lengths), 9, 3, 64
    shapes = [(n, heads), (n, kv_heads), (n, kv_heads), (num_own, n, kv_heads), (num_own, n, kv_heads)]
    exact = [torch.randn(*shape, head_dim, device="cuda").bfloat16().double().requires_grad_() for shape in shapes]
    fast = [x.detach().bfloat16().requires_grad_() for x in exact]
    grad = torch.randn(n, heads, head_dim, device="cuda").bfloat16()
    expected = attend_plain(*exact, packing)
    got = attend_flash(*fast, packing)
    expected.backward(grad.double())
    got.backward(grad)
    pairs = [(expected, got)] + [(a.grad, b.grad) for a, b in zip(exact, fast, strict=True) if a.numel()]
    for a, b in pairs:
        assert a is not None
        assert b is not None
        assert ((a - b.double()).norm() / a.norm()).item() < 1e-2
