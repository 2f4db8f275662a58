# ruff: noqa: N803, E741  (constants in capitals and the l of the papers, as Triton kernels are written)
"""The Triton programs of `region_kernel`: one online softmax over tiles of slots with its masses, and the merge of splits.

Online softmax after Milakov & Gimelshein (arXiv 1805.02867); the entropy is kept relative to the running maximum.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
def tile_regions(REGION, TILE_REGION, num_slots, num_tiles, stride_region, BLOCK_N: tl.constexpr):
    """Program (tile, request): the region of the tile's slots, 255 where they are of several."""
    tile, request = tl.program_id(0), tl.program_id(1).to(tl.int64)
    region_base = REGION + request * stride_region
    slot = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.load(region_base + tile * BLOCK_N, mask=tile * BLOCK_N < num_slots, other=0)
    is_other = (tl.load(region_base + slot, mask=slot < num_slots, other=0) != first) & (slot < num_slots)
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
            if only < 16:  # the same for all threads of a program
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
def attention(
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
def merge_splits(
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
