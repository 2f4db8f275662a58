"""Where the attention probability goes: one query's masses by region and its entropy, own-chain slots merged in.

Exact without any L x L matrix: by the Triton kernel on a CUDA device (`region_kernel`), elsewhere by attention that gives
its log-sum-exp, called three times.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from probes.attention.band import Band
from probes.attention.kernel import attend, has_kernel


class Masses(NamedTuple):
    """Probabilities of one layer's queries, float32. region + current + own sum to 1 for each query and head."""

    mass: Float[Tensor, "query head _"]  # the current slot taken out of its region, in the last column
    own: Float[Tensor, "query head"]
    entropy: Float[Tensor, "query head"]  # nats, over all slots
    lse: Float[Tensor, "query head"]  # log of the softmax's denominator, band and own chain together

    @property
    def region(self) -> Float[Tensor, "query head region"]:
        return self.mass[..., :-1]

    @property
    def current(self) -> Float[Tensor, "query head"]:
        return self.mass[..., -1]


class BandAttention(NamedTuple):
    """Attention over a band of true-feature slots. The masses of a head sum to 1, or are 0 where the band is empty."""

    out: Float[Tensor, "query head head_dim"]
    lse: Float[Tensor, "query head"]
    mass: Float[
        Tensor, "query head region_and_current"
    ]  # the current slot, the last that a query sees, is the last column
    entropy: Float[Tensor, "query head"]


class OwnChain(NamedTuple):
    """The chain's own keys and values: slot m of query i stands at position t_i + 1 + m."""

    k: Float[Tensor, "query own kv_head head_dim"]
    v: Float[Tensor, "query own kv_head head_dim"]


