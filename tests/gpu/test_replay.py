"""Replay on a CUDA device: the host waits for no depth, blocks and chunks change nothing, the demo pair as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from probes.attention import chunk
from probes.attention.slots import slot_regions
from probes.chain import replay as replay_module
from probes.chain.replay import draft_chains, replay, starts_of
from probes.chain.rounds import measure_rounds
from probes.chain.step import prefill
from probes.checkpoint.read import read_spec
from probes.checkpoint.tensors import load_tensors
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.errors import CheckpointError, InputError
from probes.record import TEXT_REGIONS, PromptRecord
from probes.target import model as target_module
from probes.target.demo import demo_target_path
from probes.target.model import Target
from probes.target.trace import TargetTrace
from tests.same_rounds import assert_same_rounds
from tests.tiny_models import matched_drafter, random_tensors, tiny_spec, tiny_target

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

TOKENIZER = SimpleNamespace(eos_token_id=None)
DEPTH = 5


def prompt_of(trace: TargetTrace) -> PromptRecord:
    region = np.random.default_rng(0).integers(0, len(TEXT_REGIONS), len(trace.token_ids)).astype(np.uint8)
    return PromptRecord(
        prompt_id="p",
        system_prompt="none",
        template="raw",
        context_tokens=0,
        token_ids=trace.token_ids.cpu().numpy().astype(np.int32),
        region=region,
        num_prompt_tokens=trace.num_prompt_tokens,
        num_response_tokens=trace.num_response_tokens,
        num_continuation_tokens=0,
        finish_reason="forced",
    )


def tiny_pair(**flags: object) -> tuple[Target, Drafter]:
    model = tiny_target(seed=0)
    spec, tensors = matched_drafter(model, seed=0, **flags)
    return Target(model.to("cuda"), TOKENIZER, aux_layer_ids=spec.aux_layer_ids), Eagle3.load(
        spec, tensors, device="cuda"
    )


@pytest.fixture
def no_waiting() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("is_forced", [True, False])
@pytest.mark.parametrize("flags", [{}, {"num_layers": 2, "sliding_window": 9, "has_fc_norm": True}])
def test_the_host_waits_for_no_depth(flags: dict[str, object], is_forced: bool, no_waiting: None) -> None:
    target, drafter = tiny_pair(**flags)
    trace = target.read(np.arange(90) % 150, 20)
    trace = TargetTrace(**{f.name: getattr(trace, f.name) for f in fields(trace)} | {"is_forced": is_forced})
    first, last = starts_of(trace)
    cache = prefill(drafter, trace.token_ids, trace.aux)
    regions = slot_regions(prompt_of(trace).region[: cache.num_slots], sink_slots=1, device=trace.token_ids.device)
    starts = torch.arange(first, last + 1, device="cuda")

    def block() -> dict[str, torch.Tensor]:
        drafts, fresh = draft_chains(drafter, trace, cache, regions, (first, last), DEPTH)
        return measure_rounds(drafter, trace, starts, (first, last), drafts, fresh)

    expected = block()  # compiles, and computes the trace's own choices
    torch.cuda.set_sync_debug_mode("error")
    found = block()
    torch.cuda.set_sync_debug_mode("default")
    assert found["draft_token"].tolist() == expected["draft_token"].tolist()


@pytest.mark.parametrize("block", [7, 32])
def test_blocks_of_starts_change_nothing(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    target, drafter = tiny_pair(num_layers=2, sliding_window=(None, 30))
    trace = target.read(np.arange(150) % 150, 20)
    whole = replay(drafter, trace, prompt_of(trace), name="d", depth=DEPTH)
    monkeypatch.setattr(replay_module, "MIN_BLOCK_STARTS", 1)
    monkeypatch.setattr(replay_module, "MAX_BLOCK_STARTS", block)
    in_blocks = replay(drafter, trace, prompt_of(trace), name="d", depth=DEPTH)
    assert_same_rounds(in_blocks, whole, atol=2e-5, mass_atol=2e-5)


def test_a_record_keeps_its_memory() -> None:
    """Pinned memory is handed out again, but not while a record stands in it."""
    target, drafter = tiny_pair()
    traces = [target.read(np.random.default_rng(seed).integers(0, 150, 90), 20) for seed in range(3)]
    records = [replay(drafter, trace, prompt_of(trace), name="d", depth=DEPTH) for trace in traces]
    kept = [record.mass["own"].copy() for record in records]
    for trace in traces:
        replay(drafter, trace, prompt_of(trace), name="d", depth=DEPTH)
    for record, copy in zip(records, kept, strict=True):
        np.testing.assert_array_equal(record.mass["own"], copy)
    assert not np.array_equal(kept[0], kept[1])


@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [(torch.float32, 64), (torch.bfloat16, 64), (torch.bfloat16, 128), (torch.bfloat16, 80), (torch.float16, 128)],
)
def test_reading_in_chunks_equals_one_pass(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int) -> None:
    """Whole chunks by cuDNN where it runs, the slots before them in two pieces or one, and a last one that is shorter."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=head_dim, max_position_embeddings=4096, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).to("cuda", dtype)
    target = Target(model, TOKENIZER, aux_layer_ids=(1, 3))
    text = np.random.default_rng(0).integers(0, 500, 1500)
    monkeypatch.setattr(target_module, "CUDA_PREFILL_CHUNK_TOKENS", 333)
    monkeypatch.setattr(chunk, "PIECE_SLOTS", 500)
    monkeypatch.setattr(chunk, "_agrees", {})
    trace = target.read(text, 400)
    with torch.no_grad():
        out = model(torch.as_tensor(text, device="cuda")[None], output_hidden_states=True)
    tolerance = 1e-4 if dtype == torch.float32 else 4e-2
    largest = float(out.logits.abs().max())
    torch.testing.assert_close(trace.logits[:], out.logits[0, 399:-1], atol=tolerance * largest, rtol=0)
    states = out.hidden_states[1][0]
    torch.testing.assert_close(trace.aux[1], states, atol=tolerance * float(states.abs().max()), rtol=0)
    if torch.cuda.get_device_capability()[0] == 9:  # where cuDNN is known to run
        assert list(chunk._agrees.values()) == ([] if dtype == torch.float32 else [True])


