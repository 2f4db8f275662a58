"""The recorder's Triton kernels against plain torch: region masses on random paged keys, norms, fusion shares."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from probes.record import REGIONS
from probes.vllm import norms_triton
from probes.vllm.masses import Boundaries, Queries, masses_of, region_codes
from probes.vllm.masses_triton import launch, make_scratch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

# heads, kv heads, head size, slots of a block, window, dtype
SHAPES = [
    (32, 8, 128, 16, None, torch.bfloat16),
    (9, 3, 64, 16, None, torch.float32),
    (9, 3, 64, 32, 40, torch.float16),
    (4, 4, 80, 16, 7, torch.float32),
    (64, 8, 128, 64, None, torch.bfloat16),
]
POSITIONS, STARTS, NUM_PROMPT = (0, 63, 700, 2047), (0, 60, 697, 2040), (1, 50, 700, 1900)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim", "block_slots", "window", "dtype"), SHAPES)
@pytest.mark.parametrize("is_mean", [False, True])
def test_kernel_is_the_reference(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_slots: int,
    window: int | None,
    dtype: torch.dtype,
    is_mean: bool,
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    num_rows, num_blocks, max_blocks = len(POSITIONS), 600, 2048 // block_slots
    cache = torch.randn(
        num_blocks, num_kv_heads, block_slots, 2 * head_dim, generator=generator, device="cuda", dtype=dtype
    )
    keys = cache.transpose(1, 2)[..., :head_dim]
    table = torch.randint(0, num_blocks, (num_rows, max_blocks), generator=generator, device="cuda", dtype=torch.int32)
    rows = torch.tensor([4, 9, 17, 19], device="cuda")
    positions = torch.zeros(20, dtype=torch.int64, device="cuda")
    positions[rows] = torch.tensor(POSITIONS, device="cuda")
    queries = Queries(
        q=torch.randn(20, num_heads, head_dim, generator=generator, device="cuda", dtype=dtype),
        rows=rows,
        positions=positions,
        num_rows=num_rows,
        keys=keys,
        block_table=table,
        scale=head_dim**-0.5,
        window=window,
    )
    boundaries = Boundaries(
        slot=torch.arange(num_rows, dtype=torch.int32, device="cuda"),
        num_prompt_tokens=torch.tensor(NUM_PROMPT, dtype=torch.int32, device="cuda"),
        region=torch.randint(0, 8, (num_rows, 2048), generator=generator, device="cuda", dtype=torch.uint8),
        num_sink_slots=2,
    )
    start = torch.tensor(STARTS, dtype=torch.int32, device="cuda")
    mass = torch.full((num_rows, 5, 2, 1 if is_mean else num_heads, len(REGIONS)), torch.nan, device="cuda")
    entropy = torch.full(mass.shape[:-1], torch.nan, device="cuda")
    for depth in (0, 3):
        launch(
            queries,
            boundaries,
            start=start,
            step=torch.tensor(depth, device="cuda"),
            layer=1,
            mass=mass,
            entropy=entropy,
            scratch=make_scratch(num_rows, num_heads, mass.device),
        )
        for row, position in enumerate(POSITIONS):
            codes = region_codes(boundaries, row, position, position if depth == 0 else STARTS[row])
            expected, h = masses_of(queries, row, int(rows[row]), position, codes)
            if is_mean:
                expected, h = expected.mean(dim=0, keepdim=True), h.mean(dim=0, keepdim=True)
            torch.testing.assert_close(mass[row, depth, 1], expected, atol=2e-5, rtol=0)
            torch.testing.assert_close(entropy[row, depth, 1], h, atol=2e-4, rtol=0)
    assert mass[:, [1, 2, 4]].isnan().all()
    assert mass[:, :, 0].isnan().all()


def test_norm_kernels_are_plain_torch() -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    states, rows, step = (
        random(20, 1500).bfloat16(),
        torch.tensor([3, 7, 9], device="cuda"),
        torch.tensor(2, device="cuda"),
    )
    out = torch.full((5, 4, 2), torch.nan, device="cuda")
    norms_triton.put_norms(states, rows, step, out[:, :, 1], 3)
    torch.testing.assert_close(out[:3, 2, 1], states[rows].float().norm(dim=-1))
    values = random(20)
    step.fill_(1)
    norms_triton.put_norms(states, rows, step, out[:, :, 1], 3, values=values, value_out=out[:, :, 0])
    torch.testing.assert_close(out[:3, 1, 1], states[rows].float().norm(dim=-1))
    assert torch.equal(out[:3, 1, 0], values[rows])
    assert int((~out.isnan()).sum()) == 9
    branch = random(20, 1500).bfloat16()
    residual = torch.zeros(30, device="cuda")
    norms_triton.residual_norms(branch, states, residual)
    torch.testing.assert_close(residual[:20], (branch.float() + states.float()).norm(dim=-1))

    num_aux, num_rows, size, hidden = 3, 4, 1030, 1100
    concat, gains = random(9, num_aux * size).bfloat16(), random(num_aux, size).bfloat16()
    tokens = torch.tensor([1, 3, 8, 0], device="cuda")
    fused = torch.empty(num_aux, num_rows, size, device="cuda", dtype=torch.bfloat16)
    columns = torch.zeros(6, 9, device="cuda")
    share, energy, aux_norm = (columns[:num_rows, i : i + 3] for i in (0, 3, 6))
    norms_triton.gather_states(concat, tokens, gains, 1e-5, fused, aux_norm)
    g = concat[tokens].float().unflatten(1, (num_aux, size)).transpose(0, 1)
    expected = g * torch.rsqrt(g.square().mean(dim=-1, keepdim=True) + 1e-5) * gains.float()[:, None]
    torch.testing.assert_close(fused, expected.bfloat16(), atol=2e-2, rtol=1e-2)
    torch.testing.assert_close(aux_norm, g.norm(dim=-1).T)
    terms = random(num_aux, num_rows, hidden)
    norms_triton.fusion_shares(terms, share, energy)
    total = terms.sum(dim=0)
    torch.testing.assert_close(share, ((terms * total).sum(dim=-1) / total.square().sum(dim=-1)).T, atol=1e-5, rtol=0)
    torch.testing.assert_close(energy, (terms.norm(dim=-1) / terms.norm(dim=-1).sum(dim=0)).T, atol=1e-5, rtol=0)


def test_a_round_begins_and_ends_in_the_ring() -> None:
    words = torch.arange(4 * 1100, dtype=torch.int32, device="cuda").view(4, 1100)
    before, ring = words.clone(), torch.zeros(3, 4, 1100, dtype=torch.int32, device="cuda")
    count, step = torch.tensor(2**31 + 3, device="cuda"), torch.tensor(1, device="cuda")
    positions, last = torch.arange(100, 140, device="cuda"), torch.tensor([7, 30, 2], device="cuda")
    norms_triton.begin_round(positions, last, count, words[:, 5], words[:, 0], 3, 0x7FFFFFFF)
    assert int(count) == 2**31 + 4
    before[:3, 0], before[:3, 5] = 4, torch.tensor([107, 130, 102], device="cuda")
    assert torch.equal(words, before)
    drafts = torch.arange(1000, 1010, device="cuda").view(5, 2)
    keep = {"last": 1, "first_draft": 6}
    norms_triton.keep_rows(words, ring, count, torch.tensor(0, device="cuda"), drafts, 3, **keep)
    assert not ring.any()
    norms_triton.keep_rows(words, ring, count, step, drafts, 3, **keep)
    before[:3, 6:8] = drafts[:3].int()
    slot = (2**31 + 4) % 3
    assert torch.equal(ring[slot, :3], before[:3])
    assert int(ring.count_nonzero()) == int(before[:3].count_nonzero())
