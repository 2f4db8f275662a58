"""On a CUDA device: the fused kernel against plain softmax, replay and live against the CPU's, whole jobs.

python -m pytest -m gpu tests/gpu
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from probes.attention.band import Band
from probes.attention.kernel import attend, attend_plain, band_mask
from probes.conditions import Job, PromptInput
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.job.loaded import LoadedDrafter, Models
from probes.job.measure_job import measure_conditions
from probes.record import RoundBatch
from probes.target.model import Target
from tests.same_rounds import assert_same_rounds
from tests.tiny_models import matched_drafter, tiny_target, tiny_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

DRAFTERS = {
    "eagle3": {},
    "eagle3.1": {"has_fc_norm": True, "norm_output": True},
    "two layers, window": {"num_layers": 2, "sliding_window": 9},
    "window smaller than K": {"sliding_window": 3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 5, 100])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (8, 1, 128), (4, 4, 16)])
def test_fused_kernel_equals_plain_softmax(
    dtype: torch.dtype, window: int | None, heads: int, kv_heads: int, head_dim: int
) -> None:
    torch.manual_seed(0)
    num_queries, num_slots, first = 37, 301, 263
    q = torch.randn(num_queries, heads, head_dim, device="cuda", dtype=dtype)
    k = torch.randn(num_slots, kv_heads, head_dim, device="cuda", dtype=dtype)
    v = torch.randn(num_slots, kv_heads, head_dim, device="cuda", dtype=dtype)
    band = Band.causal(first, query_position=first + 2, window=window)
    out, lse = attend(q, k, v, band, head_dim**-0.5)
    wide = [x.double() for x in (q, k, v)]
    mask = band_mask(band, 0, num_queries, 0, num_slots, wide[0])
    expected, expected_lse = attend_plain(*wide, mask, head_dim**-0.5)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, atol=tolerance, rtol=tolerance)


def job(engine: str, device: str, dtype: str) -> Job:
    turns = ("where is the river", "sum two and three", "name a tree, please, and a bird")
    prompts = [PromptInput(prompt_id=str(i), messages=({"role": "user", "content": t},)) for i, t in enumerate(turns)]
    return Job(
        target="tiny",
        drafters={"d": "tiny"},
        prompts=prompts,
        engine=engine,
        depth=5,
        max_new_tokens=24,
        device=device,
        dtype=dtype,
    )


def measure(name: str, engine: str, device: str, dtype: str = "float32") -> list[RoundBatch]:
    model = tiny_target(seed=0)
    spec, tensors = matched_drafter(model, seed=0, **DRAFTERS[name])
    torch_dtype = getattr(torch, dtype)
    target = Target(model.to(device, torch_dtype), tiny_tokenizer(), aux_layer_ids=spec.aux_layer_ids)
    drafter = Eagle3.load(spec, tensors, dtype=torch_dtype, device=device)
    records: list[object] = []
    measure_conditions(
        job(engine, device, dtype), Models(target, (LoadedDrafter(name="d", spec=spec, model=drafter),)), records.append
    )
    return [r for r in records if isinstance(r, RoundBatch)]


@pytest.mark.parametrize("name", DRAFTERS)
def test_replay_equals_the_cpus(name: str) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    for ours, theirs in zip(measure(name, "replay", "cuda"), measure(name, "replay", "cpu"), strict=True):
        assert_same_rounds(ours, theirs, atol=1e-4, mass_atol=1e-5)


@pytest.mark.parametrize("name", DRAFTERS)
def test_live_is_lossless_and_replays_walk(name: str) -> None:
    for looped, replayed in zip(measure(name, "live", "cuda"), measure(name, "replay", "cuda"), strict=True):
        assert looped.start.tolist() == replayed.start[replayed.on_walk].tolist()
        assert looped.accepted_drafts.tolist() == replayed.accepted_drafts[replayed.on_walk].tolist()
        assert looped.draft_us is not None
        assert (looped.draft_us > 0).all()
        assert (looped.verify_us > 0).all()


def test_bfloat16_measures_the_same_within_its_precision() -> None:
    wide = measure("eagle3", "replay", "cuda")
    narrow = measure("eagle3", "replay", "cuda", dtype="bfloat16")
    for a, b in zip(wide, narrow, strict=True):
        np.testing.assert_allclose(b.mass["sink"][0, 0].mean(), a.mass["sink"][0, 0].mean(), atol=0.05)
        np.testing.assert_allclose(b.hidden_in_norm[0, 0], a.hidden_in_norm[0, 0], rtol=0.05)


def test_a_text_of_a_prompt_does_not_depend_on_its_batch_on_the_device() -> None:
    model = tiny_target(seed=0)
    spec, tensors = matched_drafter(model, seed=0)
    target = Target(model.to("cuda"), tiny_tokenizer(), aux_layer_ids=spec.aux_layer_ids)
    loaded = Models(target, (LoadedDrafter(name="d", spec=spec, model=Eagle3.load(spec, tensors, device="cuda")),))
    texts = []
    for batch_size in (1, 3):
        records: list[object] = []
        measure_conditions(replace(job("replay", "cuda", "float32"), batch_size=batch_size), loaded, records.append)
        texts.append([r.draft_token.tolist() for r in records if isinstance(r, RoundBatch)])
    assert texts[0] == texts[1]
