"""The drafter layers' kernels against the torch operations that they stand for: under Triton's interpreter (tests/cpu) and
on a GPU (tests/gpu).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.layers import llama
from tests.tiny_models import random_tensors, tiny_spec

FLAGS: dict[str, dict[str, Any]] = {
    "three heads a kv head": {"head_dim": 24},
    "biases": {"attention_bias": True},
    "qwen3": {"family": "qwen3", "num_heads": 5, "num_kv_heads": 5},
    "more than one block": {"num_heads": 30, "num_kv_heads": 10, "head_dim": 64},
}


def check_layer_kernels(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype, flags: dict[str, Any]
) -> None:
    """q, k and v by head and the embedding's share of 7 slots, one of them all zeros."""
    spec = tiny_spec(**flags)
    drafter = Eagle3.load(spec, random_tensors(spec, 0), dtype=dtype, device=device)
    layer, generator = drafter.layers[0], torch.Generator().manual_seed(0)
    x = torch.randn(7, 2 * spec.hidden_size, generator=generator).to(device, dtype)
    x[3] = 0
    rotation = drafter.rotation(torch.arange(11, 18, device=device))
    projected = layer.products(x)
    found = {}
    for is_kernel in (False, True):
        monkeypatch.setattr(llama, "has_layer_kernels", lambda x: is_kernel)  # noqa: B023
        found[is_kernel] = [*layer.heads(projected, rotation), layer.embed_share(x, projected)]
    for ours, theirs in zip(found[True][:3], found[False][:3], strict=True):
        assert ours.shape == theirs.shape
        step = torch.finfo(dtype).eps * float(theirs.abs().max())  # the interpreter truncates to bfloat16
        torch.testing.assert_close(ours, theirs, atol=2 * step, rtol=0)
    share, expected = found[True][3], found[False][3]
    assert share.dtype == torch.float32
    assert share.isnan().tolist() == expected.isnan().tolist()
    torch.testing.assert_close(share, expected, atol=2e-5, rtol=1e-5, equal_nan=True)
