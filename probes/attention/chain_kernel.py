# ruff: noqa: N803  (constants in capitals, as Triton kernels are written)
"""Triton: a chain's own slots merged into the attention over the true slots, masses and entropy with them.

One program a (query, head): a handful of keys. `probes.attention.masses` has the same in plain torch (`merge_own`,
`merge_masses`), some thirty operations on small tensors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["num_own", "window"])
def _merge(
    Q, K, V, BAND_OUT, BAND_LSE, BAND_MASS, BAND_ENTROPY, OUT, LSE, MASS, OWN, ENTROPY,
    scale, num_own, window, stride_qq, stride_qh, stride_kq, stride_ko, stride_kh, stride_vq, stride_vo, stride_vh,
    stride_bq, stride_bh,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_O: tl.constexpr,
    NUM_MASSES: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    query, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv_head = head // GROUP
    at = query * NUM_HEADS + head
    own, d = tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_D)
    is_own = (own < num_own) & (own >= num_own - window)
    is_d = d < HEAD_DIM
    is_tile = is_own[:, None] & is_d[None, :]
    q = tl.load(Q + query * stride_qq + head * stride_qh + d, mask=is_d, other=0.0).to(tl.float32)
    k_pointers = K + query * stride_kq + kv_head * stride_kh + own[:, None] * stride_ko + d[None, :]
    k = tl.load(k_pointers, mask=is_tile, other=0.0).to(tl.float32)
    logits = tl.where(is_own, tl.sum(k * q[None, :], 1) * scale, -1e30)
    band_lse = tl.load(BAND_LSE + at)
    is_band = band_lse > -1e30
    band_lse = tl.where(is_band, band_lse, -1e30)
    highest = tl.maximum(tl.max(logits, 0), band_lse)
    weight = tl.where(is_own, tl.exp(logits - highest), 0.0)
    band_weight = tl.where(is_band, tl.exp(band_lse - highest), 0.0)
    total = band_weight + tl.sum(weight, 0)
    lse = highest + tl.log(total)
    probability = weight / total
    in_band = band_weight / total
    v_pointers = V + query * stride_vq + kv_head * stride_vh + own[:, None] * stride_vo + d[None, :]
    v = tl.load(v_pointers, mask=is_tile, other=0.0).to(tl.float32)
    band_out = tl.load(BAND_OUT + query * stride_bq + head * stride_bh + d, mask=is_d, other=0.0).to(tl.float32)
    out = band_out * in_band + tl.sum(v * probability[:, None], 0)
    tl.store(OUT + at * HEAD_DIM + d, out.to(OUT.dtype.element_ty), mask=is_d)
    column = tl.arange(0, BLOCK_C)
    mass = tl.load(BAND_MASS + at * NUM_MASSES + column, mask=column < NUM_MASSES, other=0.0)
    tl.store(MASS + at * NUM_MASSES + column, mass * in_band, mask=column < NUM_MASSES)
    tl.store(LSE + at, lse)
    tl.store(OWN + at, tl.sum(probability, 0))
    band_entropy = in_band * (tl.load(BAND_ENTROPY + at) + tl.where(is_band, lse - band_lse, 0.0))
    own_entropy = tl.sum(tl.where(is_own, probability * (lse - logits), 0.0), 0)
    tl.store(ENTROPY + at, tl.maximum(band_entropy + own_entropy, 0.0))


def merge(
    q: Tensor, k: Tensor, v: Tensor, band: tuple[Tensor, Tensor, Tensor, Tensor], scale: float, window: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q [query, head, d]; k, v [query, own, kv_head, d]; `band`: its out, lse, mass [query, head, column], entropy.

    -> out, lse, the band's masses in the whole softmax, the own slots' mass, entropy.
    """
    band_out, band_lse, band_mass, band_entropy = band
    num_queries, num_heads, head_dim = q.shape
    num_own, num_masses = k.shape[1], band_mass.shape[-1]
    q, k, v, band_out = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v, band_out))
    out = torch.empty((num_queries, num_heads, head_dim), device=q.device, dtype=q.dtype)
    lse, own, entropy = (torch.empty_like(band_lse) for _ in range(3))
    mass = torch.empty_like(band_mass)
    if num_queries:
        _merge[num_queries, num_heads](
            q, k, v, band_out, band_lse.contiguous(), band_mass.contiguous(), band_entropy.contiguous(),
            out, lse, mass, own, entropy,
            scale, num_own, num_own if window is None else window,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), k.stride(2), v.stride(0), v.stride(1), v.stride(2),
            band_out.stride(0), band_out.stride(1),
            NUM_HEADS=num_heads, GROUP=num_heads // k.shape[2], HEAD_DIM=head_dim,
            BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_O=max(8, triton.next_power_of_2(num_own)),
            NUM_MASSES=num_masses, BLOCK_C=triton.next_power_of_2(num_masses), num_warps=1,
        )  # fmt: skip
    return out, lse, mass, own, entropy
