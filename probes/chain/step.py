"""Drafter steps on a cache of true-feature slots: the prompt's keys and values, depth 1, and the fed-back depths.

One `step` serves replay (many starts at once), live (one) and the true-feature pass: the queries i = 0, 1, ... have their
last verified slot at t0 + i. Knows nothing of targets, acceptance or what is kept of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from probes.attention.band import Band
from probes.attention.kernel import attend
from probes.attention.masses import Masses, OwnChain, attend_regions, merge_chain, merge_own, own_logits
from probes.attention.slots import SLOT_REGIONS
from probes.drafter.layers.llama import Rotation
from probes.drafter.model import Drafter
from probes.errors import InputError

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")

PREFILL_CHUNK_SLOTS = 4096
"""Slots whose fused states are held together: memory, nothing else."""

AuxStates = Mapping[int, Float[Tensor, "slot target_hidden"]]
"""Target states by boundary id, from slot 0."""


@dataclass(frozen=True)
class SlotCache:
    """Keys and values of the true-feature slots 0 .. num_slots-1, for each layer."""

    k: tuple[Float[Tensor, "slot kv_head head_dim"], ...]
    v: tuple[Float[Tensor, "slot kv_head head_dim"], ...]

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


def concat_aux(drafter: Drafter, aux: AuxStates, first: int, last: int) -> Float[Tensor, "slot fused"]:
    """The drafter's captured states of the slots first .. last-1, low to high layer, in the drafter's dtype."""
    dtype = drafter.norm.weight.dtype
    return torch.cat([aux[i][first:last].to(dtype) for i in drafter.spec.aux_layer_ids], dim=-1)


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
    drafter: Drafter, token_ids: Int[Tensor, "token"], aux: AuxStates, *, cache: SlotCache | None = None
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
    drafter: Drafter, token_ids: Tensor, aux: AuxStates, first: int, last: int, cache: SlotCache | None
) -> SlotCache:
    """The slots first .. last-1 behind those of `cache`."""
    embeds = drafter.embed(token_ids[first + 1 : last + 1])
    hidden = drafter.fuse(concat_aux(drafter, aux, first, last))
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
            attended, _ = attend(projected.q, k, v, band, layer.head_dim**-0.5)
            hidden = layer.finish(attended.flatten(-2), projected.residual)
    return SlotCache(tuple(keys), tuple(values))


def step(
    drafter: Drafter,
    cache: SlotCache,
    regions: UInt8[Tensor, "slot"] | None,
    token_ids: Int[Tensor, "query"],
    hidden: Float[Tensor, "query hidden"],
    *,
    start: int,
    own: tuple[OwnChain, ...] | None = None,
    depth: int | None = None,
    rotation: Rotation | None = None,
) -> StepOutput:
    """One drafter step for the chains that start at t = start, start+1, ...

    Depth 1 (`own` is None): `token_ids` = x[t+1], `hidden` = f[t], each query stands at its slot t and sees the true slots
    up to t. Depth k: `token_ids` = the draft of depth k-1, `hidden` = the state fed back, `own` = the chain's slots so far;
    each query stands at t+k-1, sees the true slots up to t, and its own chain, its own new slot included.

    Without `regions` (`slot_regions`) nothing is measured but norms: for chains of which only the drafts matter. `depth` is
    needed only where `own` does not hold the whole chain (an intervention that hides a part of it). `rotation`: of the
    positions start, start+1, ... as far as the last query stands, for chains that would compute them at every depth.
    """
    num_queries = len(token_ids)
    if depth is None:
        depth = 1 if own is None else 2 + (own[0].k.shape[1] if own else 0)
    position = start + depth - 1
    embeds = drafter.embed(token_ids)
    if rotation is None:
        rotation = drafter.rotation(torch.arange(position, position + num_queries, device=token_ids.device))
    else:
        rotation = rotation[0][depth - 1 : depth - 1 + num_queries], rotation[1][depth - 1 : depth - 1 + num_queries]
    norms: dict[str, list[Tensor]] = {"in": [], "attn": [], "mlp": [], "out": []}
    masses, queries, chains = [], [], []
    input_share = None
    for index, layer in enumerate(drafter.layers):
        norms["in"].append(_norm(hidden))
        scale = layer.head_dim**-0.5
        x, residual = layer.read(embeds, hidden)
        projected = layer.products(x)
        if index == 0 and regions is not None:
            input_share = layer.embed_share(x, projected)
        q, k, v = layer.heads(projected, rotation)
        band = Band.causal(start, query_position=position, window=layer.window)
        chain = None
        if own is not None:
            before = own[index] if own else None
            chain = OwnChain(
                k[:, None] if before is None else torch.cat([before.k, k[:, None]], dim=1),
                v[:, None] if before is None else torch.cat([before.v, v[:, None]], dim=1),
            )
            chains.append(chain)
        k_true, v_true = cache.k[index], cache.v[index]
        if regions is None:
            out, lse = attend(q, k_true, v_true, band, scale)
            if chain is not None:
                out = merge_own(out, lse, own_logits(q, chain, scale, layer.window), chain)
        else:
            seen = attend_regions(q, k_true, v_true, regions, len(SLOT_REGIONS), band, scale)
            out, mass = merge_chain(q, seen, chain, scale, layer.window)
            masses.append(mass)
        queries.append(q)
        attn = layer.attention_branch(out.flatten(-2))
        stream = residual + attn
        mlp = layer.mlp_branch(stream)
        hidden = stream + mlp
        norms["attn"].append(_norm(attn))
        norms["mlp"].append(_norm(mlp))
        norms["out"].append(_norm(hidden))
    logits, feedback = drafter.predict(hidden)
    feedback_norm = norms["out"][-1] if feedback is hidden else _norm(feedback)
    return StepOutput(
        logits=logits,
        feedback=feedback,
        own=tuple(chains),
        hidden_in_norm=_by_layer(norms["in"]),
        hidden_out_norm=_by_layer(norms["out"]),
        hidden_feedback_norm=feedback_norm,
        branch_norm_attn=_by_layer(norms["attn"]),
        branch_norm_mlp=_by_layer(norms["mlp"]),
        input_share_embed=input_share,
        masses=tuple(masses),
        queries=tuple(queries),
    )
