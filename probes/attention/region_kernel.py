# ruff: noqa: N803, E741  (constants in capitals and the l of the papers, as Triton kernels are written)
"""Triton: attention over a band of slots that also says, in the same pass over K, where the probability went.

One kernel for thousands of queries (replay) and for one query a request (decode, split over the slots). Rows are (query,
head of one kv head) pairs, so K and V are read once per GQA group. Accumulation is float32, float32 inputs are multiplied
in full precision (`ieee`). Regions are long runs: a tile of slots that lies in one has the softmax's own row sum as its
mass; where several meet, masses are summed from float16 probabilities (11 bits, the others' 8 would not do).
Online softmax after Milakov & Gimelshein (arXiv 1805.02867); the entropy is kept relative to the running maximum, the
splits are merged by log-sum-exp. Knows nothing of chains or text. `probes.attention.masses` has the same in plain torch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from probes.attention.kernel import Band
from probes.attention.tiles import Blocks, choose_blocks, choose_splits, padded

MAX_HEAD_DIM = 256
MAX_REGIONS = 15
"""Columns of the one-hot tile, less the one of the current slot."""
NUM_COLUMNS = 16  # the smallest a matrix unit takes
SEVERAL = 255  # the "region" of a tile in which several meet
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class RegionAttention(NamedTuple):
    """Attention and where it looked. `mass` holds the regions' shares and, last, the current slot's where that is apart.

    Over the columns the masses of a head sum to 1 (to 1 - exp(sink - lse) with a learned sink). No slot seen: zeros, -inf.
    """

    out: Float[Tensor, "query head head_dim"]  # q's dtype
    lse: Float[Tensor, "query head"]  # float32, nats; a learned sink is in it
    mass: Float[Tensor, "query head column"] | None  # float32
    entropy: Float[Tensor, "query head"] | None  # float32, nats; a learned sink counts as one more outcome


class Paged(NamedTuple):
    """A cache in blocks, as an engine keeps it. Slot j of request r: block_table[r, j // block], row j % block."""

    block_table: Int[Tensor, "request block"]
    num_slots: Int[Tensor, "request"]  # filled slots, this step's own included
    query_start: Int[Tensor, "request_and_end"]  # rows of q: request r has query_start[r] .. query_start[r+1] - 1
    max_queries: int  # of one request
    max_slots: int


@triton.jit
def _dot(a, b, to, IS_WIDENED: tl.constexpr):
    """to + a b. `IS_WIDENED`: for the interpreter, which would multiply bfloat16's bits as integers."""
    if IS_WIDENED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), to, input_precision="ieee")
    return tl.dot(a, b, to, input_precision="ieee")


@triton.jit
def _region_at(bounds_base, slot, NUM_BOUNDS: tl.constexpr):
    """How many bounds are at or before a slot, or before each of a block of slots."""
    region = slot * 0
    for i in tl.static_range(NUM_BOUNDS):
        region += (slot >= tl.load(bounds_base + i)).to(tl.int32)
    return region


@triton.jit(do_not_specialize=["num_slots", "num_tiles"])
def _tile_regions(REGION, TILE_REGION, num_slots, num_tiles, stride_region, BLOCK_N: tl.constexpr):
    """Program (tile, request): the region of the tile's slots, 255 (SEVERAL) where they are of several."""
    tile, request = tl.program_id(0), tl.program_id(1).to(tl.int64)
    region_base = REGION + request * stride_region + tile * BLOCK_N
    offset = tl.arange(0, BLOCK_N)
    first = tl.load(region_base)
    is_other = tl.load(region_base + offset, mask=tile * BLOCK_N + offset < num_slots, other=255) != first
    is_other = is_other & (tile * BLOCK_N + offset < num_slots)
    tl.store(TILE_REGION + request * num_tiles + tile, tl.where(tl.max(is_other.to(tl.int32), 0) > 0, 255, first))


