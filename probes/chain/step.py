"""Drafter steps on a cache of true-feature slots: the prompt's keys and values, depth 1, and the fed-back depths.

One `step` serves replay (many starts at once), live (one) and the true-feature pass: the queries i = 0, 1, ... have their
last verified slot at t0 + i. Knows nothing of targets, acceptance or what is kept of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from probes.attention.band import Band
from probes.attention.kernel import attend
from probes.attention.masses import Masses, OwnChain, attend_regions, merge_chain, merge_own, own_logits
from probes.attention.slots import SLOT_REGIONS
from probes.checkpoint.rope import LENGTH_DEPENDENT_ROPE
from probes.drafter.layers.llama import LlamaDrafterLayer, Rotation
from probes.drafter.model import Drafter, TargetStates
from probes.errors import InputError

PREFILL_CHUNK_SLOTS = 4096
"""Slots whose fused states are held together: memory, nothing else."""


@dataclass(frozen=True)
class SlotCache:
    """Keys and values of the true-feature slots 0 .. num_slots-1, for each layer."""

    k: tuple[Float[Tensor, "slot kv_head head_dim"], ...]
    v: tuple[Float[Tensor, "slot kv_head value_dim"], ...]

    @property
    def num_slots(self) -> int:
        return self.k[0].shape[0] if self.k else 0


@dataclass(frozen=True)
class StepOutput:
    """One depth of many chains. Norms and masses are float32; `feedback` and `logits` in the drafter's dtype.

    A light step (without regions) measures neither masses nor the embedding's share.
    """

    logits: Float[Tensor, "query draft_vocab"]
    feedback: Float[Tensor, "query hidden"]
    own: tuple[OwnChain, ...]  # per layer: the chain's slots so far, this step's included (empty at depth 1)
    hidden_in_norm: Float[Tensor, "query layer"]
    hidden_out_norm: Float[Tensor, "query layer"]
    hidden_feedback_norm: Float[Tensor, "query"]
    branch_norm_attn: Float[Tensor, "query layer"]
    branch_norm_mlp: Float[Tensor, "query layer"]
    input_share_embed: Float[Tensor, "query"] | None
    masses: tuple[Masses, ...]  # per layer; empty in a light step
    queries: tuple[Float[Tensor, "query head head_dim"], ...]  # per layer, after RoPE


def _norm(x: Float[Tensor, "*query hidden"]) -> Float[Tensor, "*query"]:
    """L2, reduced and given in float32."""
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32)).float()


def _by_layer(values: list[Tensor]) -> Float[Tensor, "query layer"]:
    """Most drafters have one layer: then a view."""
    return values[0][:, None] if len(values) == 1 else torch.stack(values, dim=-1)


def check_length(drafter: Drafter, num_slots: int) -> None:
    """Refuses rope whose frequencies change with the text's length: stored keys would be inexact."""
    rope = drafter.spec.rope_parameters
    limit = int(rope.get("original_max_position_embeddings") or drafter.spec.max_position_embeddings)  # type: ignore[call-overload]
    if rope["rope_type"] in LENGTH_DEPENDENT_ROPE and num_slots > limit:
        raise InputError(
            f"the drafter's {rope['rope_type']} rope changes its frequencies beyond {limit} tokens and the text has "
            f"{num_slots}: keys that an engine stored before are not those of a replay",
            code="length_dependent_rope",
            remedy=f"probe texts of at most {limit} tokens",
        )


def prefill(
    drafter: Drafter, token_ids: Int[Tensor, "token"], aux: TargetStates, *, cache: SlotCache | None = None
) -> SlotCache:
    """Keys and values of all slots that `token_ids` allows: slot t pairs x[t+1] with g[t], so len(token_ids) - 1 slots.

    Slots that `cache` holds are kept. Attention is computed only for what a later layer reads: none with one layer.
    """
    first = 0 if cache is None else cache.num_slots
    last = len(token_ids) - 1
    check_length(drafter, last)
    for begin in range(first, last, PREFILL_CHUNK_SLOTS):
        cache = _extend(drafter, token_ids, aux, begin, min(begin + PREFILL_CHUNK_SLOTS, last), cache)
    return _extend(drafter, token_ids, aux, 0, 0, None) if cache is None else cache


def _extend(
    drafter: Drafter, token_ids: Tensor, aux: TargetStates, first: int, last: int, cache: SlotCache | None
) -> SlotCache:
    """The slots first .. last-1 behind those of `cache`."""
    state = drafter.true_state(drafter.features(aux, slice(first, last)))  # [slot, hidden]
    embeds, hidden = drafter.enter(token_ids[first + 1 : last + 1], state)
    rotation = drafter.rotation(torch.arange(first, last, device=token_ids.device))
    keys, values = [], []
    for index, layer in enumerate(drafter.layers):
        projected = layer.project(embeds, hidden, rotation)
        k, v = projected.k, projected.v
        if cache is not None:
            k, v = torch.cat([cache.k[index], k]), torch.cat([cache.v[index], v])
        keys.append(k)
        values.append(v)
        if index + 1 < len(drafter.layers):
            band = Band.causal(first, query_position=first, window=layer.window)
            attended, _ = attend(projected.q, k, v, band, layer.scale)
            hidden = layer.finish(attended.flatten(-2), projected.residual)
    return SlotCache(tuple(keys), tuple(values))


