"""The region-mass kernel against float64, case by case: under Triton's interpreter (tests/cpu) and on a GPU (tests/gpu)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probes.attention import chain_kernel
from probes.attention.band import Band
from probes.attention.masses import BandAttention, OwnChain, merge_masses, merge_own, own_logits
from probes.attention.region_kernel import Paged, attend_banded, attend_paged
from probes.attention.tiles import Blocks
from tests.region_oracle import assert_agrees, attend_exactly

NUM_REGIONS = 9


@dataclass(frozen=True, kw_only=True)
class Case:
    num_queries: int = 5
    num_slots: int = 70
    last: int | None = None  # slot that query 0 sees last; None: the last query sees all
    window: int | None = None
    depth: int = 1  # the queries stand this much, less one, beyond their last slot
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    has_sink: bool = False
    num_splits: int | None = None
    blocks: Blocks | None = None
    spread: float = 1.0  # of the logits
    num_used_regions: int = NUM_REGIONS  # the others stay empty
    run_slots: int = 1  # neighbouring slots of one region: a tile within a run takes another path than one across
    seed: int = 0


BANDED = {
    "one token": Case(num_queries=1, num_slots=1),
    "one query": Case(num_queries=1),
    "a boundary inside a block": Case(num_slots=67, num_queries=9),
    "empty regions": Case(num_used_regions=2),
    "one region": Case(num_slots=150, run_slots=150),
    "runs of two tiles": Case(num_slots=300, run_slots=64, num_queries=40),
    "runs that end inside tiles": Case(num_slots=300, run_slots=75, num_queries=40),
    "runs, window, sink, splits": Case(num_slots=500, run_slots=90, window=200, has_sink=True, num_splits=3),
    "runs, bfloat16": Case(num_slots=500, run_slots=150, num_queries=40, dtype=torch.bfloat16),
    "runs, float16, head size 128": Case(num_slots=500, run_slots=130, dtype=torch.float16, head_dim=128),
    "window": Case(window=33, num_slots=150),
    "window smaller than a region": Case(window=3, num_used_regions=1),
    "window that ends before some chains' slots": Case(window=4, depth=4),
    "window that no query reaches with": Case(window=3, depth=5),
    "starts at the first slots": Case(num_queries=40, num_slots=60, last=0),
    "slots beyond the last query": Case(num_slots=100, last=30),
    "sink": Case(has_sink=True),
    "sink, window, splits": Case(has_sink=True, window=40, num_slots=300, num_splits=3),
    "splits": Case(num_queries=2, num_slots=400, num_splits=4),
    "more splits than tiles": Case(num_queries=2, num_slots=20, num_splits=5),
    "bfloat16": Case(dtype=torch.bfloat16),
    "bfloat16, splits, sink": Case(dtype=torch.bfloat16, num_splits=3, num_slots=300, has_sink=True),
    "float16": Case(dtype=torch.float16, head_dim=128),
    "peaked": Case(spread=8.0),
    "peaked bfloat16": Case(spread=6.0, dtype=torch.bfloat16),
    "one kv head a head": Case(kv_heads=6),
    "one kv head": Case(heads=5, kv_heads=1),
    "head size 16": Case(head_dim=16),
    "head size 80": Case(head_dim=80),
    "head size 96, bfloat16": Case(head_dim=96, dtype=torch.bfloat16),
    "head size 256": Case(head_dim=256, num_slots=40),
}


def check_banded(case: Case, device: str, *, checks_plain: bool = True) -> None:
    generator = torch.Generator().manual_seed(case.seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, case.dtype)

    q = random(case.num_queries, case.heads, case.head_dim)
    k = random(case.num_slots, case.kv_heads, case.head_dim)
    v = random(case.num_slots, case.kv_heads, case.head_dim)
    num_runs = -(-case.num_slots // case.run_slots)
    runs = torch.randint(case.num_used_regions, (num_runs,), generator=generator)
    region = runs.repeat_interleave(case.run_slots)[: case.num_slots].to(device, torch.uint8)
    sink = torch.randn(case.heads, generator=generator).to(device) if case.has_sink else None
    last = case.num_slots - case.num_queries if case.last is None else case.last
    band = Band.causal(last, query_position=last + case.depth - 1, window=case.window)
    scale = case.spread * case.head_dim**-0.5
    found = attend_banded(
        q, k, v, band, scale, region=region, num_regions=NUM_REGIONS, sink=sink,
        num_splits=case.num_splits, blocks=case.blocks,
    )  # fmt: skip
    query, slot = torch.arange(case.num_queries, device=device), torch.arange(case.num_slots, device=device)
    is_seen = (slot <= band.last + query[:, None]) & (slot >= band.first + query[:, None])
    current = band.last + query
    expected = attend_exactly(q, k, v, is_seen, region, NUM_REGIONS, scale, current=current, sink=sink)
    assert_agrees(found, expected, v, region, current)
    if not checks_plain:
        return
    plain = attend_banded(q, k, v, band, scale, sink=sink, num_splits=case.num_splits, blocks=case.blocks)
    assert plain.mass is None
    torch.testing.assert_close(plain.lse, found.lse, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(plain.out, found.out, atol=1e-5 if case.dtype == torch.float32 else 2**-7, rtol=0)


@dataclass(frozen=True, kw_only=True)
class PagedCase:
    lengths: tuple[int, ...] = (1, 37, 96)
    queries: tuple[int, ...] = (1, 1, 1)
    block: int = 16
    window: int | None = None
    by_bounds: bool = True
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    dtype: torch.dtype = torch.float32
    has_sink: bool = False
    num_splits: int | None = None
    seed: int = 0


PAGED = {
    "decode, ragged lengths": PagedCase(),
    "decode, region ids": PagedCase(by_bounds=False),
    "decode, region ids, long": PagedCase(by_bounds=False, lengths=(300, 7, 129), num_splits=2),
    "decode, long, bfloat16": PagedCase(lengths=(700, 64, 129), dtype=torch.bfloat16, head_dim=128, num_splits=2),
    "decode, window": PagedCase(window=20),
    "decode, splits, sink": PagedCase(lengths=(300, 5, 129), num_splits=3, has_sink=True),
    "several queries a request": PagedCase(queries=(1, 5, 3)),
    "bfloat16": PagedCase(dtype=torch.bfloat16, head_dim=128, lengths=(200, 64, 63)),
    "an empty request's slots": PagedCase(lengths=(2, 2, 1)),
}


def check_paged(case: PagedCase, device: str) -> None:
    generator = torch.Generator().manual_seed(case.seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, case.dtype)

    num_requests, max_slots = len(case.lengths), max(case.lengths)
    table_width = -(-max_slots // case.block)
    num_blocks = num_requests * table_width + 3
    table = torch.randperm(num_blocks, generator=generator)[: num_requests * table_width].view(num_requests, -1)
    k = random(num_blocks, case.block, case.kv_heads, case.head_dim)
    v = random(num_blocks, case.block, case.kv_heads, case.head_dim)
    q = random(sum(case.queries), case.heads, case.head_dim)
    # regions of very different lengths, one of them empty
    bounds = torch.tensor([[min(1, n), n // 3, n // 3, max(n - 2, 0)] for n in case.lengths])
    region = (torch.arange(max_slots)[None, :, None] >= bounds[:, None, :]).sum(-1).to(torch.uint8)
    sink = torch.randn(case.heads, generator=generator).to(device) if case.has_sink else None
    starts = torch.tensor([0, *case.queries]).cumsum(0)
    as_int = {"device": device, "dtype": torch.int32}
    paged = Paged(
        table.to(**as_int), torch.tensor(case.lengths, **as_int), starts.to(**as_int), max(case.queries), max_slots
    )
    found = attend_paged(
        q, k, v, paged, case.head_dim**-0.5,
        bounds=bounds.to(device) if case.by_bounds else None,
        region=None if case.by_bounds else region.to(device),
        num_regions=5, window=case.window, sink=sink, num_splits=case.num_splits,
    )  # fmt: skip
    for r, (length, num_queries) in enumerate(zip(case.lengths, case.queries, strict=True)):
        rows = slice(int(starts[r]), int(starts[r + 1]))
        own_k, own_v = (x[table[r].to(device)].flatten(0, 1)[:length] for x in (k, v))
        position = length - num_queries + torch.arange(num_queries, device=device)[:, None]
        slot = torch.arange(length, device=device)
        is_seen = (slot <= position) & (slot > position - (case.window or length + 1))
        where = region[r, :length].to(device)
        expected = attend_exactly(q[rows], own_k, own_v, is_seen, where, 5, case.head_dim**-0.5, sink=sink)
        assert_agrees(type(found)(*(x[rows] for x in found)), expected, v, where, None)


def check_chain(device: str, dtype: torch.dtype, *, window: int | None, num_own: int, is_empty: bool) -> None:
    """The own-chain kernel against the torch operations that it stands for; `is_empty`: nothing of the band is seen."""
    generator = torch.Generator().manual_seed(num_own)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    q, own = random(4, 6, 24), OwnChain(random(4, num_own, 2, 24), random(4, num_own, 2, 24))
    mass = torch.rand(4, 6, 10, generator=generator).to(device)
    mass = torch.zeros_like(mass) if is_empty else mass / mass.sum(-1, keepdim=True)
    lse = torch.randn(4, 6, generator=generator).to(device)
    entropy = torch.rand(4, 6, generator=generator).to(device)
    out = random(4, 6, 24)
    if is_empty:
        out, lse, entropy = torch.zeros_like(out), torch.full_like(lse, -torch.inf), torch.zeros_like(entropy)
    band = BandAttention(out, lse, mass, entropy)
    logits = own_logits(q, own, 0.3, window)
    wide = OwnChain(own.k.float(), own.v.float())
    expected, expected_out = merge_masses(band, logits), merge_own(out.float(), lse, logits, wide)
    found_out, found_lse, found_mass, found_own, found_entropy = chain_kernel.merge(q, *own, band, 0.3, window)
    expected_mass = torch.cat([expected.region, expected.current[..., None]], dim=-1)
    for found, reference in (
        (found_lse, expected.lse), (found_mass, expected_mass), (found_own, expected.own),
        (found_entropy, expected.entropy),
    ):  # fmt: skip
        torch.testing.assert_close(found, reference, atol=1e-5, rtol=0)
    tolerance = 1e-5 if dtype == torch.float32 else 2.0**-7 * float(own.v.abs().max())
    torch.testing.assert_close(found_out.float(), expected_out, atol=tolerance, rtol=0)
