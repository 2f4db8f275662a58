"""Path patching, one step at a time: what each path of the fed-back state costs (docs/architecture.md#path-patching).

At depth k the chain reads (embed(d), h): d the last draft, h the state fed back. Where the drafts so far equal the text,
the true input of the same slot t+k-1 is (embed(x[t+k]), f[t+k-1]), and slots t+1 .. t+k-1 have true keys and values in the
cache. A patch takes the true-feature value on some paths and the unmodified chain's on the others:

- own-chain keys and values, the slot's own included, in every layer;
- the query of layer 0;
- the residual entering layer 0 (and so the MLP's input).

All three together are depth 1 at slot t+k-1, `fresh`. Later layers compute their queries and residuals from what enters
them; so a patched state spreads, and all three together stay fresh with any number of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.attention.band import Band
from probes.attention.kernel import attend
from probes.attention.masses import OwnChain, merge_own, own_logits
from probes.chain.replay import blocks_of_starts, starts_of
from probes.chain.rounds import label
from probes.chain.step import SlotCache, prefill, step
from probes.drafter.model import Drafter
from probes.interventions.acceptance import Counts
from probes.target.trace import TargetTrace


@runtime_checkable
class Patch(Protocol):
    """The paths that take the true-feature value."""

    id: str
    patches_keys: bool
    patches_query: bool
    patches_residual: bool


@dataclass(frozen=True)
class PathCounts:
    """One text, int64 [depth]: positions whose drafts before depth k equal the text and which have a label at k."""

    num_starts: np.ndarray
    baseline_accepted: np.ndarray  # right as the chain is
    accepted: Mapping[str, np.ndarray]  # patch id -> right under the patch

    def under(self, patch_id: str) -> Counts:
        return Counts(self.num_starts, self.accepted[patch_id], self.baseline_accepted)


@torch.inference_mode()
def patch_paths(
    drafter: Drafter,
    trace: TargetTrace,
    patches: Sequence[Patch],
    *,
    depth: int,
    cache: SlotCache | None = None,
    last_tokens: int | None = None,
) -> PathCounts:
    """Counts of every patch at every depth; at depth 1 there is nothing to patch and every patch is the chain.

    Only starts whose true features reach to depth K are taken (slot t+K-1 exists), so that all depths compare like with
    like.
    """
    first, last = starts_of(trace, last_tokens)
    cache = prefill(drafter, trace.token_ids, trace.aux, cache=cache)
    last = min(last, cache.num_slots - depth)
    zeros = np.zeros(depth, np.int64)
    if last < first:
        return PathCounts(zeros, zeros, {p.id: zeros for p in patches})
    parts = [
        _count_block(drafter, trace, patches, cache, begin, end, depth)
        for begin, end in blocks_of_starts(drafter, first, last, depth)
    ]
    return PathCounts(
        num_starts=sum((p.num_starts for p in parts), zeros),
        baseline_accepted=sum((p.baseline_accepted for p in parts), zeros),
        accepted={p.id: sum((part.accepted[p.id] for part in parts), zeros) for p in patches},
    )


def _count_block(
    drafter: Drafter,
    trace: TargetTrace,
    patches: Sequence[Patch],
    cache: SlotCache,
    first: int,
    last: int,
    depth: int,
) -> PathCounts:
    """The starts first .. last, whose true slots reach to depth K."""
    num = last - first + 1
    fused = drafter.true_state(drafter.features(trace.aux, slice(first, last + depth)))  # slots first .. last+K-1
    output = step(drafter, cache, None, trace.token_ids[first + 1 : last + 2], fused[:num], start=first)
    tokens = [drafter.to_target_ids(output.logits.argmax(dim=-1))]
    patched: dict[str, list[Tensor]] = {p.id: [tokens[0]] for p in patches}
    own: tuple[OwnChain, ...] = ()
    for k in range(2, depth + 1):
        hidden = output.feedback
        output = step(drafter, cache, None, tokens[-1], hidden, start=first, own=own)
        own = output.own
        true_tokens = trace.token_ids[first + k : last + k + 1]
        true_hidden = fused[k - 1 : k - 1 + num]
        for patch in patches:
            logits = _patched_step(
                drafter, cache, (tokens[-1], hidden), (true_tokens, true_hidden), own, patch, start=first, depth=k
            )
            patched[patch.id].append(drafter.to_target_ids(logits.argmax(dim=-1)))
        tokens.append(drafter.to_target_ids(output.logits.argmax(dim=-1)))
    starts = torch.arange(first, last + 1, device=trace.token_ids.device)
    labels = label(drafter, trace, starts, torch.stack(tokens, dim=1))
    is_counted = labels.has_label  # the drafts before depth k equal the text, and the target's choice there is known

    def count(right: Tensor) -> np.ndarray:
        return (right & is_counted).sum(dim=0).cpu().numpy().astype(np.int64)

    return PathCounts(
        num_starts=count(torch.ones_like(is_counted)),
        baseline_accepted=count(labels.accepted),
        accepted={name: count(torch.stack(t, dim=1) == labels.expected) for name, t in patched.items()},
    )


def true_own(cache: SlotCache, layer: int, start: int, num_queries: int, num_own: int) -> OwnChain:
    """The true-feature slots t+1 .. t+num_own of each query, in place of its own chain's."""
    slots = torch.arange(num_queries, device=cache.k[layer].device)[:, None] + start + 1
    slots = slots + torch.arange(num_own, device=slots.device)
    return OwnChain(cache.k[layer][slots], cache.v[layer][slots])


def _patched_step(
    drafter: Drafter,
    cache: SlotCache,
    chain: tuple[Int[Tensor, "query"], Float[Tensor, "query hidden"]],
    true: tuple[Int[Tensor, "query"], Float[Tensor, "query hidden"]],
    own: tuple[OwnChain, ...],
    patch: Patch,
    *,
    start: int,
    depth: int,
) -> Float[Tensor, "query draft_vocab"]:
    """Logits at depth k. `chain` and `true`: what the slot reads, (token, state); `own` the chain's slots with this one."""
    num_queries = len(chain[0])
    slots = torch.arange(start, start + num_queries, device=chain[0].device)
    rotation = drafter.rotation(slots + depth - 1)
    first = drafter.layers[0]
    as_is = first.project(*drafter.enter(*chain), rotation)
    fresh = first.project(*drafter.enter(*true), rotation)
    q = fresh.q if patch.patches_query else as_is.q
    residual = fresh.residual if patch.patches_residual else as_is.residual
    hidden = residual
    for index, layer in enumerate(drafter.layers):
        if index > 0:
            q, _, _, residual = layer.project(hidden, hidden, rotation)  # later layers do not read the embedding
        slots_seen = true_own(cache, index, start, num_queries, depth - 1) if patch.patches_keys else own[index]
        band = Band.causal(start, query_position=start + depth - 1, window=layer.window)
        out, lse = attend(q, cache.k[index], cache.v[index], band, layer.scale)
        out = merge_own(out, lse, own_logits(q, slots_seen, layer.scale, layer.window), slots_seen)
        hidden = layer.finish(out.flatten(-2), residual)
    logits, _ = drafter.predict(hidden)
    return logits
