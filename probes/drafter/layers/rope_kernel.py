# ruff: noqa: N803  (constants in capitals, as Triton kernels are written)
"""Triton: RoPE of a layer's queries and keys together. transformers' `apply_rotary_pos_emb` is ten operations; each product
and the sum are rounded to the tensors' dtype as there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate_heads(
    X, OUT, cos_low, cos_high, sin_low, sin_high, row,
    NUM_HEADS: tl.constexpr, BLOCK_H: tl.constexpr, HALF: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    head, d = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    at = row * NUM_HEADS * 2 * HALF + head[:, None] * 2 * HALF + d[None, :]
    is_there = (head < NUM_HEADS)[:, None] & (d < HALF)[None, :]
    dtype = OUT.dtype.element_ty
    low = tl.load(X + at, mask=is_there, other=0.0).to(tl.float32)
    high = tl.load(X + at + HALF, mask=is_there, other=0.0).to(tl.float32)
    first = (low * cos_low[None, :]).to(dtype).to(tl.float32) - (high * sin_low[None, :]).to(dtype).to(tl.float32)
    second = (high * cos_high[None, :]).to(dtype).to(tl.float32) + (low * sin_high[None, :]).to(dtype).to(tl.float32)
    tl.store(OUT + at, first.to(dtype), mask=is_there)
    tl.store(OUT + at + HALF, second.to(dtype), mask=is_there)


@triton.jit
def _rotate(
    Q, K, COS, SIN, Q_OUT, K_OUT,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_KV: tl.constexpr,
    HALF: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    is_d = d < HALF
    at = row * 2 * HALF + d
    cos_low = tl.load(COS + at, mask=is_d, other=0.0).to(tl.float32)
    cos_high = tl.load(COS + at + HALF, mask=is_d, other=0.0).to(tl.float32)
    sin_low = tl.load(SIN + at, mask=is_d, other=0.0).to(tl.float32)
    sin_high = tl.load(SIN + at + HALF, mask=is_d, other=0.0).to(tl.float32)
    _rotate_heads(Q, Q_OUT, cos_low, cos_high, sin_low, sin_high, row, NUM_HEADS, BLOCK_H, HALF, BLOCK_D)
    _rotate_heads(K, K_OUT, cos_low, cos_high, sin_low, sin_high, row, NUM_KV_HEADS, BLOCK_KV, HALF, BLOCK_D)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q [*slot, head, d], k [*slot, kv_head, d], cos and sin [*slot, d] -> q and k after RoPE."""
    cos, sin = (x.expand(*q.shape[:-2], -1) for x in (cos, sin))
    q, k, cos, sin = (x.contiguous() for x in (q, k, cos, sin))
    num_heads, num_kv_heads, half = q.shape[-2], k.shape[-2], q.shape[-1] // 2
    num_rows = cos.numel() // (2 * half)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    if num_rows:
        _rotate[num_rows,](
            q, k, cos, sin, q_out, k_out,
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads,
            BLOCK_H=triton.next_power_of_2(num_heads), BLOCK_KV=triton.next_power_of_2(num_kv_heads),
            HALF=half, BLOCK_D=triton.next_power_of_2(half), num_warps=4,
        )  # fmt: skip
    return q_out, k_out
