"""The recorder's Triton kernels on a GPU against plain torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from tests.recorder_kernel_cases import LONG, SHORT, MassCase, check_fusion, check_masses, check_norms, check_ring

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

CASES = {**{f"{name}, long": case for name, case in LONG.items()}, **SHORT}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("is_mean", [False, True])
def test_masses(case: MassCase, is_mean: bool) -> None:
    check_masses(case, "cuda", is_mean=is_mean)


@pytest.mark.parametrize("hidden", [1500, 4600])
def test_norms(hidden: int) -> None:
    check_norms("cuda", torch.bfloat16, hidden)


def test_fusion_shares() -> None:
    check_fusion("cuda", torch.bfloat16)


def test_a_round_begins_and_ends_in_the_ring() -> None:
    check_ring("cuda")
