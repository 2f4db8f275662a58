"""RoPE and the embedding's share by Triton, in its interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.layer_kernel_cases import FLAGS, check_layer_kernels


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layer_kernels(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, flags: dict[str, object]) -> None:
    check_layer_kernels(monkeypatch, "cpu", dtype, flags)