def test_bfloat16_masses_sum_to_one_over_a_long_text() -> None:
    """64 slots of other regions, thousands of queries, the real block size: what the self-check asks for."""
    spec = tiny_spec(hidden_size=256, num_heads=4, num_kv_heads=2, head_dim=64, max_position_embeddings=8192)
    drafter = Eagle3.load(spec, random_tensors(spec, 0), dtype=torch.bfloat16, device="cuda")
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(spec.vocab_size, (6000,), generator=generator)
    trace = TargetTrace(
        token_ids=token_ids.cuda(),
        num_prompt_tokens=900,
        num_response_tokens=5100,
        finish_reason="forced",
        aux={i: torch.randn(6000, spec.target_hidden_size, generator=generator).cuda().bfloat16() for i in (1, 2, 3)},
        logits=torch.randn(5100, spec.vocab_size, generator=generator).cuda(),
        is_forced=True,
    )
    batch = replay(drafter, trace, prompt_of(trace), name="d", depth=7)
    assert len(batch.start) == 5099
    np.testing.assert_allclose(sum(batch.mass.values()), 1.0, atol=1e-3)


def demo_target(is_real: bool, device: str) -> Target:
    """The built-in target, or one of its shape with random weights."""
    if not is_real:
        torch.manual_seed(0)
        shape = LlamaConfig(
            vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, max_position_embeddings=8192, rope_theta=100000.0, tie_word_embeddings=True,
        )  # fmt: skip
        return Target(LlamaForCausalLM(shape).to(device), TOKENIZER)
    try:
        return Target.load(demo_target_path(), device=device)
    except (CheckpointError, InputError):
        pytest.skip("the demo target is not installed")


@pytest.mark.parametrize("is_real", [True, False], ids=["demo target", "random weights"])
def test_the_demo_pair_measures_what_the_cpu_measures(is_real: bool) -> None:
    """float32, the two drafters that come with driftscope: every column of every start."""
    batches = []
    for device in ("cpu", "cuda"):
        target = demo_target(is_real, device)
        if is_real:
            words = "The tram leaves the harbour at nine and comes back at noon. " * 20
            text = np.asarray(target.tokenizer(words)["input_ids"])
        else:
            text = np.random.default_rng(0).integers(0, 49152, 260)
        for name in ("eagle3", "eagle3.1"):
            folder = f"driftscope/_demo_drafters/{name}"
            spec = read_spec(folder, target_config=target.config.to_dict())
            target.capture(spec.aux_layer_ids)
            drafter = Eagle3.load(
                spec,
                load_tensors(folder, spec, device=device),
                target_embedding=None if spec.has_own_embedding else target.embedding,
                target_lm_head=None if spec.has_own_lm_head else target.lm_head,
                device=device,
            )
            trace = target.read(text, 60)
            batches.append(replay(drafter, trace, prompt_of(trace), name=name, depth=7))
    for on_cpu, on_gpu in zip(batches[:2], batches[2:], strict=True):
        assert on_cpu.num_ties == 0
        assert len(on_gpu.start) > 100
        if is_real:
            assert on_gpu.accepted_drafts.sum() > 0
        assert_same_rounds(on_gpu, on_cpu, atol=2e-4, mass_atol=2e-4)
