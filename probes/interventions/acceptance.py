"""Acceptance only: the dense replay's counts without masses, for drafters and chains that an intervention changed.

Shares the target's trace and, where the drafter's slots are unchanged, the cache. Knows no interventions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from probes.attention.masses import OwnChain
from probes.chain.replay import blocks_of_starts, starts_of
from probes.chain.rounds import label
from probes.chain.step import SlotCache, prefill, step
from probes.drafter.model import Drafter
from probes.target.trace import TargetTrace


@dataclass(frozen=True)
class ChainChange:
    """How the chain differs from the drafter's own."""

    rescales_feedback: bool = False  # fed-back states get the norm of the fused state at the start
    hides_own_keys: bool = False  # queries see no own slot but their newest


NO_CHANGE = ChainChange()


class Counts(NamedTuple):
    """One intervention on one text with one drafter, int64 [depth] each; see `record.InterventionCounts`."""

    num_starts: np.ndarray
    accepted: np.ndarray
    baseline_accepted: np.ndarray


@dataclass(frozen=True)
class Acceptance:
    """Dense counts of one text."""

    num_starts: int  # with all K labels
    accepted: np.ndarray  # int64 [depth]: of these, accepted through k
    accepted_drafts: np.ndarray  # int64 [start], 0..K: of every start
    has_all_labels: np.ndarray  # bool [start]

    def beside(self, baseline: Acceptance) -> Counts:
        """Whole chains start once for all depths."""
        return Counts(np.full(len(self.accepted), self.num_starts, np.int64), self.accepted, baseline.accepted)

    def walk(self) -> Acceptance:
        """Only the rounds that an engine would make: the next starts behind the last one's bonus token."""
        on_walk, start = [], 0
        while start < len(self.accepted_drafts):
            if self.has_all_labels[start]:
                on_walk.append(start)
            start += int(self.accepted_drafts[start]) + 1
        lengths = self.accepted_drafts[on_walk]
        counted = lengths[:, None] > np.arange(len(self.accepted))
        return Acceptance(len(on_walk), counted.sum(axis=0), lengths, np.ones(len(on_walk), dtype=bool))


@torch.inference_mode()
def accept(
    drafter: Drafter,
    trace: TargetTrace,
    *,
    depth: int,
    cache: SlotCache | None = None,
    last_tokens: int | None = None,
    change: ChainChange = NO_CHANGE,
) -> Acceptance:
    """Drafts a chain from every start of the response and counts what the target would accept.

    `cache` may hold the slots of a shared prefix. A response without a start counts nothing.
    """
    first, last = starts_of(trace, last_tokens)
    if last < first:
        nothing = np.zeros(0, np.int64)
        return Acceptance(0, np.zeros(depth, np.int64), nothing, nothing.astype(bool))
    cache = prefill(drafter, trace.token_ids, trace.aux, cache=cache)
    labels = [
        label(drafter, trace, torch.arange(begin, end + 1, device=trace.token_ids.device), tokens)
        for begin, end in blocks_of_starts(drafter, first, last, depth)
        for tokens in [_drafts(drafter, trace, cache, begin, end, depth, change)]
    ]
    # [start, depth], each depth only where all before it were
    accepted = torch.cat([block.accepted for block in labels]).cpu().numpy()
    has_all_labels = torch.cat([block.has_all_labels for block in labels]).cpu().numpy()
    return Acceptance(
        num_starts=int(has_all_labels.sum()),
        accepted=accepted[has_all_labels].sum(axis=0).astype(np.int64),
        accepted_drafts=accepted.sum(axis=1).astype(np.int64),
        has_all_labels=has_all_labels,
    )


def _drafts(
    drafter: Drafter, trace: TargetTrace, cache: SlotCache, first: int, last: int, depth: int, change: ChainChange
) -> Int[Tensor, "round depth"]:
    """Target ids drafted from the starts first .. last, one round each."""
    fused = drafter.true_state(drafter.features(trace.aux, slice(first, last + 1)))
    output = step(drafter, cache, None, trace.token_ids[first + 1 : last + 2], fused, start=first)
    tokens = [drafter.to_target_ids(output.logits.argmax(dim=-1))]
    own: tuple[OwnChain, ...] = ()
    for k in range(2, depth + 1):
        hidden = output.feedback
        if change.rescales_feedback:
            size = fused.float().norm(dim=-1) / hidden.float().norm(dim=-1).clamp_min(1e-12)
            hidden = hidden * size[:, None].to(hidden.dtype)
        if change.hides_own_keys:
            own = ()
        output = step(drafter, cache, None, tokens[-1], hidden, start=first, own=own, depth=k)
        own = output.own
        tokens.append(drafter.to_target_ids(output.logits.argmax(dim=-1)))
    return torch.stack(tokens, dim=1)
