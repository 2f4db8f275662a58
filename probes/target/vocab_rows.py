"""Rows of logits over a vocabulary, reduced: log-sum-exp, entropy, the largest, ranks, overlaps. Knows no model.

In plain torch; on a CUDA device with Triton in one pass over each row (`vocab_kernel`): a row of 128K ids is read more
often than any weight otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.attention.kernel import has_triton


class RowStatistics(NamedTuple):
    """What is known of softmax(logits / temperature), float32."""

    lse: Float[Tensor, "row"]  # of logits / temperature
    entropy: Float[Tensor, "row"]  # nats
    top: Float[Tensor, "row _"]  # the largest logits / temperature, largest first
    top_id: Int[Tensor, "row _"]
    num_above: Int[Tensor, "row depth"] | None  # logits above each threshold, int32


def has_vocab_kernel(logits: Tensor) -> bool:
    """Whether `vocab_kernel` takes rows like these: a CUDA device with Triton, no float64."""
    return logits.is_cuda and logits.dtype != torch.float64 and has_triton()


def row_statistics(
    logits: Float[Tensor, "row vocab"],
    num_top: int,
    *,
    threshold: Float[Tensor, "row depth"] | None = None,
    temperature: float = 1.0,
) -> RowStatistics:
    """`threshold` in the logits' own units. At most as many candidates as ids."""
    num_top = min(num_top, logits.shape[-1])
    if has_vocab_kernel(logits):
        from probes.target import vocab_kernel

        lse, entropy, group_max, above = vocab_kernel.statistics(logits, threshold, temperature)
        top, top_id = vocab_kernel.largest(logits, group_max, num_top)
        return RowStatistics(lse, entropy, top if temperature == 1.0 else top / temperature, top_id, above)
    above = None
    if threshold is not None:
        counts = [(logits > t[:, None]).sum(dim=-1, dtype=torch.int32) for t in threshold.unbind(dim=1)]
        above = torch.stack(counts, dim=1)
    wide = logits.float() if temperature == 1.0 else logits.float() / temperature
    best = wide.topk(num_top, dim=-1)
    lse = wide.logsumexp(dim=-1)
    entropy = torch.special.entr((wide - lse[:, None]).exp()).sum(dim=-1)
    return RowStatistics(lse, entropy, best.values, best.indices, above)


def overlap(
    p: Float[Tensor, "row vocab"], logits: Float[Tensor, "row vocab"], lse: Float[Tensor, "row"]
) -> Float[Tensor, "row"]:
    """sum min(p, q) with q = exp(logits - lse)."""
    if has_vocab_kernel(logits):
        from probes.target import vocab_kernel

        return vocab_kernel.overlap(p, logits, lse)
    return torch.minimum(p, (logits.float() - lse[:, None]).exp()).sum(dim=-1)