def own_logits(
    q: Float[Tensor, "query head head_dim"], own: OwnChain, scale: float, window: int | None
) -> Float[Tensor, "query head own"]:
    """Attention logits on the chain's own slots (the last is the query itself), -inf outside the window.

    Multiplied in float32 at least: fused kernels do not round logits either.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    grouped = q.to(wide).unflatten(1, (own.k.shape[2], -1))  # [query, kv_head, head of the group, head_dim]
    logits = torch.einsum("qkgd,qokd->qkgo", grouped, own.k.to(wide)).flatten(1, 2) * scale
    if window is not None and window < logits.shape[-1]:
        logits[..., : logits.shape[-1] - window] = -torch.inf
    return logits


def merge_own(
    out: Float[Tensor, "query head head_dim"],
    lse: Float[Tensor, "query head"],
    logits: Float[Tensor, "query head own"],
    own: OwnChain,
) -> Float[Tensor, "query head head_dim"]:
    """Attention over the band and the own chain together, merged by log-sum-exp."""
    total = torch.logaddexp(lse, logits.logsumexp(dim=-1))
    probability = (logits - total[..., None]).exp().to(own.v.dtype).unflatten(1, (own.v.shape[2], -1))
    own_out = torch.einsum("qkgo,qokd->qkgd", probability, own.v).flatten(1, 2)
    return out * (lse - total).exp()[..., None].to(out.dtype) + own_out


def attend_regions(
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "slot kv_head head_dim"],
    v: Float[Tensor, "slot kv_head head_dim"],
    region: UInt8[Tensor, "token"],  # of the whole text
    num_regions: int,
    band: Band,
    scale: float,
) -> BandAttention:
    """Attention over the band and where it looks; by the Triton kernel where there is one for this device and dtype."""
    if has_kernel(q):
        from probes.attention.region_kernel import attend_banded

        found = attend_banded(q, k, v, band, scale, region=region, num_regions=num_regions)
        assert found.mass is not None
        assert found.entropy is not None
        return BandAttention(found.out, found.lse, found.mass, found.entropy)
    return attend_regions_plain(q, k, v, region, num_regions, band, scale)


def attend_regions_plain(
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "slot kv_head head_dim"],
    v: Float[Tensor, "slot kv_head head_dim"],
    region: UInt8[Tensor, "token"],  # of the whole text
    num_regions: int,
    band: Band,
    scale: float,
) -> BandAttention:
    """The same by any attention that gives its log-sum-exp: with V = one-hot(region) it gives each region's share, with
    V = K it gives E[k], hence the entropy lse - scale * q.E[k] (measured: 3e-7 and 1e-6 in float32; q and k are widened to
    float32 first because in bfloat16 the same trick is only good to 3e-3).
    """
    out, _ = attend(q, k, v, band, scale)
    q, k = q.float(), k.float()
    num_kv_heads, head_dim = k.shape[1:]
    one_hot = torch.nn.functional.one_hot(region[: len(k)].long(), num_regions).float()
    shares = []
    for begin in range(0, num_regions, head_dim):  # the kernel's V is as wide as its q
        columns = torch.nn.functional.pad(
            one_hot[:, begin : begin + head_dim], (0, max(0, begin + head_dim - num_regions))
        )
        value, lse = attend(q, k, columns[:, None, :].expand(-1, num_kv_heads, -1), band, scale)
        shares.append(value[..., : min(head_dim, num_regions - begin)])
    mass = torch.cat(shares, dim=-1)  # [query, head, region], sums to 1 over the band
    mean_k, _ = attend(q, k, k, band, scale)
    entropy = lse - (q * mean_k).sum(dim=-1) * scale
    if band.is_empty:
        return BandAttention(out, lse, torch.nn.functional.pad(mass, (0, 1)), torch.zeros_like(lse))
    current = band.last + torch.arange(len(q), device=q.device)
    repeats = q.shape[1] // num_kv_heads
    current_logit = (q * k[current].repeat_interleave(repeats, dim=1)).sum(dim=-1) * scale
    current_mass = (current_logit - lse).exp()
    mass = (mass - current_mass[..., None] * one_hot[current][:, None, :]).clamp_min(0.0)
    return BandAttention(out, lse, torch.cat([mass, current_mass[..., None]], dim=-1), entropy)


def merge_chain(
    q: Float[Tensor, "query head head_dim"], band: BandAttention, own: OwnChain | None, scale: float, window: int | None
) -> tuple[Float[Tensor, "query head head_dim"], Masses]:
    """Output and masses of one softmax over the band and the own chain; `own` is None at depth 1."""
    if own is None:
        none = torch.zeros_like(band.lse)
        return band.out, Masses(band.mass, none, band.entropy.clamp_min(0.0), band.lse)
    if has_kernel(q):
        from probes.attention import chain_kernel

        out, lse, mass, own_mass, entropy = chain_kernel.merge(q, own.k, own.v, band, scale, window)
        return out, Masses(mass, own_mass, entropy, lse)
    logits = own_logits(q, own, scale, window)
    return merge_own(band.out, band.lse, logits, own), merge_masses(band, logits)


def merge_masses(band: BandAttention, logits: Float[Tensor, "query head own"]) -> Masses:
    """The band's masses and the own chain's over one softmax. `logits` of the own slots: `own_logits`."""
    logits = logits.float()
    total = torch.logaddexp(band.lse, logits.logsumexp(dim=-1))
    in_band = (band.lse - total).exp()
    surprise = total[..., None] - logits  # infinite outside the window, where the probability is 0
    probability = (-surprise).exp()
    entropy = in_band * band.entropy + torch.where(in_band > 0, in_band * (total - band.lse), 0.0)
    entropy = entropy + torch.where(probability > 0, probability * surprise, 0.0).sum(dim=-1)
    return Masses(
        mass=band.mass * in_band[..., None],
        own=probability.sum(dim=-1),
        entropy=entropy.clamp_min(0.0),
        lse=total,
    )


def recent_masses(
    q: Float[Tensor, "query head head_dim"],
    k: Float[Tensor, "slot kv_head head_dim"],
    slots: Int[Tensor, "query"],
    lse: Float[Tensor, "query head"],
    *,
    scale: float,
    window: int | None,
    depth: int,
) -> Float[Tensor, "query depth head"]:
    """What a true-feature query at slot s puts on the slots s-(k-2) .. s, for k = 1 .. depth (0 at k = 1).

    The counterpart of `own` at depth k: the same slots, true features. `lse` is that query's own. Slots before 0 count 0.
    """
    back = torch.arange(depth - 1, device=slots.device)
    where = slots[:, None] - back  # [query, depth-1]: s, s-1, ...
    keys = k[where.clamp_min(0)].float()  # [query, depth-1, kv_head, head_dim]
    logits = torch.einsum("qkgd,qbkd->qbkg", q.float().unflatten(1, (k.shape[1], -1)), keys).flatten(2) * scale
    probability = (logits - lse[:, None, :].float()).exp()
    is_seen = where >= 0 if window is None else (where >= 0) & (back < window)
    probability = torch.where(is_seen[..., None], probability, 0.0)
    return torch.cat([torch.zeros_like(lse[:, None, :]).float(), probability.cumsum(dim=1)], dim=1)
