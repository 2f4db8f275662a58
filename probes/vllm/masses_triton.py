"""`masses.write_masses` on a GPU: flash-decoding over the paged keys, without the values, with one sum for each region.

Two kernels, both capturable into CUDA graphs: partial sums over splits of the slots, then their merge. Nothing is read
back and no shape depends on a length: a short text leaves most of its splits without work. float32 sums of bf16, fp16 or
float32 keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from probes.record import REGIONS
from probes.vllm.boundaries import CURRENT, FIRST_TEXT_REGION, OWN, RESPONSE, SINK, UNKNOWN, Boundaries, Queries

NUM_CODES = 16  # REGIONS, padded to what a matrix product wants
PARTIAL = NUM_CODES + 2  # sums by region, then the maximum and the sum of probability * logit
MERGED_HEADS = 32  # at a time
REGION_CODES = {
    "OWN": OWN,
    "CURRENT": CURRENT,
    "SINK": SINK,
    "RESPONSE": RESPONSE,
    "UNKNOWN": UNKNOWN,
    "FIRST_TEXT": FIRST_TEXT_REGION,
}


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """How the slots of a row are shared out. `benchmarks/recorder_kernels.py --tune` measures others."""

    num_splits: int = 32  # a power of two
    min_share: int = 64  # slots of a split at least
    block: int = 32  # slots at a time
    num_warps: int = 1


TILES = Tiles()


def make_scratch(num_rows: int, num_heads: int, device: torch.device, *, tiles: Tiles = TILES) -> Tensor:
    """Scratch for `launch`, of a batch of at most `num_rows`."""
    return torch.empty(num_rows * num_heads * tiles.num_splits * PARTIAL, dtype=torch.float32, device=device)


def launch(
    queries: Queries,
    boundaries: Boundaries,
    *,
    start: Tensor,
    step: Tensor,
    layer: int,
    mass: Tensor,
    entropy: Tensor,
    scratch: Tensor | None,
    tiles: Tiles = TILES,
) -> None:
    """See `masses.write_masses`; `scratch` comes from `make_scratch` and stays where it is."""
    assert scratch is not None
    rows = queries.rows if queries.rows is not None else queries.positions
    shared = {
        "HAS_ROWS": queries.rows is not None,
        "BLOCK": tiles.block,
        "SPLITS": tiles.num_splits,
        "MIN_SHARE": tiles.min_share,
        "CODES": NUM_CODES,
    }
    _launch_partial(queries, boundaries, rows, start, step, scratch, tiles, shared)
    num_heads = queries.q.shape[1]
    _merge[(queries.num_rows,)](
        scratch,
        rows,
        queries.positions,
        step,
        boundaries.slot,
        mass[:, :, layer],
        entropy[:, :, layer],
        mass.stride(0),
        mass.stride(1),
        mass.stride(3),
        entropy.stride(0),
        entropy.stride(1),
        entropy.stride(3),
        queries.window or 0,
        num_heads,
        **shared,
        HEADS=min(MERGED_HEADS, triton.next_power_of_2(num_heads)),
        NUM_REGIONS=len(REGIONS),
        IS_MEAN=mass.shape[3] == 1,
        num_warps=8,
    )


def _launch_partial(
    queries: Queries,
    boundaries: Boundaries,
    rows: Tensor,
    start: Tensor,
    step: Tensor,
    scratch: Tensor,
    tiles: Tiles,
    shared: dict[str, int],
) -> None:
    q, keys, region = queries.q, queries.keys, boundaries.region
    num_heads, head_dim = q.shape[1:]
    num_kv_heads = keys.shape[2]
    group = num_heads // num_kv_heads
    _partial[(queries.num_rows, num_kv_heads, tiles.num_splits)](
        q,
        keys,
        queries.block_table,
        rows,
        queries.positions,
        start,
        step,
        boundaries.slot,
        boundaries.num_prompt_tokens,
        region if region is not None else boundaries.slot,
        scratch,
        q.stride(0),
        q.stride(1),
        *keys.stride(),
        queries.block_table.stride(0),
        start.stride(0),
        0 if region is None else region.stride(0),
        queries.scale,
        queries.window or 0,
        boundaries.num_sink_slots,
        num_heads,
        GROUP=group,
        GROUP_PADDED=max(16, triton.next_power_of_2(group)),
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_SLOTS=keys.shape[1],
        **shared,
        HAS_REGION=region is not None,
        **REGION_CODES,
        num_warps=tiles.num_warps,
    )


@triton.jit
def _splits(
    row,
    rows_ptr,
    positions_ptr,
    window,
    HAS_ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
    MIN_SHARE: tl.constexpr,  # noqa: N803
):
    """-> the token of a row's query, the first slot it sees, the first it does not, how many slots a split has."""
    token = row.to(tl.int64)
    if HAS_ROWS:
        token = tl.load(rows_ptr + row).to(tl.int64)
    end = tl.load(positions_ptr + token).to(tl.int32) + 1
    begin = tl.where(window > 0, tl.maximum(end - window, 0), 0)
    share = tl.maximum(tl.cdiv(tl.cdiv(end - begin, SPLITS), BLOCK) * BLOCK, MIN_SHARE)
    return token, begin, end, share


