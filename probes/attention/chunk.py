"""A chunk of queries on all slots up to its own, as a text is read: the slots before in pieces, its own causally, merged.

torch's cuDNN attention is the fastest on Hopper (docs/performance.md) but knows no causality aligned at the end, so a
chunk takes several calls, merged by their log-sum-exps. It builds a plan for each new shape (400 ms in sglang's pull
request 4650): only whole chunks take it, on pieces of few lengths. 16 bits on a CUDA device; knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

PIECE_SLOTS = 32768
"""The slots before a chunk that are read together: four chunks, so that pieces have four lengths at most."""

CUDNN_TOLERANCE = 2.0**-6
"""A part of the largest value, within which two right attentions in bfloat16 stay (each rounds what it computes)."""

Part = tuple[Float[Tensor, "row head query head_dim"], Float[Tensor, "row head query"]]
"""An output and its log-sum-exp (float32, nats) over some of the slots, at least one for each query."""

Attend = Callable[..., Part]
"""(q, k, v, scale, *, is_causal), K and V with their own number of heads; causality is aligned at the end."""

_agrees: dict[tuple[Any, ...], bool] = {}  # by device, dtype, heads and head size: whether cuDNN is right there


def attend_chunk(
    q: Float[Tensor, "row head query head_dim"],
    k: Float[Tensor, "row kv_head slot head_dim"],
    v: Float[Tensor, "row kv_head slot head_dim"],
    scale: float | None,
    *,
    is_whole: bool,
) -> Float[Tensor, "row head query head_dim"]:
    """Attention of the last slots' queries, each on the slots up to its own, in q's dtype.

    By cuDNN for a whole chunk (`is_whole`: its length recurs), else by torch's flash kernel. The first chunk of a kind is
    computed by both: where cuDNN refuses (card, head size) or differs, flash is kept.
    """
    if not is_whole or k.shape[2] < 2 * q.shape[2] or not torch.backends.cuda.cudnn_sdp_enabled():
        return by_flash(q, k, v, scale, is_causal=True)[0]
    kind = (q.device, q.dtype, q.shape[1], k.shape[1], q.shape[3])
    if kind not in _agrees:
        _agrees[kind] = _is_right(by_cudnn, q, k, v, scale)
    if not _agrees[kind]:
        return by_flash(q, k, v, scale, is_causal=True)[0]
    return attend_in_pieces(q, k, v, scale, by_cudnn)


def attend_in_pieces(q: Tensor, k: Tensor, v: Tensor, scale: float | None, attend: Attend) -> Tensor:
    """The same by `attend`, called on contiguous pieces of the slots before and, causally, on the queries' own."""
    own = k.shape[2] - q.shape[2]

    def part(begin: int, end: int) -> Part:
        piece = (x[:, :, begin:end].contiguous() for x in (k, v))  # one stride for all lengths of text: one plan
        return attend(q, *piece, scale, is_causal=begin == own)

    bounds = [*range(0, own, PIECE_SLOTS), own, k.shape[2]]
    return merge(part(*ends) for ends in pairwise(bounds))[0].to(q.dtype)


def merge(parts: Iterable[Part]) -> Part:
    """One softmax over the slots of all parts, in float32 at least; a part is let go before the next is computed."""
    out: Tensor | None = None
    for part, part_lse in parts:
        if out is None:
            out, lse = part.to(torch.promote_types(part.dtype, torch.float32)), part_lse
            continue
        total = torch.logaddexp(lse, part_lse)
        out = out.mul_((lse - total).exp()[..., None]).addcmul_(part, (part_lse - total).exp()[..., None])
        lse = total
    assert out is not None
    return out, lse


def by_flash(q: Tensor, k: Tensor, v: Tensor, scale: float | None, *, is_causal: bool) -> Part:
    """torch's flash kernel: causality aligned at the end, K and V with fewer heads."""
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, False, scale=scale)
    return out, lse


def by_cudnn(q: Tensor, k: Tensor, v: Tensor, scale: float | None, *, is_causal: bool) -> Part:
    """torch's cuDNN attention (2.11: `lse` has a last axis of 1); causal only with as many slots as queries."""
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, True, 0.0, is_causal, False, scale=scale
    )
    return out, lse.reshape(q.shape[:3])


def _is_right(attend: Attend, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> bool:
    """Whether `attend` runs here and gives what flash gives. Waits for the device."""
    expected = by_flash(q, k, v, scale, is_causal=True)[0]
    try:
        found = attend_in_pieces(q, k, v, scale, attend)
    except RuntimeError:  # cuDNN's refusals come as such, without a class of their own
        return False
    # NaN compares as False
    return bool((found - expected).abs().max() <= CUDNN_TOLERANCE * v.abs().max())
