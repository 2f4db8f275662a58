"""Targets of every family that transformers has: captured states, decoding, verification and whole jobs.

Two oracles, neither of which has a cache, a batch or a hook of ours: transformers' own `output_hidden_states`, and greedy
decoding that runs the whole text again for every token. Windows are shorter than the texts, so that a cache which drops
what lies behind them could not take rejected drafts back.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from probes.checkpoint.spec import FINAL_NORMED
from probes.conditions import Job, PromptInput, SystemPrompt
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.errors import CheckpointError, InputError
from probes.job.loaded import LoadedDrafter, Models
from probes.job.measure_job import measure_conditions
from probes.record import REGIONS, TEXT_REGIONS, PromptRecord, Record, RoundBatch
from probes.target.attention import COMPARED_REGIONS, target_masses
from probes.target.model import Target
from probes.target.sampler import Sampler
from probes.target.trace import TIE_LOGIT_GAP
from probes.target.write import write
from tests.target_families import FAMILIES, SEVERAL_STREAMS, WINDOW, Family, drafter_for
from tests.tiny_models import VOCAB_SIZE

NUM_LAYERS = 4
AUX_LAYER_IDS = (0, 2, NUM_LAYERS)
PREFIX_TOKENS = 12
DOCUMENT = "the bell rang " * 30
TURNS = ("name a tree", "what is the tallest hill of all, and who says so", "x")


@dataclass
class Case:
    family: Family
    target: Target

    @property
    def model(self) -> nn.Module:
        return self.target.model


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family: Family = request.param
    if not family.is_known:
        pytest.skip(f"transformers {transformers.__version__} has no {family.config_class}")
    folder = tmp_path_factory.mktemp("target")
    family.build(folder)
    return Case(family, Target.load(folder))


def random_ids(num_tokens: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, num_tokens).astype(np.int32)


@torch.no_grad()
def whole_pass(model: nn.Module, text: list[int], **options: bool) -> Any:
    """transformers' own output for a text in one pass, without a cache of ours.

    Layers that share keys and values get a fresh cache of transformers: before 5.2x they found them nowhere else.
    """
    shares = bool(getattr(model.config.get_text_config(), "num_kv_shared_layers", 0))
    return model(input_ids=torch.tensor([text]), use_cache=shares, **options)


def plain_logits(model: nn.Module, text: list[int]) -> Tensor:
    """[token, vocab]"""
    return whole_pass(model, text).logits[0].float()


def assert_is_greedy(model: nn.Module, prompt: list[int], response: list[int]) -> int:
    """Each token is the argmax after all before it, or within a tie of it; returns how many were.

    One cacheless pass over the finished text: by induction that is greedy decoding token by token.
    """
    rows = plain_logits(model, [*prompt, *response])[len(prompt) - 1 : -1]
    gap = rows.max(dim=-1).values - rows[torch.arange(len(response)), torch.tensor(response)]
    assert float(gap.max()) < TIE_LOGIT_GAP, f"{gap.argmax()} of {len(response)} tokens in: logit gap {gap.max():.3g}"
    return int((gap > 0).sum())


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-5 * max(1.0, float(expected.abs().max())), rtol=0)


def test_states_are_those_of_transformers_and_id_n_is_before_the_final_norm(case: Case) -> None:
    ids = random_ids(40, 1)
    case.target.capture([*range(NUM_LAYERS + 1), FINAL_NORMED])
    states = case.target.prefill(ids, prefix=case.target.prefill(ids[:PREFIX_TOKENS])).aux
    theirs = [state[0] for state in whole_pass(case.model, ids.tolist(), output_hidden_states=True).hidden_states]
    assert len(theirs) == NUM_LAYERS + 1
    for index in range(NUM_LAYERS):
        close(states[index], theirs[index])
    assert float((states[NUM_LAYERS] - theirs[NUM_LAYERS]).abs().max()) > 0.1
    close(getattr(case.target.decoder, case.family.final_norm)(states[NUM_LAYERS]), theirs[NUM_LAYERS])
    close(states[FINAL_NORMED], theirs[NUM_LAYERS])


def test_a_batch_behind_a_shared_prefix_is_cacheless_greedy_decoding(case: Case) -> None:
    assert case.target.max_padded_tokens == case.family.max_padded_tokens
    lengths = (26, 26, 26) if case.family.has_tight_window else (20, 31, 26)
    prompts = [random_ids(n, seed) for seed, n in enumerate(lengths)]
    for prompt in prompts:
        prompt[:PREFIX_TOKENS] = prompts[0][:PREFIX_TOKENS]
    case.target.capture(AUX_LAYER_IDS)
    traces = write(
        case.target,
        prompts,
        ["a", "b", "c"],
        max_new_tokens=20,
        num_continuation_tokens=4,
        sampler=Sampler(),
        prefix=case.target.prefill(prompts[0][:PREFIX_TOKENS]),
    )
    num_ties = 0
    for prompt, trace in zip(prompts, traces, strict=True):
        text = trace.token_ids.tolist()
        assert text[: len(prompt)] == prompt.tolist()
        assert (trace.num_response_tokens, len(text)) == (20, len(prompt) + 24)
        num_ties += assert_is_greedy(case.model, prompt.tolist(), text[len(prompt) :])
        close(trace.logits[:], plain_logits(case.model, text)[len(prompt) - 1 : -1])
        case.target.capture(AUX_LAYER_IDS)
        whole = case.target.prefill(trace.token_ids.numpy()).aux
        for index in AUX_LAYER_IDS:
            close(trace.aux[index], whole[index][: len(trace.aux[index])])
            assert len(trace.aux[index]) >= len(text) - 1
    assert num_ties <= 1
    if case.family.has_tight_window:
        with pytest.raises(InputError, match="padding"):
            write(
                case.target,
                [prompts[0], prompts[1][:-1]],
                ["a", "b"],
                max_new_tokens=2,
                num_continuation_tokens=0,
                sampler=Sampler(),
            )


def test_a_finished_text_is_read_as_one_pass_would(case: Case) -> None:
    ids = random_ids(41, 3)
    case.target.capture(AUX_LAYER_IDS)
    trace = case.target.read(ids, 23, prefix=case.target.prefill(ids[:PREFIX_TOKENS]))
    assert (trace.num_prompt_tokens, trace.num_response_tokens, trace.is_forced) == (23, 18, True)
    close(trace.logits[:], plain_logits(case.model, ids.tolist())[22:-1])
    whole = case.target.prefill(ids).aux
    for index in AUX_LAYER_IDS:
        close(trace.aux[index], whole[index])


def test_rejected_drafts_leave_the_cache_without_a_trace(case: Case) -> None:
    """As many as fill a window and more, at a length where the window is full."""
    text, rejected = random_ids(20, 4), random_ids(WINDOW + 2, 5)
    cache = case.target.prefill(text).fork()
    case.target.forward(torch.tensor(rejected[None]).long(), cache)
    cache.crop(-len(rejected))
    logits, _ = case.target.forward(torch.tensor([[5, 6]]), cache, num_logits=2)
    close(logits[0], plain_logits(case.model, [*text.tolist(), 5, 6])[-2:])


@pytest.fixture(scope="module")
def models(case: Case) -> Models:
    case.target.capture(AUX_LAYER_IDS)
    spec, tensors = drafter_for(case.model, aux_layer_ids=AUX_LAYER_IDS, has_fc_norm=True)
    return Models(case.target, (LoadedDrafter(name="d", spec=spec, model=Eagle3.load(spec, tensors)),))


def test_live_is_lossless_and_replays_walk_is_its_rounds(case: Case, models: Models) -> None:
    depth = WINDOW + 1 if case.family.has_tight_window else 4  # a round longer than the window
    case.target.capture(AUX_LAYER_IDS)
    job = {
        "target": "tiny",
        "drafters": {"d": "tiny"},
        "prompts": [
            PromptInput(prompt_id=str(i), messages=({"role": "user", "content": turn},)) for i, turn in enumerate(TURNS)
        ],
        "system_prompts": [SystemPrompt(name="short", text="Be brief.")],
        "context_tokens": (30,),
        "documents": [DOCUMENT],
        "depth": depth,
        "max_new_tokens": 24,
        "target_attention": case.family.has_watched_attention,
    }
    replayed: list[Record] = []
    looped: list[Record] = []
    measure_conditions(Job(**job, engine="replay"), models, replayed.append)  # type: ignore[arg-type]
    check = measure_conditions(Job(**job, engine="live"), models, looped.append)  # type: ignore[arg-type]
    assert check.num_texts == check.num_identical == 3
    texts = [r for r in replayed if isinstance(r, PromptRecord)]
    for text in texts:
        ids = text.token_ids.tolist()
        assert_is_greedy(case.model, ids[: text.num_prompt_tokens], ids[text.num_prompt_tokens :])
        count = np.bincount(text.region, minlength=len(TEXT_REGIONS))
        assert count[TEXT_REGIONS.index("response")] == 24 + depth
        for region in ("template", "system", "context", "user"):
            assert count[TEXT_REGIONS.index(region)] > 0
        assert count[TEXT_REGIONS.index("unknown")] == 0

    rounds = {r.prompt_id: r for r in looped if isinstance(r, RoundBatch)}
    accepted: list[int] = []
    for batch in (r for r in replayed if isinstance(r, RoundBatch)):
        live = rounds[batch.prompt_id]
        walk = batch.on_walk
        assert batch.start[walk].tolist() == live.start.tolist()
        for column in ("accepted_drafts", "draft_token", "target_token", "rejection_reason"):
            np.testing.assert_array_equal(getattr(batch, column)[walk], getattr(live, column), err_msg=column)
        assert 1 + int((live.accepted_drafts + 1).sum()) - live.num_trimmed_tokens == 24
        for region in REGIONS:
            np.testing.assert_allclose(live.mass[region], batch.mass[region][walk], atol=1e-4, err_msg=region)
        np.testing.assert_allclose(sum(batch.mass.values()), 1.0, atol=1e-4)
        assert batch.mass["context"].max() > 0.05
        if case.family.has_watched_attention:
            first = batch.target_divergence[:, 0]
            assert np.isnan(first[:, 0]).all()  # id 0: no layer made it
            assert np.isfinite(first[:, 1:3]).all()
            assert first[:, 1:3].max() > 0.01
            assert np.nanmax(batch.target_divergence) <= 1
        accepted += live.accepted_drafts.tolist()
    assert len(rounds) == 3
    assert min(accepted) == 0
    assert max(accepted) >= 1


def test_the_targets_masses_are_those_of_its_own_attention(case: Case) -> None:
    if not case.family.has_watched_attention:
        pytest.skip("no attention interface")
    ids, num_prompt = random_ids(31, 6), 20
    region = np.random.default_rng(0).integers(0, 5, 31).astype(np.uint8)
    region[num_prompt:] = TEXT_REGIONS.index("response")
    masses = target_masses(case.target, case.target.read(ids, num_prompt), region, sink_slots=2)
    implementation = case.target.config._attn_implementation
    case.model.set_attn_implementation("eager")
    attentions = whole_pass(case.model, ids.tolist(), output_attentions=True).attentions
    case.model.set_attn_implementation(implementation)
    weights = [weight[0].float().mean(dim=0) for weight in attentions]  # [position, slot]
    assert set(masses.by_layer) == set(range(NUM_LAYERS)) == set(range(len(weights)))
    is_slot_of = np.array([[name == TEXT_REGIONS[r] for name in COMPARED_REGIONS] for r in region])
    is_slot_of[:2] = [name == "sink" for name in COMPARED_REGIONS]
    is_full = []
    for index, weight in enumerate(weights):
        expected = weight[num_prompt - 1 : -1] @ torch.tensor(is_slot_of, dtype=torch.float32)
        expected[:, COMPARED_REGIONS.index("learned_sink")] = 1 - weight[num_prompt - 1 : -1].sum(dim=-1)
        torch.testing.assert_close(masses.by_layer[index], expected, atol=2e-5, rtol=0)
        torch.testing.assert_close(masses.by_layer[index].sum(dim=-1), torch.ones(31 - num_prompt), atol=1e-4, rtol=0)
        is_full.append(bool(weight[-1, : -WINDOW - 1].sum() > 0))  # this layer looks behind the window
    if case.family.name == "mistral, wide window":
        assert masses.full_mean is None  # here all is inside of it
    elif any(is_full):
        expected_mean = torch.stack([masses.by_layer[i] for i in range(NUM_LAYERS) if is_full[i]]).mean(dim=0)
        torch.testing.assert_close(masses.full_mean, expected_mean)
    else:
        assert masses.full_mean is None


def test_soft_capped_attention_is_not_left_to_a_kernel_without_caps(tmp_path: Path) -> None:
    """Only eager attention applies Gemma 2's cap everywhere; older transformers' SDPA leaves it out and says nothing."""
    family = next(f for f in FAMILIES if f.name == "gemma2")
    family.build(tmp_path)
    target = Target.load(tmp_path)
    ids = random_ids(30, 7).tolist()
    capped = plain_logits(target.model, ids)
    for layer in target.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert float((plain_logits(target.model, ids) - capped).abs().max()) > 0.01  # here the cap matters
    eager = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    close(plain_logits(eager.eval(), ids), capped)


REFUSED = {
    "MambaConfig": "mamba",
    "Mamba2Config": "mamba2",
    "JambaConfig": "jamba",
    "FalconH1Config": "falcon_h1",
    "BambaConfig": "bamba",
    "GraniteMoeHybridConfig": "granitemoehybrid",
    "RecurrentGemmaConfig": "recurrent_gemma",
    "Lfm2Config": "lfm2",
    "Qwen3NextConfig": "qwen3_next",
    "Qwen3_5TextConfig": "qwen3_5_text",
    "MiniMaxConfig": "minimax",
    "NemotronHConfig": "nemotron_h",
    "RwkvConfig": "rwkv",
    "DeepseekV4Config": "deepseek_v4",
    "BertConfig": "bert",
}


@pytest.mark.parametrize(("config_class", "family"), REFUSED.items(), ids=REFUSED.values())
def test_families_whose_tokens_cannot_be_taken_back_are_refused_by_name(config_class: str, family: str) -> None:
    if not hasattr(transformers, config_class):
        pytest.skip(f"transformers {transformers.__version__} has no {config_class}")
    with torch.device("meta"):  # the config's own sizes, no weights
        config = getattr(transformers, config_class)(**({"full_attn_idxs": [2, 5]} if family == "lfm2" else {}))
        model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(InputError, match=f"the family {family} cannot be measured") as caught:
        Target(model, tokenizer=None)
    assert caught.value.code == "unsupported_target"
    assert caught.value.remedy


def test_layers_that_pass_on_several_streams_are_refused_when_a_state_is_asked_for(tmp_path: Path) -> None:
    SEVERAL_STREAMS.build(tmp_path)
    target = Target.load(tmp_path, aux_layer_ids=[2])
    with pytest.raises(InputError, match="the family gemma3n_text cannot be measured") as caught:
        target.prefill(random_ids(9, 8))
    assert "one state each" in caught.value.message


def test_a_config_that_transformers_chokes_on_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": "four", "vocab_size": []}')
    with pytest.raises(CheckpointError, match="transformers cannot"):
        Target.load(tmp_path)
