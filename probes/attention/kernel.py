"""Fused attention with its log-sum-exp, over a band of slots.

Knows nothing of who asks. Kernels (measured, torch 2.11 CUDA and 2.13 CPU):
CPU: aten flash for CPU (float32, float64, bfloat16, unexpanded GQA; a fully masked row gives lse 0, so none is sent);
CUDA: our Triton kernel, without Triton aten efficient (GQA expanded; lse padded to 32). Elsewhere: `attend_plain`.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from probes.attention.band import Band

MAX_MASK_ELEMENTS = 1 << 22
"""Queries are taken in blocks so that one block's additive mask stays below this (16 MiB in float32)."""


@cache
def has_triton() -> bool:
    """Whether Triton is installed; found without importing it."""
    return find_spec("triton") is not None


def has_kernel(q: Tensor) -> bool:
    """Whether `region_kernel` takes queries like these: a CUDA device with Triton, no float64, heads to 256."""
    return q.is_cuda and q.dtype != torch.float64 and q.shape[-1] <= 256 and has_triton()


def kernel_name(device: str, dtype: str) -> str:
    """What `attend` runs on such a device, heads to 256: for a run's provenance."""
    kind = torch.device(device).type
    if kind == "cuda" and dtype != "float64":
        return "driftscope region kernel (Triton)" if has_triton() else "aten efficient attention"
    return "aten flash attention for CPU" if kind == "cpu" else "plain torch"


def attend(
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "slot kv_head head_dim"],
    v: Float[Tensor, "slot kv_head head_dim"],
    band: Band,
    scale: float,
) -> tuple[Float[Tensor, "query head head_dim"], Float[Tensor, "query head"]]:
    """softmax(scale * q k^T over the band) v, and the log of the softmax's denominator (float32 or wider).

    An empty band gives zeros and -inf, so that it merges to nothing.
    """
    num_queries, num_heads, _ = q.shape
    if band.is_empty or num_queries == 0:
        wide = torch.promote_types(q.dtype, torch.float32)
        return torch.zeros_like(q), torch.full((num_queries, num_heads), -torch.inf, device=q.device, dtype=wide)
    if has_kernel(q):
        from probes.attention.region_kernel import attend_banded

        out, lse, *_ = attend_banded(q, k, v, band, scale)
        return out, lse
    block = max(1, MAX_MASK_ELEMENTS // k.shape[0])
    outs, lses = [], []
    for begin in range(0, num_queries, block):
        end = min(begin + block, num_queries)
        low, high = max(0, band.first + begin), min(k.shape[0], band.last + end)
        mask = band_mask(band, begin, end, low, high, q)
        out, lse = _attend_block(q[begin:end], k[low:high], v[low:high], mask, scale)
        outs.append(out)
        lses.append(lse)
    return (outs[0], lses[0]) if len(outs) == 1 else (torch.cat(outs), torch.cat(lses))


def band_mask(band: Band, begin: int, end: int, low: int, high: int, like: Tensor) -> Float[Tensor, "query slot"]:
    """Additive mask of the queries begin..end-1 over the slots low..high-1: 0 inside the band, -inf outside."""
    query = torch.arange(begin, end, device=like.device)[:, None]
    slot = torch.arange(low, high, device=like.device)[None, :]
    is_seen = (slot <= band.last + query) & (slot >= band.first + query)
    return torch.zeros(is_seen.shape, device=like.device, dtype=like.dtype).masked_fill_(~is_seen, -torch.inf)


def _attend_block(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float
) -> tuple[Float[Tensor, "query head head_dim"], Float[Tensor, "query head"]]:
    if q.device.type == "cpu":
        batched = [x.transpose(0, 1)[None] for x in (q, k, v)]  # [1, head, slot, head_dim]
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *batched, 0.0, False, attn_mask=mask, scale=scale
        )
        return out[0].transpose(0, 1), lse[0].transpose(0, 1)
    if q.device.type == "cuda" and q.dtype != torch.float64:
        return _attend_block_cuda(q, k, v, mask, scale)
    return attend_plain(q, k, v, mask, scale)


def _attend_block_cuda(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    num_queries, num_heads, _ = q.shape
    repeats = num_heads // k.shape[1]
    k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    num_slots = mask.shape[1]
    aligned = mask.new_empty(num_queries, -(-num_slots // 16) * 16)  # the kernel wants rows aligned to 16 elements
    aligned[:, :num_slots] = mask
    bias = aligned[None, None, :, :num_slots].expand(1, num_heads, -1, -1)
    batched = [x.transpose(0, 1)[None] for x in (q, k, v)]
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(*batched, bias, True, 0.0, False, scale=scale)
    return out[0].transpose(0, 1), lse[0, :, :num_queries].transpose(0, 1)


def attend_plain(
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "slot kv_head head_dim"],
    v: Float[Tensor, "slot kv_head head_dim"],
    mask: Float[Tensor, "query slot"],
    scale: float,
) -> tuple[Float[Tensor, "query head head_dim"], Float[Tensor, "query head"]]:
    """The same in plain torch, for devices without a fused kernel and as the kernels' reference."""
    repeats = q.shape[1] // k.shape[1]
    logits = torch.einsum("qhd,shd->qhs", q, k.repeat_interleave(repeats, dim=1)) * scale + mask[:, None, :]
    logits = logits.to(torch.promote_types(q.dtype, torch.float32))
    lse = logits.logsumexp(dim=-1)
    out = torch.einsum("qhs,shd->qhd", (logits - lse[..., None]).exp().to(v.dtype), v.repeat_interleave(repeats, dim=1))
    return out, lse
