"""target_divergence: the watched masses against transformers' own attention weights; divergence by hand; in a job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GptOssConfig, GptOssForCausalLM, MistralConfig, MistralForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from probes.conditions import Job, PromptInput
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.job.loaded import LoadedDrafter, Models
from probes.job.measure_job import measure_conditions
from probes.record import TEXT_REGIONS, RoundBatch
from probes.target.attention import COMPARED_REGIONS, jensen_shannon, target_masses
from probes.target.model import Target
from tests.tiny_models import VOCAB_SIZE, matched_drafter, tiny_target, tiny_tokenizer

SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


def llama() -> torch.nn.Module:
    return tiny_target(seed=0, attn_implementation="sdpa")


def mistral_with_a_window() -> torch.nn.Module:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**SMALL, sliding_window=7))


def gpt_oss_with_learned_sinks() -> torch.nn.Module:
    torch.manual_seed(0)
    config = GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1, sliding_window=6)
    model = GptOssForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model


@pytest.mark.parametrize("build", [llama, mistral_with_a_window, gpt_oss_with_learned_sinks])
def test_masses_are_those_of_the_models_own_attention(build) -> None:  # type: ignore[no-untyped-def]
    model = build().float().eval()
    target = Target(model, tiny_tokenizer())
    rng = np.random.default_rng(0)
    ids = rng.integers(3, VOCAB_SIZE, 31).astype(np.int32)
    num_prompt = 20
    region = rng.integers(0, 5, 31).astype(np.uint8)
    region[num_prompt:] = TEXT_REGIONS.index("response")
    trace = target.read(ids, num_prompt)
    before = ALL_ATTENTION_FUNCTIONS.get(model.config._attn_implementation)
    masses = target_masses(target, trace, region, sink_slots=2)
    assert ALL_ATTENTION_FUNCTIONS.get(model.config._attn_implementation) is before

    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(torch.tensor(ids[None].astype(np.int64)), output_attentions=True).attentions
    assert set(masses.by_layer) == set(range(len(weights)))
    for index, weight in enumerate(weights):
        probability = weight[0].mean(dim=0)[num_prompt - 1 : -1]  # [position, slot]
        expected = {name: torch.zeros(len(probability)) for name in COMPARED_REGIONS}
        for slot in range(31):
            name = "sink" if slot < 2 else TEXT_REGIONS[region[slot]]
            expected[name] += probability[:, slot]
        expected["learned_sink"] = 1 - probability.sum(dim=-1)
        for column, name in enumerate(COMPARED_REGIONS):
            torch.testing.assert_close(masses.by_layer[index][:, column], expected[name], atol=1e-5, rtol=0)
    assert (masses.full_mean is None) == (build is mistral_with_a_window)  # a window in each of its layers


def test_divergence_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.5, 0.5])
    assert float(jensen_shannon(p, q)) == pytest.approx(0.5)  # bits: half of the mass is disjoint
    assert float(jensen_shannon(p, p)) == 0
    assert float(jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=2, max_size=8))
def test_divergence_is_symmetric_and_bounded(pairs: list[tuple[float, float]]) -> None:
    p, q = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    p, q = p / p.sum(), q / q.sum()
    value = float(jensen_shannon(p, q))
    assert 0 <= value <= 1
    assert value == pytest.approx(float(jensen_shannon(q, p)), abs=1e-9)


@pytest.mark.parametrize("engine", ["replay", "live"])
def test_a_job_records_it_where_the_drafts_follow_the_text(engine: str) -> None:
    model = tiny_target(seed=0)
    spec, tensors = matched_drafter(model, seed=0, aux_layer_ids=(0, 2, 3))
    target = Target(model, tiny_tokenizer(), aux_layer_ids=spec.aux_layer_ids)
    models = Models(target, (LoadedDrafter(name="d", spec=spec, model=Eagle3.load(spec, tensors)),))
    job = Job(
        target="tiny",
        drafters={"d": "tiny"},
        prompts=[PromptInput(prompt_id="0", messages=({"role": "user", "content": "name a tree"},))],
        engine=engine,
        depth=4,
        max_new_tokens=20,
        target_attention=True,
    )
    records: list[object] = []
    measure_conditions(job, models, records.append)
    batch = next(r for r in records if isinstance(r, RoundBatch))
    divergence = batch.target_divergence
    assert divergence is not None
    assert divergence.shape == (len(batch.start), 4, 4)  # three aux layers and the mean
    assert np.isnan(divergence[:, :, 0]).all()  # id 0 is the embedding: no layer made it
    follows = np.cumprod(batch.accepted == 1, axis=1)[:, :-1].astype(bool)
    assert np.isfinite(divergence[:, 0, 1:]).all()
    assert (np.isfinite(divergence[:, 1:, 3]) == follows).all()
    assert np.nanmax(divergence) <= 1
    plain: list[object] = []
    measure_conditions(replace(job, target_attention=False), models, plain.append)
    other = next(r for r in plain if isinstance(r, RoundBatch))
    assert other.target_divergence is None
    assert other.draft_token.tolist() == batch.draft_token.tolist()


def test_last_tokens_start_fewer_chains_with_the_same_numbers() -> None:
    model = tiny_target(seed=0)
    spec, tensors = matched_drafter(model, seed=0)
    target = Target(model, tiny_tokenizer(), aux_layer_ids=spec.aux_layer_ids)
    models = Models(target, (LoadedDrafter(name="d", spec=spec, model=Eagle3.load(spec, tensors)),))
    prompts = [PromptInput(prompt_id="0", messages=({"role": "user", "content": "name a tree"},))]
    job = Job(target="tiny", drafters={"d": "tiny"}, prompts=prompts, depth=3, max_new_tokens=20)
    batches = []
    for last_tokens in (None, 6):
        records: list[object] = []
        measure_conditions(replace(job, last_tokens=last_tokens), models, records.append)
        batches.append(next(r for r in records if isinstance(r, RoundBatch)))
    whole, part = batches
    assert part.start.tolist() == whole.start[-6:].tolist()
    assert part.accepted_drafts.tolist() == whole.accepted_drafts[-6:].tolist()
    np.testing.assert_allclose(part.mass["own"], whole.mass["own"][-6:], atol=1e-6)
    assert part.on_walk[0]
    assert part.num_trimmed_tokens is None  # the identity over the whole response does not hold for a part of it
