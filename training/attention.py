"""A chain's attention while training: causal over true features, plus the chain's own few keys, differentiable.

Row t0 of every tensor is a chain that starts at slot t0. At depth k its query sees the true-feature keys of the slots up
to t0 in the same conversation (ordinary causal attention) and its own k-1 keys at the slots t0+1 .. t0+k-1. That is the
layout an engine has, and what EAGLE-3's training-time test asks for. Does not know the drafter.

Two ways, tested against each other: `attend_plain` (any device, materialises tokens x tokens, for tests and evaluation)
and `attend_flash`. The latter runs the flash kernel over the true-feature keys and merges the own keys by log-sum-exp.
Its backward needs no new kernel: handed the *merged* output and log-sum-exp, the flash backward computes exactly its
share of the merged softmax's gradient, because P = exp(s - lse) and delta = rowsum(dO * O) are then those of the whole.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Packing(NamedTuple):
    """Which conversation each row belongs to; both forms of the same fact."""

    conversation: Int[Tensor, "row"]  # int32
    starts: Int[Tensor, "_"]  # int32, cumulative lengths
    longest: int  # an upper bound of the lengths


def is_causal(packing: Packing, oldest: int | None = None) -> Bool[Tensor, "row row"]:
    """Whether row i sees the true-feature key of row j: j <= i, same conversation, and j >= i - oldest where given."""
    row = torch.arange(len(packing.conversation), device=packing.conversation.device)
    age = row[:, None] - row
    is_seen = (age >= 0) & (packing.conversation[:, None] == packing.conversation)
    return is_seen if oldest is None else is_seen & (age <= oldest)


def attend_plain(
    q: Float[Tensor, "row head head_dim"],
    k: Float[Tensor, "row kv_head head_dim"],
    v: Float[Tensor, "row kv_head head_dim"],
    own_k: Float[Tensor, "own row kv_head head_dim"],
    own_v: Float[Tensor, "own row kv_head head_dim"],
    packing: Packing,
    window: int | None = None,
) -> Float[Tensor, "row head head_dim"]:
    """One softmax over true-feature and own keys; `own` may be 0 long (depth 1). `window`, longer than any chain, counts
    back from where the chain stands."""
    group, scale = q.shape[1] // k.shape[1], q.shape[2] ** -0.5
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    own_k, own_v = own_k.repeat_interleave(group, dim=2), own_v.repeat_interleave(group, dim=2)
    scores = torch.einsum("ihd,jhd->ihj", q, k) * scale
    oldest = None if window is None else window - 1 - len(own_k)
    scores = scores.masked_fill(~is_causal(packing, oldest)[:, None, :], -torch.inf)
    own_scores = torch.einsum("ihd,oihd->iho", q, own_k) * scale
    p = torch.cat([scores, own_scores], dim=-1).softmax(dim=-1)
    p_base, p_own = p.split([scores.shape[-1], own_scores.shape[-1]], dim=-1)
    return torch.einsum("ihj,jhd->ihd", p_base, v) + torch.einsum("iho,oihd->ihd", p_own, own_v)


def attend_flash(
    q: Float[Tensor, "row head head_dim"],
    k: Float[Tensor, "row kv_head head_dim"],
    v: Float[Tensor, "row kv_head head_dim"],
    own_k: Float[Tensor, "own row kv_head head_dim"],
    own_v: Float[Tensor, "own row kv_head head_dim"],
    packing: Packing,
) -> Float[Tensor, "row head head_dim"]:
    """`attend_plain` by the flash kernel: CUDA, bfloat16 or float16; on a CPU (tests) one conversation only."""
    return _ChainAttention.apply(q, k, v, own_k, own_v, packing)  # type: ignore[no-any-return]


class _ChainAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor, packing: Packing) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        base, base_lse, random_state = _flash(q, k, v, packing)  # [row, head, head_dim], float32 [row, head]
        merge = _compiled_merge if q.is_cuda else _merge
        out, lse = merge(q, own_k, own_v, base, base_lse) if len(own_k) else (base, base_lse)
        ctx.save_for_backward(q, k, v, own_k, own_v, out, lse, *random_state)
        ctx.packing = packing
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, own_k, own_v, out, lse, *random_state = ctx.saved_tensors
        grad = grad.contiguous()
        dq, dk, dv = _flash_backward(grad, q, k, v, out, lse, random_state, ctx.packing)
        if len(own_k) == 0:
            return dq, dk, dv, None, None, None
        merge_backward = _compiled_merge_backward if q.is_cuda else _merge_backward
        own_dq, own_dk, own_dv = merge_backward(grad, q, own_k, own_v, out, lse)
        return dq + own_dq, dk, dv, own_dk, own_dv, None


def _merge(q: Tensor, own_k: Tensor, own_v: Tensor, base: Tensor, base_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Adds the own keys to an attention over others, by log-sum-exp."""
    scores = _own_scores(q, own_k)  # float32 [own, row, kv_head, group]
    base_lse = base_lse.unflatten(-1, scores.shape[-2:])
    lse = torch.logaddexp(base_lse, scores.logsumexp(dim=0))
    own = (torch.exp(scores - lse)[..., None] * _wide(own_v)[:, :, :, None]).sum(dim=0)
    out = torch.exp(base_lse - lse)[..., None] * base.unflatten(1, scores.shape[-2:]) + own
    return out.flatten(1, 2).to(q.dtype), lse.flatten(1)


