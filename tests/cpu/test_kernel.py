"""The region-mass kernel under Triton's interpreter, and its torch counterpart, against one float64 softmax."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from probes.attention import kernel as kernel_module
from probes.attention.band import Band
from probes.attention.kernel import kernel_name
from probes.attention.masses import OwnChain, attend_regions_plain, merge_chain
from probes.attention.region_kernel import RegionAttention, attend_banded
from probes.attention.tiles import Blocks, choose_splits
from tests.kernel_cases import BANDED, PAGED, Case, PagedCase, check_banded, check_chain, check_paged
from tests.region_oracle import assert_agrees, attend_exactly

SMALL = Blocks(rows=16, slots=16, num_warps=4, num_stages=1)


@pytest.mark.parametrize("case", BANDED.values(), ids=BANDED.keys())
def test_a_band(case: Case) -> None:
    check_banded(case, "cpu")


@pytest.mark.parametrize("case", PAGED.values(), ids=PAGED.keys())
def test_a_paged_cache(case: PagedCase) -> None:
    check_paged(case, "cpu")


@given(
    num_queries=st.integers(1, 20),
    before=st.integers(0, 60),
    after=st.integers(0, 5),
    window=st.none() | st.integers(1, 40),
    depth=st.integers(1, 6),
    shape=st.sampled_from([(4, 2), (3, 3), (7, 1)]),
    num_splits=st.integers(1, 3),
    has_sink=st.booleans(),
    run_slots=st.sampled_from([1, 16, 23, 64, 300]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_any_band(
    num_queries: int,
    before: int,
    after: int,
    window: int | None,
    depth: int,
    shape: tuple[int, int],
    num_splits: int,
    has_sink: bool,
    run_slots: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    case = Case(
        num_queries=num_queries, num_slots=before + num_queries + after, last=before, window=window, depth=depth,
        heads=shape[0], kv_heads=shape[1], head_dim=16, dtype=dtype, has_sink=has_sink, num_splits=num_splits,
        blocks=SMALL, seed=seed, run_slots=run_slots,
    )  # fmt: skip
    check_banded(case, "cpu")


@pytest.mark.parametrize("window", [None, 5])
def test_the_torch_counterpart(window: int | None) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(7, 6, 32), torch.randn(50, 2, 32), torch.randn(50, 2, 32)
    region = torch.randint(9, (50,), dtype=torch.uint8)
    band = Band.causal(43, query_position=44, window=window)
    query, slot = torch.arange(7), torch.arange(50)
    is_seen = (slot <= band.last + query[:, None]) & (slot >= band.first + query[:, None])
    found = attend_regions_plain(q, k, v, region, 9, band, 32**-0.5)
    expected = attend_exactly(q, k, v, is_seen, region, 9, 32**-0.5, current=band.last + query)
    assert_agrees(RegionAttention(*found), expected, v, region, band.last + query)


def test_the_own_chain_merges_into_one_softmax() -> None:
    """Band and own chain together are one softmax over both, masses, entropy and output."""
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 4, 16), torch.randn(20, 2, 16), torch.randn(20, 2, 16)
    own = OwnChain(torch.randn(3, 5, 2, 16), torch.randn(3, 5, 2, 16))
    region = torch.randint(4, (20,), dtype=torch.uint8)
    band = Band.causal(17, query_position=22, window=9)
    seen = attend_regions_plain(q, k, v, region, 4, band, 0.25)
    out, masses = merge_chain(q, seen, own, 0.25, 9)
    for i in range(3):
        keys, values = torch.cat([k, own.k[i]]), torch.cat([v, own.v[i]])
        slot = torch.arange(20)
        is_seen = torch.cat([(slot <= 17 + i) & (slot >= band.first + i), torch.ones(5, dtype=torch.bool)])
        where = torch.cat([region, torch.full((5,), 4, dtype=torch.uint8)])
        one = attend_exactly(q[i : i + 1], keys, values, is_seen[None], where, 5, 0.25, current=torch.tensor([17 + i]))
        region_mass = masses.region[i].double()
        region_mass[:, int(region[17 + i])] += masses.current[i].double()
        torch.testing.assert_close(region_mass, one.mass[0, :, :4], atol=1e-5, rtol=0)
        torch.testing.assert_close(masses.own[i].double(), one.mass[0, :, 4], atol=1e-5, rtol=0)
        torch.testing.assert_close(masses.entropy[i].double(), one.entropy[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(masses.lse[i].double(), one.lse[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(out[i].double(), one.out[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("window", "num_own"), [(None, 1), (None, 5), (3, 5), (2, 12)])
@pytest.mark.parametrize("is_empty", [False, True])
def test_the_chain_kernel_merges_as_torch_does(window: int | None, num_own: int, is_empty: bool) -> None:
    check_chain("cpu", torch.float32, window=window, num_own=num_own, is_empty=is_empty)


@pytest.mark.parametrize(
    ("num_programs", "num_tiles", "num_resident", "expected"),
    [
        (1, 64, 1, 4),  # one wave of 4 multiprocessors
        (4, 64, 1, 1),  # fills them already
        (5, 64, 1, 3),  # the second wave would be nearly empty
        (4, 64, 2, 2),
        (1, 3, 1, 1),  # too few tiles
        (0, 64, 1, 1),
    ],
)
def test_splits_fill_whole_waves(num_programs: int, num_tiles: int, num_resident: int, expected: int) -> None:
    assert choose_splits(torch.device("cpu"), num_programs, num_tiles, num_resident) == expected


def test_what_the_kernel_does_not_take_is_refused() -> None:
    q = torch.zeros(1, 1, 300)
    with pytest.raises(ValueError, match="head sizes to 256"):
        attend_banded(q, q, q, Band(0, 0), 1.0)


@pytest.mark.parametrize(
    ("device", "dtype", "has_triton", "expected"),
    [
        ("cuda:1", "bfloat16", True, "driftscope region kernel (Triton)"),
        ("cuda", "bfloat16", False, "aten efficient attention"),
        ("cuda", "float64", True, "plain torch"),
        ("cpu", "float64", True, "aten flash attention for CPU"),
        ("mps", "float32", False, "plain torch"),
    ],
)
def test_a_run_names_the_kernel_that_its_device_takes(
    device: str, dtype: str, has_triton: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_module, "has_triton", lambda: has_triton)
    assert kernel_name(device, dtype) == expected