@triton.jit
def _tiles(
    q, acc, mass, m, l, e, current,
    k_base, v_base, region_base, tile_region_base, bounds_base, table_base,
    tile_begin, tile_end, num_slots, first, last, scale_log2,
    stride_kb, stride_ks, stride_vb, stride_vs,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr,
    NUM_BOUNDS: tl.constexpr, HAS_MASS: tl.constexpr, HAS_CURRENT: tl.constexpr, IS_WIDENED: tl.constexpr,
    IS_MASKED: tl.constexpr,
):  # fmt: skip
    """Online softmax over the tiles tile_begin .. tile_end-1; `first` and `last` are the rows' own slots [row]."""
    offset_n = tl.arange(0, BLOCK_N)
    offset_d = tl.arange(0, BLOCK_D)
    column = tl.arange(0, 16)
    for tile in range(tile_begin, tile_end):
        slot = tile * BLOCK_N + offset_n
        if PAGE == 0:
            k_rows = k_base + slot.to(tl.int64) * stride_ks
            v_rows = v_base + slot.to(tl.int64) * stride_vs
        else:
            page = tl.load(table_base + slot // PAGE, mask=slot < num_slots, other=0).to(tl.int64)
            k_rows = k_base + page * stride_kb + (slot % PAGE) * stride_ks
            v_rows = v_base + page * stride_vb + (slot % PAGE) * stride_vs
        k_pointers = k_rows[None, :] + offset_d[:, None]
        v_pointers = v_rows[:, None] + offset_d[None, :]
        if IS_MASKED:
            k = tl.load(k_pointers, mask=(slot < num_slots)[None, :] & (offset_d < HEAD_DIM)[:, None], other=0.0)
        elif HEAD_DIM < BLOCK_D:
            k = tl.load(k_pointers, mask=(offset_d < HEAD_DIM)[:, None], other=0.0)
        else:
            k = tl.load(k_pointers)
        s = _dot(q, k, tl.zeros([q.shape[0], BLOCK_N], tl.float32), IS_WIDENED) * scale_log2
        if IS_MASKED:
            is_seen = (slot[None, :] <= last[:, None]) & (slot[None, :] >= first[:, None]) & (slot < num_slots)[None, :]
            s = tl.where(is_seen, s, -1e30)
        m_new = tl.maximum(m, tl.max(s, 1))
        alpha = tl.exp2(m - m_new)
        shifted = s - m_new[:, None]
        p = tl.exp2(shifted)
        if IS_MASKED:
            p = tl.where(is_seen, p, 0.0)
        if HAS_MASS:
            e = alpha * (e + (m - m_new) * l) + tl.sum(p * shifted, 1)
            elsewhere = p
            if HAS_CURRENT:
                current *= alpha
                if IS_MASKED:
                    is_current = slot[None, :] == last[:, None]
                    current += tl.sum(tl.where(is_current, p, 0.0), 1)
                    elsewhere = tl.where(is_current, 0.0, p)
            mass *= alpha[:, None]
            if NUM_BOUNDS > 0:
                only = _region_at(bounds_base, tile * BLOCK_N, NUM_BOUNDS)
                if only != _region_at(bounds_base, tile * BLOCK_N + BLOCK_N - 1, NUM_BOUNDS):
                    only = 255
            else:
                only = tl.load(tile_region_base + tile).to(tl.int32)
            if only < 16:
                mass += tl.where((column == only)[None, :], tl.sum(elsewhere, 1)[:, None], 0.0)
            else:
                if NUM_BOUNDS > 0:
                    region = _region_at(bounds_base, slot, NUM_BOUNDS)
                else:
                    region = tl.load(region_base + slot, mask=slot < num_slots, other=0).to(tl.int32)
                one_hot = region[:, None] == column[None, :]
                if q.dtype == tl.float32:
                    mass = _dot(elsewhere, one_hot.to(tl.float32), mass, False)
                else:
                    mass = _dot(elsewhere.to(tl.float16), one_hot.to(tl.float16), mass, False)
        l = l * alpha + tl.sum(p, 1)
        m = m_new
        if IS_MASKED:
            v = tl.load(v_pointers, mask=(slot < num_slots)[:, None] & (offset_d < HEAD_DIM)[None, :], other=0.0)
        elif HEAD_DIM < BLOCK_D:
            v = tl.load(v_pointers, mask=(offset_d < HEAD_DIM)[None, :], other=0.0)
        else:
            v = tl.load(v_pointers)
        acc = _dot(p.to(v.dtype), v, acc * alpha[:, None], IS_WIDENED)
    return acc, mass, m, l, e, current


@triton.jit(
    do_not_specialize=[
        "num_slots", "num_queries", "band_first", "band_last", "total_queries", "num_splits", "window",
        "stride_table", "stride_region", "stride_tile_region",
    ]
)  # fmt: skip
def _attention(
    Q, K, V, REGION, TILE_REGION, BOUNDS, SINK, TABLE, NUM_SLOTS, QUERY_START,
    OUT, LSE, MASS, ENTROPY,
    scale_log2, num_slots, num_queries, band_first, band_last, total_queries, num_splits, window,
    stride_qq, stride_qh, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, stride_table, stride_region,
    stride_tile_region,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PAGE: tl.constexpr, HAS_WINDOW: tl.constexpr,
    NUM_BOUNDS: tl.constexpr, NUM_MASSES: tl.constexpr, HAS_CURRENT: tl.constexpr, HAS_SINK: tl.constexpr,
    IS_WIDENED: tl.constexpr,
):  # fmt: skip
    """Program (block of rows x split, kv head, request). PAGE > 0: a paged cache, with the requests' own bands."""
    kv_head, request = tl.program_id(1), tl.program_id(2)
    block = tl.num_programs(0) // num_splits - 1 - tl.program_id(0) // num_splits  # the longest rows first
    split = tl.program_id(0) % num_splits
    query_begin = 0
    table_base, bounds_base, region_base, tile_region_base = TABLE, BOUNDS, REGION, TILE_REGION
    if PAGE > 0:
        query_begin = tl.load(QUERY_START + request)
        num_queries = tl.load(QUERY_START + request + 1) - query_begin
        num_slots = tl.load(NUM_SLOTS + request)
        band_last = num_slots - num_queries
        table_base += request * stride_table
        bounds_base += request * NUM_BOUNDS
        region_base += request.to(tl.int64) * stride_region
        tile_region_base += request * stride_tile_region
        if HAS_WINDOW:
            band_first = band_last - window + 1
    if block * BLOCK_M >= num_queries * GROUP:
        return
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    query = row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = query < num_queries
    offset_d = tl.arange(0, BLOCK_D)
    where = (query_begin + query).to(tl.int64)
    q_pointers = Q + (where * stride_qq + head * stride_qh)[:, None] + offset_d[None, :]
    q = tl.load(q_pointers, mask=is_row[:, None] & (offset_d < HEAD_DIM)[None, :], other=0.0)

    m = tl.full([BLOCK_M], -1e30, tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINK:  # noqa: SIM102  (the first is decided when compiling)
        if split == 0:
            m = tl.load(SINK + head).to(tl.float32) * 1.4426950408889634
            l += 1.0
    e = tl.zeros([BLOCK_M], tl.float32)
    current = tl.zeros([BLOCK_M], tl.float32)
    mass = tl.zeros([BLOCK_M, 16], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    query_low = (block * BLOCK_M) // GROUP
    query_high = tl.minimum((block * BLOCK_M + BLOCK_M - 1) // GROUP, num_queries - 1)
    slot_end = tl.maximum(tl.minimum(num_slots, band_last + query_high + 1), 0)
    tile_low = 0
    full_low = 0
    if HAS_WINDOW:
        tile_low = tl.maximum(band_first + query_low, 0) // BLOCK_N
        full_low = (tl.maximum(band_first + query_high, 0) + BLOCK_N - 1) // BLOCK_N
    tile_high = (slot_end + BLOCK_N - 1) // BLOCK_N
    full_high = tl.maximum(tl.minimum(band_last + query_low + 1 - HAS_CURRENT, num_slots), 0) // BLOCK_N
    share = (tl.maximum(tile_high - tile_low, 0) + num_splits - 1) // num_splits
    begin = tile_low + split * share
    end = tl.minimum(begin + share, tile_high)
    full_begin = tl.minimum(tl.maximum(full_low, begin), end)
    full_end = tl.minimum(tl.maximum(full_high, full_begin), end)

    k_base = K + kv_head * stride_kh
    v_base = V + kv_head * stride_vh
    first = band_first + query
    last = band_last + query
    if HAS_WINDOW:
        acc, mass, m, l, e, current = _tiles(
            q, acc, mass, m, l, e, current, k_base, v_base, region_base, tile_region_base, bounds_base, table_base,
            begin, full_begin, num_slots, first, last, scale_log2, stride_kb, stride_ks, stride_vb, stride_vs,
            HEAD_DIM, BLOCK_D, BLOCK_N, PAGE, NUM_BOUNDS, NUM_MASSES > 0, HAS_CURRENT, IS_WIDENED, True,
        )  # fmt: skip
    acc, mass, m, l, e, current = _tiles(
        q, acc, mass, m, l, e, current, k_base, v_base, region_base, tile_region_base, bounds_base, table_base,
        full_begin, full_end, num_slots, first, last, scale_log2, stride_kb, stride_ks, stride_vb, stride_vs,
        HEAD_DIM, BLOCK_D, BLOCK_N, PAGE, NUM_BOUNDS, NUM_MASSES > 0, HAS_CURRENT, IS_WIDENED, False,
    )  # fmt: skip
    acc, mass, m, l, e, current = _tiles(
        q, acc, mass, m, l, e, current, k_base, v_base, region_base, tile_region_base, bounds_base, table_base,
        full_end, end, num_slots, first, last, scale_log2, stride_kb, stride_ks, stride_vb, stride_vs,
        HEAD_DIM, BLOCK_D, BLOCK_N, PAGE, NUM_BOUNDS, NUM_MASSES > 0, HAS_CURRENT, IS_WIDENED, True,
    )  # fmt: skip

    is_empty = l == 0.0
    inverse = tl.where(is_empty, 0.0, 1.0 / tl.where(is_empty, 1.0, l))
    log_l = tl.log(tl.where(is_empty, 1.0, l))
    to = (split * total_queries + where).to(tl.int64) * NUM_HEADS + head
    out_pointers = OUT + (to * HEAD_DIM)[:, None] + offset_d[None, :]
    out = (acc * inverse[:, None]).to(OUT.dtype.element_ty)
    tl.store(out_pointers, out, mask=is_row[:, None] & (offset_d < HEAD_DIM)[None, :])
    lse = tl.where(is_empty, float("-inf"), m * 0.6931471805599453 + log_l)
    tl.store(LSE + to, lse, mask=is_row)
    if NUM_MASSES > 0:
        column = tl.arange(0, 16)
        if HAS_CURRENT:
            mass += tl.where((column == NUM_MASSES - 1)[None, :], current[:, None], 0.0)
        mass_pointers = MASS + (to * NUM_MASSES)[:, None] + column[None, :]
        tl.store(mass_pointers, mass * inverse[:, None], mask=is_row[:, None] & (column < NUM_MASSES)[None, :])
        tl.store(ENTROPY + to, log_l - e * inverse * 0.6931471805599453, mask=is_row)


@triton.jit(do_not_specialize=["num_rows", "num_splits"])
def _merge_splits(
    PART_OUT, PART_LSE, PART_MASS, PART_ENTROPY, OUT, LSE, MASS, ENTROPY, num_rows, num_splits,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, NUM_MASSES: tl.constexpr,
):  # fmt: skip
    """One (query, head) a program: its splits weighted by exp(their lse - the whole lse)."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, BLOCK_S)
    is_split = split < num_splits
    at = split * num_rows.to(tl.int64) + row
    lse = tl.load(PART_LSE + at, mask=is_split, other=float("-inf"))
    highest = tl.max(lse, 0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp(lse - highest)
    total = tl.sum(weight, 0)
    is_empty = total == 0.0
    weight = weight / tl.where(is_empty, 1.0, total)
    offset_d = tl.arange(0, BLOCK_D)
    is_part = is_split[:, None] & (offset_d < HEAD_DIM)[None, :]
    out = tl.load(PART_OUT + (at * HEAD_DIM)[:, None] + offset_d[None, :], mask=is_part, other=0.0)
    out = tl.sum(out * weight[:, None], 0)
    tl.store(OUT + row * HEAD_DIM + offset_d, out.to(OUT.dtype.element_ty), mask=offset_d < HEAD_DIM)
    whole = highest + tl.log(tl.where(is_empty, 1.0, total))
    tl.store(LSE + row, tl.where(is_empty, float("-inf"), whole))
    if NUM_MASSES > 0:
        column = tl.arange(0, 16)
        is_mass = is_split[:, None] & (column < NUM_MASSES)[None, :]
        mass = tl.load(PART_MASS + (at * NUM_MASSES)[:, None] + column[None, :], mask=is_mass, other=0.0)
        tl.store(MASS + row * NUM_MASSES + column, tl.sum(mass * weight[:, None], 0), mask=column < NUM_MASSES)
        entropy = tl.load(PART_ENTROPY + at, mask=is_split, other=0.0)
        surprise = tl.where(weight > 0.0, -tl.log(tl.where(weight > 0.0, weight, 1.0)), 0.0)
        tl.store(ENTROPY + row, tl.sum(weight * (entropy + surprise), 0))


def attend_banded(
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "slot kv_head head_dim"],
    v: Float[Tensor, "slot kv_head head_dim"],
    band: Band,
    scale: float,
    *,
    region: UInt8[Tensor, "slot"] | None = None,
    num_regions: int = 0,
    sink: Float[Tensor, "head"] | None = None,
    num_splits: int | None = None,
    blocks: Blocks | None = None,
) -> RegionAttention:
    """softmax(scale * q k^T) v of queries whose band moves by one slot a query, and the masses by `region`.

    `region` holds ids < num_regions (at most MAX_REGIONS); the current slot, `band.last` + i, has a column of its own.
    Without `region` only `out` and `lse`. `sink`: a learned logit per head that takes probability and gives no value.
    `num_splits` and `blocks` are chosen by shape and device when not given.
    """
    _check(q, k, num_regions)
    return _launch(
        q,
        k[None],
        v[None],
        scale,
        num_queries=len(q),
        num_slots=len(k),
        band=band,
        region=None if region is None else region[None],
        num_regions=num_regions,
        has_current=True,
        sink=sink,
        num_splits=num_splits,
        blocks=blocks,
    )


def attend_paged(
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "block slot kv_head head_dim"],
    v: Float[Tensor, "block slot kv_head head_dim"],
    paged: Paged,
    scale: float,
    *,
    bounds: Int[Tensor, "request bound"] | None = None,
    region: UInt8[Tensor, "request slot"] | None = None,
    num_regions: int = 0,
    window: int | None = None,
    sink: Float[Tensor, "head"] | None = None,
    num_splits: int | None = None,
    blocks: Blocks | None = None,
) -> RegionAttention:
    """The same for a batch of requests on an engine's paged cache: the last query of a request sees all its slots.

    Regions come as ascending `bounds` (int32: region of slot j = how many bounds are <= j, so bounds + 1 regions) or as an
    id per slot. No current slot is set apart. Reads no device value on the host, so it can be captured in a CUDA graph.
    """
    if bounds is not None:
        num_regions = bounds.shape[1] + 1
        if bounds.dtype != torch.int32 or not bounds.is_contiguous():
            bounds = bounds.to(torch.int32).contiguous()
    _check(q, k, num_regions)
    return _launch(
        q,
        k,
        v,
        scale,
        num_queries=paged.max_queries,
        num_slots=paged.max_slots,
        paged=paged,
        bounds=bounds,
        region=region,
        num_regions=num_regions,
        has_current=False,
        window=window,
        sink=sink,
        num_splits=num_splits,
        blocks=blocks,
    )


def _check(q: Tensor, k: Tensor, num_regions: int) -> None:
    if q.dtype not in DTYPES or k.dtype != q.dtype or q.shape[-1] > MAX_HEAD_DIM or num_regions > MAX_REGIONS:
        raise ValueError(
            f"the region-mass kernel takes float32, bfloat16 or float16, head sizes to {MAX_HEAD_DIM} and at most "
            f"{MAX_REGIONS} regions, not {q.dtype} and {k.dtype}, {q.shape[-1]} and {num_regions}"
        )


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    num_queries: int,
    num_slots: int,
    region: Tensor | None,
    num_regions: int,
    has_current: bool,
    sink: Tensor | None,
    num_splits: int | None,
    blocks: Blocks | None,
    band: Band | None = None,
    paged: Paged | None = None,
    bounds: Tensor | None = None,
    window: int | None = None,
) -> RegionAttention:
    total_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[2]
    group = num_heads // num_kv_heads
    is_paged = paged is not None
    blocks = blocks or choose_blocks(q.dtype, head_dim, num_queries * group, is_paged=is_paged)
    num_requests = 1 if paged is None else paged.block_table.shape[0]
    num_blocks = _ceil(num_queries * group, blocks.rows)
    num_tiles = _ceil(num_slots, blocks.slots)
    if num_splits is None:
        num_programs = num_blocks * num_kv_heads * num_requests
        num_resident = blocks.num_resident(q.dtype, head_dim, is_paged=is_paged)
        num_splits = choose_splits(q.device, num_programs, num_tiles, num_resident)
    num_masses = 0 if region is None and bounds is None else num_regions + has_current
    if band is not None:
        window = None if band.first < -num_queries else band.last - band.first + 1  # else it reaches slot 0 for all
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))

    def outputs(parts: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        shape = (*parts, total_queries, num_heads)
        shapes = [(*shape, head_dim), shape] + ([(*shape, num_masses), shape] if num_masses else [])
        return [q.new_empty(s, dtype=torch.float32 if i else dtype) for i, s in enumerate(shapes)]

    out = outputs((), q.dtype)
    parts = out if num_splits == 1 else outputs((num_splits,), torch.float32)
    nothing = out[1]  # stands for a pointer that is never read
    tile_region = nothing
    if region is not None:
        tile_region = region.new_empty((num_requests, num_tiles))
        _tile_regions[num_tiles, num_requests](
            region, tile_region, min(num_slots, region.shape[1]), num_tiles, region.stride(0), BLOCK_N=blocks.slots
        )
    _attention[num_blocks * num_splits, num_kv_heads, num_requests](
        q, k, v,
        nothing if region is None else region,
        tile_region,
        nothing if bounds is None else bounds,
        nothing if sink is None else sink,
        *((nothing, nothing, nothing) if paged is None else (paged.block_table, paged.num_slots, paged.query_start)),
        *(parts if num_masses else (*parts, nothing, nothing)),
        scale * 1.4426950408889634,
        num_slots, num_queries, 0 if band is None else max(band.first, -num_queries), 0 if band is None else band.last,
        total_queries, num_splits, window or 0,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), k.stride(2), v.stride(0), v.stride(1), v.stride(2),
        0 if paged is None else paged.block_table.stride(0), 0 if region is None else region.stride(0), num_tiles,
        NUM_HEADS=num_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_D=padded(head_dim),
        BLOCK_M=blocks.rows, BLOCK_N=blocks.slots,
        PAGE=0 if paged is None else k.shape[1],
        HAS_WINDOW=window is not None,
        NUM_BOUNDS=0 if bounds is None else bounds.shape[1], NUM_MASSES=num_masses, HAS_CURRENT=has_current,
        HAS_SINK=sink is not None, IS_WIDENED=q.device.type == "cpu",
        num_warps=blocks.num_warps, num_stages=blocks.num_stages,
    )  # fmt: skip
    if num_splits > 1:
        nothings = () if num_masses else (nothing, nothing)
        _merge_splits[total_queries * num_heads,](
            *parts, *nothings, *out, *nothings, total_queries * num_heads, num_splits,
            HEAD_DIM=head_dim, BLOCK_D=padded(head_dim),
            BLOCK_S=1 << (num_splits - 1).bit_length(), NUM_MASSES=num_masses, num_warps=4,
        )  # fmt: skip
    return RegionAttention(out[0], out[1], out[2] if num_masses else None, out[3] if num_masses else None)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
