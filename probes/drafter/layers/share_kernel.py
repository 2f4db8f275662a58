# ruff: noqa: N803  (constants in capitals, as Triton kernels are written)
"""Triton: the embedding's share of the stacked q, k, v products in one pass over them; `LlamaDrafterLayer.embed_share` has
the formula.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _accumulate(
    E, X, BIAS, inner, square, e_row, x_row, SIZE: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Adds <e, x> and <x, x> over SIZE entries, by lane."""
    for begin in range(0, SIZE, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        is_there = at < SIZE
        e = tl.load(E + e_row + at, mask=is_there, other=0.0).to(tl.float32)
        x = tl.load(X + x_row + at, mask=is_there, other=0.0).to(tl.float32)
        if HAS_BIAS:
            x -= tl.load(BIAS + at, mask=is_there, other=0.0).to(tl.float32)
        inner += e * x
        square += x * x
    return inner, square


@triton.jit
def _share(
    E, Q, K, V, Q_BIAS, K_BIAS, V_BIAS, OUT,
    Q_SIZE: tl.constexpr, KV_SIZE: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = row * (Q_SIZE + 2 * KV_SIZE)
    inner, square = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    inner, square = _accumulate(E, Q, Q_BIAS, inner, square, at, row * Q_SIZE, Q_SIZE, HAS_BIAS, BLOCK)
    inner, square = _accumulate(E, K, K_BIAS, inner, square, at + Q_SIZE, row * KV_SIZE, KV_SIZE, HAS_BIAS, BLOCK)
    at += Q_SIZE + KV_SIZE
    inner, square = _accumulate(E, V, V_BIAS, inner, square, at, row * KV_SIZE, KV_SIZE, HAS_BIAS, BLOCK)
    total = tl.sum(square, 0)
    share = tl.sum(inner, 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(OUT + row, tl.where(total > 0.0, share, float("nan")))


def share(from_embed: Tensor, products: tuple[Tensor, Tensor, Tensor], biases: tuple[Tensor, ...] | None) -> Tensor:
    """from_embed [row, q + 2 kv]; q [row, q], k and v [row, kv], biases included -> [row], float32."""
    q, k, v = (x.contiguous() for x in products)
    out = torch.empty(len(q), device=q.device)
    if len(q):
        _share[len(q),](
            from_embed, q, k, v, *((q, k, v) if biases is None else biases), out,
            Q_SIZE=q.shape[1], KV_SIZE=k.shape[1], HAS_BIAS=biases is not None, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return out
