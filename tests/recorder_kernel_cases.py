"""The recorder's Triton kernels against plain torch: under Triton's interpreter (tests/cpu) and on a GPU (tests/gpu)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from probes.record import REGIONS
from probes.vllm import norms_triton, ring_triton
from probes.vllm.boundaries import NO_SLOT, Boundaries, Queries
from probes.vllm.masses import masses_of, region_codes
from probes.vllm.masses_triton import launch, make_scratch


@dataclass(frozen=True, kw_only=True)
class MassCase:
    heads: int
    kv_heads: int
    head_dim: int
    block_slots: int
    window: int | None = None
    dtype: torch.dtype = torch.float32
    positions: tuple[int, ...] = (0, 63, 700, 2047)
    starts: tuple[int, ...] = (0, 60, 697, 2040)
    num_prompt: tuple[int, ...] = (1, 50, 700, 1900)


MANY_SLOTS = MassCase(  # beyond what the splits have at least
    heads=2,
    kv_heads=1,
    head_dim=16,
    block_slots=64,
    positions=(0, 63, 4200, 6000),
    starts=(0, 60, 4200, 5990),
    num_prompt=(1, 50, 4100, 300),
)
LONG = {
    "many slots": MANY_SLOTS,
    "bfloat16": MassCase(heads=32, kv_heads=8, head_dim=128, block_slots=16, dtype=torch.bfloat16),
    "float32": MassCase(heads=9, kv_heads=3, head_dim=64, block_slots=16),
    "float16, window": MassCase(heads=9, kv_heads=3, head_dim=64, block_slots=32, window=40, dtype=torch.float16),
    "odd head size, small window": MassCase(heads=4, kv_heads=4, head_dim=80, block_slots=16, window=7),
    "many heads": MassCase(heads=64, kv_heads=8, head_dim=128, block_slots=64, dtype=torch.bfloat16),
}
SHORT = {"many slots": MANY_SLOTS} | {
    name: MassCase(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_slots=16,
        window=window,
        positions=(0, 63, 130, 299),
        starts=(0, 60, 130, 296),
        num_prompt=(1, 50, 131, 200),
    )
    for name, heads, kv_heads, head_dim, window in (
        ("grouped heads", 9, 3, 64, None),
        ("more heads than are merged at a time", 40, 2, 16, None),
        ("odd head size, small window", 4, 4, 80, 7),
        ("window of one slot", 7, 1, 16, 1),
    )
}


def check_masses(case: MassCase, device: str, *, is_mean: bool) -> None:
    """Every row but one that is not recorded, and no other column."""
    generator = torch.Generator(device).manual_seed(0)
    num_rows, num_slots = len(case.positions), max(case.positions) + 1
    max_blocks = -(-num_slots // case.block_slots)
    num_blocks = num_rows * max_blocks

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(case.dtype)

    def ids(high: int, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(0, high, shape, generator=generator, device=device).to(dtype)

    rows = torch.tensor([4, 9, 17, 19], device=device)
    positions = torch.zeros(20, dtype=torch.int64, device=device)
    positions[rows] = torch.tensor(case.positions, device=device)
    queries = Queries(
        q=random(20, case.heads, case.head_dim),
        rows=rows,
        positions=positions,
        num_rows=num_rows,
        keys=random(num_blocks, case.kv_heads, case.block_slots, 2 * case.head_dim).transpose(1, 2)[
            ..., : case.head_dim
        ],
        block_table=ids(num_blocks, num_rows, max_blocks, dtype=torch.int32),
        scale=case.head_dim**-0.5,
        window=case.window,
    )
    unrecorded = 1
    slot = torch.arange(num_rows, dtype=torch.int32, device=device)
    slot[unrecorded] = NO_SLOT
    boundaries = Boundaries(
        slot=slot,
        num_prompt_tokens=torch.tensor(case.num_prompt, dtype=torch.int32, device=device),
        region=ids(8, num_rows, num_slots, dtype=torch.uint8),
        num_sink_slots=2,
    )
    mass = torch.full((num_rows, 5, 2, 1 if is_mean else case.heads, len(REGIONS)), torch.nan, device=device)
    entropy = torch.full(mass.shape[:-1], torch.nan, device=device)
    for depth in (0, 3):
        launch(
            queries,
            boundaries,
            start=torch.tensor(case.starts, dtype=torch.int32, device=device),
            step=torch.tensor(depth, device=device),
            layer=1,
            mass=mass,
            entropy=entropy,
            scratch=make_scratch(num_rows, case.heads, mass.device),
        )
        for row, position in enumerate(case.positions):
            if row == unrecorded:
                continue
            codes = region_codes(boundaries, row, position, position if depth == 0 else case.starts[row])
            expected, h = masses_of(queries, row, int(rows[row]), position, codes)
            if is_mean:
                expected, h = expected.mean(dim=0, keepdim=True), h.mean(dim=0, keepdim=True)
            torch.testing.assert_close(mass[row, depth, 1], expected, atol=2e-5, rtol=0)
            torch.testing.assert_close(entropy[row, depth, 1], h, atol=2e-4, rtol=0)
    assert mass[:, [1, 2, 4]].isnan().all()
    assert mass[:, :, 0].isnan().all()
    assert mass[unrecorded].isnan().all()
    assert entropy[unrecorded].isnan().all()


def check_norms(device: str, dtype: torch.dtype, hidden: int) -> None:
    random = partial(torch.randn, generator=torch.Generator(device).manual_seed(0), device=device)
    states, rows = random(20, hidden).to(dtype), torch.tensor([3, 7, 9], device=device)
    step = torch.tensor(2, device=device)
    out = torch.full((5, 4, 2), torch.nan, device=device)
    norms_triton.put_norms(states, rows, step, out[:, :, 1], 3)
    torch.testing.assert_close(out[:3, 2, 1], states[rows].float().norm(dim=-1))
    values = random(20)
    step.fill_(1)
    norms_triton.put_norms(states, rows, step, out[:, :, 1], 3, values=values, value_out=out[:, :, 0])
    torch.testing.assert_close(out[:3, 1, 1], states[rows].float().norm(dim=-1))
    assert torch.equal(out[:3, 1, 0], values[rows])
    assert int((~out.isnan()).sum()) == 9
    branch = random(20, hidden).to(dtype)
    residual = torch.zeros(30, device=device)
    norms_triton.residual_norms(branch, states, residual)
    torch.testing.assert_close(residual[:20], (branch.float() + states.float()).norm(dim=-1))


def check_fusion(device: str, dtype: torch.dtype) -> None:
    random = partial(torch.randn, generator=torch.Generator(device).manual_seed(0), device=device)
    num_aux, num_rows, size, hidden = 3, 4, 1030, 1100
    concat, gains = random(9, num_aux * size).to(dtype), random(num_aux, size).to(dtype)
    tokens = torch.tensor([1, 3, 8, 0], device=device)
    fused = torch.empty(num_aux, num_rows, size, device=device, dtype=dtype)
    columns = torch.zeros(6, 9, device=device)
    share, energy, aux_norm = (columns[:num_rows, i : i + 3] for i in (0, 3, 6))
    norms_triton.gather_states(concat, tokens, gains, 1e-5, fused, aux_norm)
    g = concat[tokens].float().unflatten(1, (num_aux, size)).transpose(0, 1)
    expected = g * torch.rsqrt(g.square().mean(dim=-1, keepdim=True) + 1e-5) * gains.float()[:, None]
    torch.testing.assert_close(fused, expected.to(dtype), atol=2e-2, rtol=1e-2)
    torch.testing.assert_close(aux_norm, g.norm(dim=-1).T)
    terms = random(num_aux, num_rows, hidden)
    norms_triton.fusion_shares(terms, share, energy)
    total = terms.sum(dim=0)
    torch.testing.assert_close(share, ((terms * total).sum(dim=-1) / total.square().sum(dim=-1)).T, atol=1e-5, rtol=0)
    torch.testing.assert_close(energy, (terms.norm(dim=-1) / terms.norm(dim=-1).sum(dim=0)).T, atol=1e-5, rtol=0)


def check_ring(device: str) -> None:
    """A round begins and ends in the ring, at its last depth alone."""
    words = torch.arange(4 * 1100, dtype=torch.int32, device=device).view(4, 1100)
    before, ring = words.clone(), torch.zeros(3, 4, 1100, dtype=torch.int32, device=device)
    count, step = torch.tensor(2**31 + 3, device=device), torch.tensor(1, device=device)
    positions, last = torch.arange(100, 140, device=device), torch.tensor([7, 30, 2], device=device)
    ring_triton.begin_round(positions, last, count, words[:, 5], words[:, 0], 3, 0x7FFFFFFF)
    assert int(count) == 2**31 + 4
    before[:3, 0], before[:3, 5] = 4, torch.tensor([107, 130, 102], device=device)
    assert torch.equal(words, before)
    drafts = torch.arange(1000, 1010, device=device).view(5, 2)
    keep = {"last": 1, "first_draft": 6}
    ring_triton.keep_rows(words, ring, count, torch.tensor(0, device=device), drafts, 3, **keep)
    assert not ring.any()
    ring_triton.keep_rows(words, ring, count, step, drafts, 3, **keep)
    before[:3, 6:8] = drafts[:3].int()
    slot = (2**31 + 4) % 3
    assert torch.equal(ring[slot, :3], before[:3])
    assert int(ring.count_nonzero()) == int(before[:3].count_nonzero())
