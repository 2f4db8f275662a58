"""Which drafts are accepted: vLLM's two rules (`v1/sample/rejection_sampler.py`, 0.33). Knows neither models nor texts.

Greedy drafts: q is one-hot, so accepting with probability p(draft) and else drawing from the rest is the same as drawing
from p and accepting when the draft is what was drawn. Probabilistic drafts: accepted with probability min(1, p/q), else a
draw from what p has more than q. Either way the emitted tokens have the target's own distribution (Leviathan et al. 2023,
arXiv 2211.17192, appendix A.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.target.sampler import Key, Sampler

DRAFT_STREAM, ACCEPT_STREAM, RESIDUAL_STREAM = "/draft", "/accept", "/residual"
"""Names of the random numbers that a position has besides the target's own draw."""


class Verified(NamedTuple):
    accepted: Int[Tensor, "row"]  # leading drafts
    emitted: Int[Tensor, "row token"]  # K + 1 columns; those behind the accepted drafts and one more mean nothing


def by_equality(
    sampler: Sampler,
    logits: Float[Tensor, "row token vocab"],
    draft_token: Int[Tensor, "row depth"],
    keys: Sequence[Sequence[Key]],
) -> Verified:
    """Greedy drafts. `keys` [row][position]: of the token after each position."""
    flat = [key for row in keys for key in row]
    emitted = sampler(logits.flatten(0, 1), flat).view(logits.shape[:2])
    return Verified((emitted[:, :-1] == draft_token).long().cumprod(dim=1).sum(dim=1), emitted)


def by_rejection(
    sampler: Sampler,
    logits: Float[Tensor, "row token vocab"],
    draft_token: Int[Tensor, "row depth"],
    draft_row: Int[Tensor, "row depth"],
    draft_logits: Float[Tensor, "row depth draft_vocab"],
    target_ids: Int[Tensor, "draft_vocab"],
    keys: Sequence[Sequence[Key]],
) -> Verified:
    """Probabilistic drafts, drawn from q = softmax(draft_logits / temperature); `target_ids`: the id of each draft row."""
    num_rows, depth = draft_token.shape
    device = logits.device
    p = sampler.sampling.probabilities(logits)
    q = (draft_logits.to(p.dtype) / sampler.temperature).softmax(dim=-1)
    of_p = p[:, :-1].gather(2, draft_token[..., None])[..., 0]
    of_q = q.gather(2, draft_row[..., None])[..., 0]
    flat = [key for row in keys for key in row[:depth]]
    u = sampler.uniform(flat, device, stream=ACCEPT_STREAM).view(num_rows, depth)
    accepted = (u * of_q < of_p).long().cumprod(dim=1).sum(dim=1)
    every = torch.arange(num_rows, device=device)
    here = p[every, accepted]
    rest = here.clone()
    at = accepted.clamp_max(depth - 1)
    rest[:, target_ids] -= torch.where((accepted < depth)[:, None], q[every, at], 0.0)
    rest = rest.clamp_min(0.0)
    rest = torch.where(rest.sum(dim=1, keepdim=True) > 0, rest, here)  # p = q up to rounding
    noise = sampler.exponential(
        p.shape[-1], [row[a] for row, a in zip(keys, accepted.tolist(), strict=True)], device, stream=RESIDUAL_STREAM
    )
    emitted = torch.nn.functional.pad(draft_token, (0, 1))
    emitted[every, accepted] = (rest / noise).argmax(dim=1)
    return Verified(accepted, emitted)