def step(
    drafter: Drafter,
    cache: SlotCache,
    regions: UInt8[Tensor, "token"] | None,
    token_ids: Int[Tensor, "query"],
    state: Float[Tensor, "query hidden"],
    *,
    start: int,
    own: tuple[OwnChain, ...] | None = None,
    depth: int | None = None,
    rotation: Rotation | None = None,
) -> StepOutput:
    """One drafter step for the chains that start at t = start, start+1, ... True slots are seen up to t.

    Depth 1 (`own` is None): each query stands at its slot t, of x[t+1] (`token_ids`) and the slot's true `state`. Depth k:
    at t+k-1, of the draft of depth k-1 and the state fed back; it sees its own chain too, the new slot included.
    Without `regions` (`slot_regions`) only norms are measured. `depth`: where `own` does not hold the whole chain (an
    intervention hides a part). `rotation`: of the positions from `start` on, the same for all depths.
    """
    # 1) where the queries stand
    if depth is None:
        depth = 1 if own is None else 2 + (own[0].k.shape[1] if own else 0)
    position = start + depth - 1
    rotation = _rotation(drafter, rotation, position, start, token_ids)
    # 2) the layers
    embeds, hidden = drafter.enter(token_ids, state)  # both [query, hidden]
    norms, masses, queries, chains, input_share = [], [], [], [], None
    for index, layer in enumerate(drafter.layers):
        x, residual = layer.read(embeds, hidden)
        projected = layer.products(x)
        if index == 0 and regions is not None:
            input_share = drafter.embed_share(embeds, state, x, projected)
        q, k, v = layer.heads(projected, rotation)  # [query, head or kv_head, head_dim]
        chain = None if own is None else _extended(own[index] if own else None, k, v)
        band = Band.causal(start, query_position=position, window=layer.window)
        attended, seen = _attend(layer, q, cache.k[index], cache.v[index], chain, band, regions)
        attn = layer.attention_branch(attended.flatten(-2))  # [query, head * value_dim] -> [query, hidden]
        stream = residual + attn
        mlp = layer.mlp_branch(stream)
        entered, hidden = hidden, stream + mlp
        norms.append([_norm(x) for x in (entered, attn, mlp, hidden)])
        queries.append(q)
        masses += [] if seen is None else [seen]
        chains += [] if chain is None else [chain]
    # 3) the logits, and what the next depth reads
    logits, feedback = drafter.predict(hidden)
    norm_in, norm_attn, norm_mlp, norm_out = (_by_layer(list(of_layers)) for of_layers in zip(*norms, strict=True))
    return StepOutput(
        logits=logits,
        feedback=feedback,
        own=tuple(chains),
        hidden_in_norm=norm_in,
        hidden_out_norm=norm_out,
        hidden_feedback_norm=norms[-1][-1] if feedback is hidden else _norm(feedback),
        branch_norm_attn=norm_attn,
        branch_norm_mlp=norm_mlp,
        input_share_embed=input_share,
        masses=tuple(masses),
        queries=tuple(queries),
    )


def _rotation(
    drafter: Drafter, given: Rotation | None, position: int, start: int, token_ids: Int[Tensor, "query"]
) -> tuple[Float[Tensor, "query head_dim"], Float[Tensor, "query head_dim"]]:
    """The rotation of the queries, the first of which stands at `position`; a part of `given`, which begins at `start`."""
    num_queries = len(token_ids)
    if given is None:
        return drafter.rotation(torch.arange(position, position + num_queries, device=token_ids.device))
    cos, sin = (x[position - start : position - start + num_queries] for x in given)
    return cos, sin


def _extended(
    before: OwnChain | None, k: Float[Tensor, "query kv_head head_dim"], v: Float[Tensor, "query kv_head value_dim"]
) -> OwnChain:
    """The chain's own slots with the new one behind them."""
    if before is None:
        return OwnChain(k[:, None], v[:, None])
    return OwnChain(torch.cat([before.k, k[:, None]], dim=1), torch.cat([before.v, v[:, None]], dim=1))


def _attend(
    layer: LlamaDrafterLayer,
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "slot kv_head head_dim"],
    v: Float[Tensor, "slot kv_head value_dim"],
    chain: OwnChain | None,
    band: Band,
    regions: UInt8[Tensor, "token"] | None,
) -> tuple[Float[Tensor, "query head value_dim"], Masses | None]:
    """One softmax over the band of true slots and the own chain; where it looks only with `regions`."""
    if regions is not None:
        seen = attend_regions(q, k, v, regions, len(SLOT_REGIONS), band, layer.scale)
        return merge_chain(q, seen, chain, layer.scale, layer.window)
    out, lse = attend(q, k, v, band, layer.scale)
    if chain is not None:
        out = merge_own(out, lse, own_logits(q, chain, layer.scale, layer.window), chain)
    return out, None
