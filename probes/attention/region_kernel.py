"""Triton: attention over a band of slots that also says, in the same pass over K, where the probability went.

One kernel for thousands of queries (replay) and for one query a request (decode, split over the slots). Rows are (query,
head of one kv head) pairs, so K and V are read once per GQA group. Accumulation is float32, float32 inputs are multiplied
in full precision (`ieee`). Regions are long runs: a tile of slots that lies in one has the softmax's own row sum as its
mass; where several meet, masses are summed from float16 probabilities (11 bits, the others' 8 would not do). Knows nothing
of chains or text. `region_programs` is what runs on the device, `probes.attention.masses` the same in plain torch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from probes.attention.band import Band
from probes.attention.region_programs import attention, merge_splits, tile_regions
from probes.attention.tiles import Blocks, choose_blocks, choose_splits, padded

MAX_HEAD_DIM = 256
MAX_REGIONS = 15
"""Columns of the one-hot tile, less the one of the current slot."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class RegionAttention(NamedTuple):
    """Attention and where it looked. `mass` holds the regions' shares and, last, the current slot's where that is apart.

    Over the columns the masses of a head sum to 1 (to 1 - exp(sink - lse) with a learned sink). No slot seen: zeros, -inf.
    """

    out: Float[Tensor, "query head head_dim"]  # q's dtype
    lse: Float[Tensor, "query head"]  # float32, nats; a learned sink is in it
    mass: Float[Tensor, "query head _"] | None  # float32; the regions and the current slot
    entropy: Float[Tensor, "query head"] | None  # float32, nats; a learned sink counts as one more outcome


class Paged(NamedTuple):
    """A cache in blocks, as an engine keeps it. Slot j of request r: block_table[r, j // block], row j % block."""

    block_table: Int[Tensor, "row _"]  # a row is a request
    num_slots: Int[Tensor, "row"]  # filled slots, this step's own included
    query_start: Int[Tensor, "_"]  # rows of q: request r has query_start[r] .. query_start[r+1] - 1
    max_queries: int  # of one request
    max_slots: int


def attend_banded(
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "slot kv_head head_dim"],
    v: Float[Tensor, "slot kv_head head_dim"],
    band: Band,
    scale: float,
    *,
    region: UInt8[Tensor, "token"] | None = None,
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
    k: Float[Tensor, "_ _ kv_head head_dim"],  # [block, row of the block, ...]
    v: Float[Tensor, "_ _ kv_head head_dim"],
    paged: Paged,
    scale: float,
    *,
    bounds: Int[Tensor, "row _"] | None = None,
    region: UInt8[Tensor, "row slot"] | None = None,
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
    blocks = blocks or choose_blocks(q.dtype, head_dim, num_queries * group)
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
        tile_regions[num_tiles, num_requests](
            region, tile_region, min(num_slots, region.shape[1]), num_tiles, region.stride(0), BLOCK_N=blocks.slots
        )
    attention[num_blocks * num_splits, num_kv_heads, num_requests](
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
        merge_splits[total_queries * num_heads,](
            *parts, *nothings, *out, *nothings, total_queries * num_heads, num_splits,
            HEAD_DIM=head_dim, BLOCK_D=padded(head_dim),
            BLOCK_S=1 << (num_splits - 1).bit_length(), NUM_MASSES=num_masses, num_warps=4,
        )  # fmt: skip
    return RegionAttention(out[0], out[1], out[2] if num_masses else None, out[3] if num_masses else None)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
