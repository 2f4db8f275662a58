"""The recorder's Triton kernels under Triton's interpreter against plain torch (its bfloat16 is not exact: float32)."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.recorder_kernel_cases import SHORT, MassCase, check_fusion, check_masses, check_norms, check_ring


@pytest.mark.parametrize("case", SHORT.values(), ids=SHORT.keys())
@pytest.mark.parametrize("is_mean", [False, True])
def test_masses(case: MassCase, is_mean: bool) -> None:
    check_masses(case, "cpu", is_mean=is_mean)


@pytest.mark.parametrize("hidden", [1500, 4600])
def test_norms(hidden: int) -> None:
    check_norms("cpu", torch.float32, hidden)


def test_fusion_shares() -> None:
    check_fusion("cpu", torch.float32)


def test_a_round_begins_and_ends_in_the_ring() -> None:
    check_ring("cpu")
