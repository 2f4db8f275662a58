"""The region-mass kernel as compiled for the device, against one float64 softmax on the same rounded inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.attention.band import Band
from probes.attention.region_kernel import attend_banded
from probes.attention.tiles import choose_splits
from tests.kernel_cases import BANDED, PAGED, Case, PagedCase, check_banded, check_chain, check_paged

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("case", BANDED.values(), ids=BANDED.keys())
def test_a_band(case: Case) -> None:
    check_banded(case, "cuda")


@pytest.mark.parametrize("case", PAGED.values(), ids=PAGED.keys())
def test_a_paged_cache(case: PagedCase) -> None:
    check_paged(case, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window"),
    [(9, 3, 64, None), (9, 3, 64, 700), (8, 2, 128, None), (8, 2, 128, 700), (4, 4, 192, None), (8, 1, 256, 700)],
)
def test_thousands_of_queries(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, window: int | None) -> None:
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype}
    check_banded(Case(num_queries=1100, num_slots=2100, window=window, depth=4, **shape), "cuda", checks_plain=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_over_a_long_ragged_batch(dtype: torch.dtype) -> None:
    lengths = (1, 4096, 777, 16, 8191, 3000)
    check_paged(PagedCase(lengths=lengths, queries=(1,) * 6, head_dim=128, dtype=dtype), "cuda")


@given(
    num_queries=st.integers(1, 300),
    before=st.integers(0, 900),
    window=st.none() | st.integers(1, 500),
    depth=st.integers(1, 6),
    num_splits=st.none() | st.integers(1, 7),
    has_sink=st.booleans(),
    run_slots=st.sampled_from([1, 16, 23, 64, 300]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_band(
    num_queries: int,
    before: int,
    window: int | None,
    depth: int,
    num_splits: int | None,
    has_sink: bool,
    run_slots: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    case = Case(num_queries=num_queries, num_slots=before + num_queries, window=window, depth=depth, dtype=dtype)
    check_banded(
        replace(case, num_splits=num_splits, has_sink=has_sink, run_slots=run_slots, seed=seed),
        "cuda",
        checks_plain=False,
    )


def test_the_kernel_runs_in_a_captured_graph_and_waits_for_nothing() -> None:
    q, k, v = (torch.randn(2000, n, 64, device="cuda", dtype=torch.bfloat16) for n in (8, 2, 2))
    region = torch.randint(9, (2000,), device="cuda", dtype=torch.uint8)
    band = Band.causal(0, query_position=0, window=None)
    first = attend_banded(q, k, v, band, 0.125, region=region, num_regions=9)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attend_banded(q, k, v, band, 0.125, region=region, num_regions=9)
    captured.out.fill_(7.0)
    graph.replay()
    torch.testing.assert_close(captured.out, first.out, rtol=0, atol=0)
    torch.testing.assert_close(captured.mass, first.mass, rtol=0, atol=0)


def test_few_programs_are_split() -> None:
    device = torch.device("cuda")
    num_multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    assert choose_splits(device, 8, 2048) > 8
    assert choose_splits(device, num_multiprocessors // 8, 2048) == 8  # one wave
    assert choose_splits(device, num_multiprocessors, 2048) == 1
    assert choose_splits(device, 4096, 2048) == 1
    assert choose_splits(device, 8, 3) == 1


@pytest.mark.parametrize(("window", "num_own", "is_empty"), [(None, 1, False), (3, 6, False), (2, 6, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chain_of_its_own_is_merged(window: int | None, num_own: int, is_empty: bool, dtype: torch.dtype) -> None:
    check_chain("cuda", dtype, window=window, num_own=num_own, is_empty=is_empty)
