"""One softmax over all slots in float64: what the region-mass kernel and its torch counterpart must give."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probes.attention.region_kernel import RegionAttention


@dataclass(frozen=True)
class Expected:
    out: Tensor  # [query, head, head_dim]
    lse: Tensor  # [query, head]
    mass: Tensor  # [query, head, region], the current slot in its text region
    current: Tensor  # [query, head]
    entropy: Tensor  # [query, head]


def attend_exactly(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_seen: Tensor,
    region: Tensor,
    num_regions: int,
    scale: float,
    *,
    current: Tensor | None = None,
    sink: Tensor | None = None,
) -> Expected:
    """q [query, head, d]; k, v [slot, kv_head, d]; is_seen [query, slot]; region [slot]; current [query]: a slot each."""
    q, k, v = q.double(), k.double(), v.double()
    repeats = q.shape[1] // k.shape[1]
    logits = torch.einsum("qhd,shd->qhs", q, k.repeat_interleave(repeats, dim=1)) * scale
    logits = logits.masked_fill(~is_seen[:, None, :], -torch.inf)
    outcomes = logits
    if sink is not None:
        outcomes = torch.cat([logits, sink.double()[None, :, None].expand(len(q), -1, 1)], dim=-1)
    lse = outcomes.logsumexp(dim=-1)
    every = torch.where(outcomes == -torch.inf, 0.0, (outcomes - lse[..., None]).exp())
    p = every[..., : k.shape[0]]
    one_hot = torch.nn.functional.one_hot(region.long(), num_regions).double()
    at_current = torch.zeros_like(lse)
    if current is not None:
        at_current = p.gather(-1, current[:, None, None].expand(-1, q.shape[1], 1))[..., 0]
    return Expected(
        out=torch.einsum("qhs,shd->qhd", p, v.repeat_interleave(repeats, dim=1)),
        lse=lse,
        mass=p @ one_hot,
        current=at_current,
        entropy=torch.special.entr(every).sum(dim=-1),
    )


def assert_agrees(
    found: RegionAttention, expected: Expected, v: Tensor, region: Tensor, current: Tensor | None
) -> None:
    """|d| of masses, lse and entropy at most 2e-3 (16-bit inputs) or 1e-5 (float32); the output's 2^-7 max|v| or 1e-5."""
    is_wide = v.dtype == torch.float32
    tolerance = 1e-5 if is_wide else 2e-3
    assert found.mass is not None
    assert found.entropy is not None
    mass = expected.mass.clone()
    if current is not None:  # its mass has the last column
        index = region[current].long()[:, None, None].expand(-1, mass.shape[1], 1)
        mass.scatter_add_(-1, index, -expected.current[..., None])
        mass = torch.cat([mass, expected.current[..., None]], dim=-1)
    _assert_within(found.mass.double(), mass, tolerance, "masses")
    is_empty = expected.lse == -torch.inf
    assert (found.lse[is_empty] == -torch.inf).all()
    lse = torch.where(is_empty, 0.0, expected.lse)
    _assert_within(torch.where(is_empty, 0.0, found.lse.double()), lse, tolerance, "lse")
    _assert_within(found.entropy.double(), expected.entropy, tolerance, "entropy")
    bound = (1e-5 if is_wide else 2.0**-7) * max(1.0, float(v.abs().max()))
    _assert_within(found.out.double(), expected.out, bound, "output")


def _assert_within(found: Tensor, expected: Tensor, bound: float, what: str) -> None:
    assert found.shape == expected.shape, f"{what}: {tuple(found.shape)} instead of {tuple(expected.shape)}"
    assert found.isfinite().all(), f"{what}: not finite"
    apart = float((found - expected).abs().max()) if found.numel() else 0.0
    assert apart <= bound, f"{what}: {apart:.3g} apart, {bound:.3g} allowed"