def _merge_backward(
    grad: Tensor, q: Tensor, own_k: Tensor, own_v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    scores = _own_scores(q, own_k)
    groups = scores.shape[-2:]
    p = torch.exp(scores - lse.unflatten(-1, groups))
    grad = _wide(grad).unflatten(1, groups)  # [row, kv_head, group, head_dim]
    delta = (grad * out.unflatten(1, groups)).sum(-1)
    dscores = p * ((grad * _wide(own_v)[:, :, :, None]).sum(-1) - delta) * q.shape[-1] ** -0.5
    dq = (dscores[..., None] * _wide(own_k)[:, :, :, None]).sum(dim=0).flatten(1, 2)
    own_dk = (dscores[..., None] * _wide(q.unflatten(1, groups))).sum(dim=3)
    own_dv = (p[..., None] * grad).sum(dim=3)
    return dq.to(q.dtype), own_dk.to(q.dtype), own_dv.to(q.dtype)


_compiled_merge = torch.compile(_merge)  # plain, it would write every [own, row, head, head_dim] product to memory
_compiled_merge_backward = torch.compile(_merge_backward)


def _own_scores(q: Tensor, own_k: Tensor) -> Tensor:
    """float32 [own, row, kv_head, group]."""
    grouped = _wide(q.unflatten(1, (own_k.shape[2], -1)))
    return (grouped * _wide(own_k)[:, :, :, None]).sum(-1) * q.shape[-1] ** -0.5


def _flash(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> tuple[Tensor, Tensor, list[Tensor]]:
    aten = torch.ops.aten
    if q.device.type == "cuda":
        out, lse, *random_state = aten._flash_attention_forward(
            q, k, v, packing.starts, packing.starts, packing.longest, packing.longest, 0.0, True, False
        )[:4]
        return out, lse.T, random_state  # packed sequences: [head, row]
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*_as_batch(q, k, v), 0.0, True)
    return out[0].transpose(0, 1), lse[0].T, []


def _flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    random_state: list[Tensor],
    packing: Packing,
) -> tuple[Tensor, Tensor, Tensor]:
    aten = torch.ops.aten
    if q.device.type == "cuda":
        starts, longest = packing.starts, packing.longest
        return aten._flash_attention_backward(  # type: ignore[no-any-return]
            grad, q, k, v, out, lse.T.contiguous(), starts, starts, longest, longest, 0.0, True, *random_state
        )
    dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *_as_batch(grad, q, *(x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v)), out),
        lse.T[None].contiguous(),
        0.0,
        True,
    )
    kv_heads = k.shape[1]
    return (
        dq[0].transpose(0, 1),
        dk[0].transpose(0, 1).unflatten(1, (kv_heads, -1)).sum(2),
        dv[0].transpose(0, 1).unflatten(1, (kv_heads, -1)).sum(2),
    )


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _as_batch(*tensors: Tensor) -> list[Tensor]:
    return [x.transpose(0, 1)[None] for x in tensors]
