"""The vocabulary kernels as compiled for the device."""

from __future__ import annotations

import pytest
import torch

from tests.vocab_cases import check_kernel

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_ids", [160, 6144, 128256])
@pytest.mark.parametrize("num_thresholds", [0, 7])
def test_the_kernel(dtype: torch.dtype, num_ids: int, num_thresholds: int) -> None:
    check_kernel("cuda", dtype, num_rows=301, num_ids=num_ids, num_thresholds=num_thresholds, temperature=1.0)
