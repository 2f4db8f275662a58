# ruff: noqa: N803  (constants in capitals, as Triton kernels are written)
"""Triton: one pass over each row of logits, for what `vocab_rows` asks of it; and the overlap of two distributions."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

GROUP_IDS = 256
BLOCK_IDS = 2048


@triton.jit
def _statistics(
    LOGITS, THRESHOLD, LSE, ENTROPY, GROUP_MAX, ABOVE, num_ids, num_groups, inverse_temperature, stride_row,
    NUM_THRESHOLDS: tl.constexpr, BLOCK_T: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offset = tl.arange(0, BLOCK)
    group = tl.arange(0, BLOCK // GROUP)
    which = tl.arange(0, BLOCK_T)
    highest = -1e30
    total = 0.0
    weighted = 0.0  # sum of exp(x - highest) (x - highest)
    above = tl.zeros([BLOCK_T], tl.int32)
    for begin in range(0, num_ids, BLOCK):
        is_id = begin + offset < num_ids
        raw = tl.load(LOGITS + row * stride_row + begin + offset, mask=is_id, other=float("-inf")).to(tl.float32)
        group_max = tl.max(tl.reshape(raw, [BLOCK // GROUP, GROUP]), 1)
        at = begin // GROUP + group
        tl.store(GROUP_MAX + row * num_groups + at, group_max, mask=at < num_groups)
        for i in tl.static_range(NUM_THRESHOLDS):
            threshold = tl.load(THRESHOLD + row * NUM_THRESHOLDS + i)
            above += tl.where(which == i, tl.sum((raw > threshold).to(tl.int32), 0), 0)
        x = raw * inverse_temperature
        new = tl.maximum(highest, tl.max(x, 0))
        scale = tl.exp(highest - new)
        shifted = tl.where(x > -1e30, x - new, 0.0)
        e = tl.where(x > -1e30, tl.exp(shifted), 0.0)
        weighted = scale * (weighted + (highest - new) * total) + tl.sum(e * shifted, 0)
        total = scale * total + tl.sum(e, 0)
        highest = new
    tl.store(LSE + row, highest + tl.log(total))
    tl.store(ENTROPY + row, tl.log(total) - weighted / total)
    if NUM_THRESHOLDS > 0:
        tl.store(ABOVE + row * NUM_THRESHOLDS + which, above, mask=which < NUM_THRESHOLDS)


@triton.jit
def _largest(
    LOGITS, GROUP_MAX, TOP, TOP_ID, num_ids, num_groups, stride_row,
    NUM_TOP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_G: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The NUM_TOP largest are in the NUM_TOP groups with the largest maxima."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, BLOCK_G)
    which = tl.arange(0, BLOCK_T)
    maxima = tl.load(GROUP_MAX + row * num_groups + group, mask=group < num_groups, other=float("-inf"))
    chosen = tl.zeros([BLOCK_T], tl.int32)
    for i in tl.static_range(NUM_TOP):
        best = tl.argmax(maxima, 0)
        chosen = tl.where(which == i, best, chosen)
        maxima = tl.where(group == best, float("-inf"), maxima)
    ids = chosen[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    is_id = ((which < NUM_TOP) & (which < num_groups))[:, None] & (ids < num_ids)
    x = tl.load(LOGITS + row * stride_row + ids, mask=is_id, other=float("-inf")).to(tl.float32)
    x = tl.reshape(x, [BLOCK_T * GROUP])
    ids = tl.reshape(ids, [BLOCK_T * GROUP])
    place = tl.arange(0, BLOCK_T * GROUP)
    for i in tl.static_range(NUM_TOP):
        at = tl.argmax(x, 0)
        tl.store(TOP + row * NUM_TOP + i, tl.max(x, 0))
        tl.store(TOP_ID + row * NUM_TOP + i, tl.sum(tl.where(place == at, ids, 0), 0))
        x = tl.where(place == at, float("-inf"), x)


@triton.jit
def _overlap(P, LOGITS, LSE, OUT, num_ids, stride_p, stride_logits, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offset = tl.arange(0, BLOCK)
    lse = tl.load(LSE + row)
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, num_ids, BLOCK):
        is_id = begin + offset < num_ids
        p = tl.load(P + row * stride_p + begin + offset, mask=is_id, other=0.0)
        x = tl.load(LOGITS + row * stride_logits + begin + offset, mask=is_id, other=float("-inf")).to(tl.float32)
        total += tl.minimum(p, tl.exp(x - lse))
    tl.store(OUT + row, tl.sum(total, 0))


def statistics(
    logits: Tensor, threshold: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """logits [row, id] -> (lse, entropy in nats, maxima of groups of GROUP_IDS ids, how many are above each threshold).

    lse and entropy are of logits / temperature; thresholds [row, n] are compared with the logits as they are.
    """
    num_rows, num_ids = logits.shape
    num_groups = triton.cdiv(num_ids, GROUP_IDS)
    num_thresholds = 0 if threshold is None else threshold.shape[1]

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, device=logits.device, dtype=dtype)

    lse, entropy, group_max = empty(num_rows), empty(num_rows), empty(num_rows, num_groups)
    above = None if threshold is None else empty(num_rows, num_thresholds, dtype=torch.int32)
    if num_rows:
        _statistics[num_rows,](
            logits, lse if threshold is None else threshold.float().contiguous(), lse, entropy, group_max,
            lse if above is None else above, num_ids, num_groups, 1.0 / temperature, logits.stride(0),
            NUM_THRESHOLDS=num_thresholds, BLOCK_T=triton.next_power_of_2(max(1, num_thresholds)),
            GROUP=GROUP_IDS, BLOCK=BLOCK_IDS, num_warps=8,
        )  # fmt: skip
    return lse, entropy, group_max, above


def largest(logits: Tensor, group_max: Tensor, num_top: int) -> tuple[Tensor, Tensor]:
    """The `num_top` largest logits of each row, float32, and their ids; `group_max` as `statistics` gives it."""
    num_rows, num_groups = group_max.shape
    top = torch.empty((num_rows, num_top), device=logits.device)
    top_id = torch.empty((num_rows, num_top), device=logits.device, dtype=torch.int64)
    if num_rows:
        _largest[num_rows,](
            logits, group_max, top, top_id, logits.shape[1], num_groups, logits.stride(0),
            NUM_TOP=num_top, BLOCK_T=triton.next_power_of_2(num_top), BLOCK_G=triton.next_power_of_2(num_groups),
            GROUP=GROUP_IDS, num_warps=4,
        )  # fmt: skip
    return top, top_id


def overlap(p: Tensor, logits: Tensor, lse: Tensor) -> Tensor:
    """sum min(p, exp(logits - lse)) of each row, float32."""
    out = torch.empty(len(p), device=p.device)
    if len(p):
        _overlap[len(p),](p, logits, lse, out, p.shape[1], p.stride(0), logits.stride(0), BLOCK=BLOCK_IDS, num_warps=8)
    return out