@triton.jit
def _partial(
    q_ptr,
    key_ptr,
    table_ptr,
    rows_ptr,
    positions_ptr,
    start_ptr,
    step_ptr,
    slot_ptr,
    num_prompt_ptr,
    region_ptr,
    out_ptr,
    q_token_stride,
    q_head_stride,
    key_block_stride,
    key_slot_stride,
    key_head_stride,
    key_dim_stride,
    table_stride,
    start_stride,
    region_stride,
    scale,
    window,
    num_sink_slots,
    num_heads,
    GROUP: tl.constexpr,  # noqa: N803
    GROUP_PADDED: tl.constexpr,  # noqa: N803
    HEAD_DIM: tl.constexpr,  # noqa: N803
    HEAD_DIM_PADDED: tl.constexpr,  # noqa: N803
    BLOCK_SLOTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
    MIN_SHARE: tl.constexpr,  # noqa: N803
    HAS_ROWS: tl.constexpr,  # noqa: N803
    HAS_REGION: tl.constexpr,  # noqa: N803
    CODES: tl.constexpr,  # noqa: N803
    OWN: tl.constexpr,  # noqa: N803
    CURRENT: tl.constexpr,  # noqa: N803
    SINK: tl.constexpr,  # noqa: N803
    RESPONSE: tl.constexpr,  # noqa: N803
    UNKNOWN: tl.constexpr,  # noqa: N803
    FIRST_TEXT: tl.constexpr,  # noqa: N803
):
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    if slot < 0:
        return
    token, begin, end, share = _splits(row, rows_ptr, positions_ptr, window, HAS_ROWS, BLOCK, SPLITS, MIN_SHARE)
    low = begin + split * share
    if low >= end:
        return
    high = tl.minimum(low + share, end)
    start = tl.load(start_ptr + row * start_stride).to(tl.int32)
    start = tl.where(tl.load(step_ptr) == 0, end - 1, start)
    num_prompt = tl.load(num_prompt_ptr + slot)

    heads = tl.arange(0, GROUP_PADDED)
    dims = tl.arange(0, HEAD_DIM_PADDED)
    codes = tl.arange(0, CODES)
    is_head = heads < GROUP
    q = tl.load(
        q_ptr + token * q_token_stride + (kv_head * GROUP + heads)[:, None] * q_head_stride + dims[None, :],
        mask=is_head[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    top = tl.full([GROUP_PADDED], float("-inf"), tl.float32)
    sums = tl.zeros([GROUP_PADDED, CODES], tl.float32)
    logit_sum = tl.zeros([GROUP_PADDED], tl.float32)
    for first in range(low, high, BLOCK):
        at = first + tl.arange(0, BLOCK)
        is_seen = at < high
        block = tl.load(table_ptr + row * table_stride + at // BLOCK_SLOTS, mask=is_seen, other=0).to(tl.int64)
        keys = tl.load(
            key_ptr
            + (block * key_block_stride + (at % BLOCK_SLOTS) * key_slot_stride + kv_head * key_head_stride)[None, :]
            + dims[:, None] * key_dim_stride,
            mask=is_seen[None, :] & (dims < HEAD_DIM)[:, None],
            other=0.0,
        )
        logits = tl.dot(q, keys, input_precision="ieee") * scale
        logits = tl.where(is_seen[None, :], logits, float("-inf"))
        new_top = tl.maximum(top, tl.max(logits, axis=1))
        shrink = tl.exp(top - new_top)
        weight = tl.exp(logits - new_top[:, None])
        code = tl.full([BLOCK], UNKNOWN, tl.int32)
        if HAS_REGION:
            is_prompt = is_seen & (at < num_prompt)
            code = tl.load(region_ptr + slot * region_stride + at, mask=is_prompt, other=0).to(tl.int32) + FIRST_TEXT
        code = tl.where(at >= num_prompt, RESPONSE, code)
        code = tl.where(at < num_sink_slots, SINK, code)
        code = tl.where(at == start, CURRENT, code)
        code = tl.where(at > start, OWN, code)
        # the weights, 0 to 1, as two halves of 11 bits: exact to 2e-7, and on tensor cores, which float32 would not be
        one_hot = (code[:, None] == codes[None, :]).to(tl.float16)
        coarse = weight.to(tl.float16)
        fine = (weight - coarse.to(tl.float32)).to(tl.float16)
        sums = sums * shrink[:, None] + tl.dot(fine, one_hot, tl.dot(coarse, one_hot))
        # no 0 * -inf: outside the band the weight is 0
        logit_sum = logit_sum * shrink + tl.sum(tl.where(is_seen[None, :], weight * logits, 0.0), axis=1)
        top = new_top
    place = ((row * num_heads + kv_head * GROUP + heads) * SPLITS + split) * (CODES + 2)
    tl.store(out_ptr + place[:, None] + codes[None, :], sums, mask=is_head[:, None])
    tl.store(out_ptr + place + CODES, top, mask=is_head)
    tl.store(out_ptr + place + CODES + 1, logit_sum, mask=is_head)


@triton.jit
def _merge(
    partial_ptr,
    rows_ptr,
    positions_ptr,
    step_ptr,
    slot_ptr,
    mass_ptr,
    entropy_ptr,
    mass_row_stride,
    mass_depth_stride,
    mass_head_stride,
    entropy_row_stride,
    entropy_depth_stride,
    entropy_head_stride,
    window,
    num_heads,
    HAS_ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
    MIN_SHARE: tl.constexpr,  # noqa: N803
    CODES: tl.constexpr,  # noqa: N803
    HEADS: tl.constexpr,  # noqa: N803
    NUM_REGIONS: tl.constexpr,  # noqa: N803
    IS_MEAN: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    if tl.load(slot_ptr + row) < 0:
        return
    _, begin, end, share = _splits(row, rows_ptr, positions_ptr, window, HAS_ROWS, BLOCK, SPLITS, MIN_SHARE)
    step = tl.load(step_ptr)
    splits = tl.arange(0, SPLITS)
    has_work = begin + splits * share < end
    codes = tl.arange(0, CODES)
    mass_at = mass_ptr + row * mass_row_stride + step * mass_depth_stride + codes
    entropy_at = entropy_ptr + row * entropy_row_stride + step * entropy_depth_stride
    mean = tl.zeros([CODES], tl.float32)
    mean_entropy = 0.0
    for first in range(0, num_heads, HEADS):  # many heads at a time: one head's loads take as long as all of theirs
        heads = first + tl.arange(0, HEADS)
        is_head = heads < num_heads
        is_part = is_head[:, None] & has_work[None, :]
        place = partial_ptr + ((row * num_heads + heads)[:, None] * SPLITS + splits[None, :]) * (CODES + 2)
        parts = tl.load(place[:, :, None] + codes[None, None, :], mask=is_part[:, :, None], other=0.0)
        tops = tl.load(place + CODES, mask=is_part, other=float("-inf"))
        tops = tl.where(is_head[:, None], tops, 0.0)
        logit_sums = tl.load(place + CODES + 1, mask=is_part, other=0.0)
        top = tl.max(tops, axis=1)
        weight = tl.exp(tops - top[:, None])
        sums = tl.sum(parts * weight[:, :, None], axis=1)
        total = tl.where(is_head, tl.sum(sums, axis=1), 1.0)
        shares = sums / total[:, None]
        entropy = tl.maximum(top + tl.log(total) - tl.sum(logit_sums * weight, axis=1) / total, 0.0)
        if IS_MEAN:
            mean += tl.sum(tl.where(is_head[:, None], shares, 0.0), axis=0)
            mean_entropy += tl.sum(tl.where(is_head, entropy, 0.0), axis=0)
        else:
            is_stored = is_head[:, None] & (codes < NUM_REGIONS)[None, :]
            tl.store(mass_at[None, :] + (heads * mass_head_stride)[:, None], shares, mask=is_stored)
            tl.store(entropy_at + heads * entropy_head_stride, entropy, mask=is_head)
    if IS_MEAN:
        tl.store(mass_at, mean / num_heads, mask=codes < NUM_REGIONS)
        tl.store(entropy_at, mean_entropy / num_heads)
