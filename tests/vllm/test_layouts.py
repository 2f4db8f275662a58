"""Each producer's layout in a running vLLM engine: vLLM's own module on the same files computes what ours computes.

Given the same captured states, token ids, positions and fed-back states (as in `test_module_parity`): the fused state, the
feedback and the logits of every slot of every round and depth. Which layers vLLM captures is not compared here: it never
converts layer outputs to boundary ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

import numpy as np
import torch

from probes.checkpoint.read import read_spec
from tests.checkpoint_writers import Arrays, Tiny, config, weights, write_checkpoint
from tests.vllm import vllm_engine
from tests.vllm.test_module_parity import (
    DEPTH,
    NUM_NEW_TOKENS,
    NUM_PROMPT_TOKENS,
    DrafterSlots,
    assert_close,
    load_drafter,
    target,
)
from tests.vllm.tiny_pair import DRAFT_VOCAB, HEAD_DIM, HIDDEN, KV_HEADS, TARGET_LAYERS, VOCAB

__all__ = ["target"]  # the fixture

TINY = Tiny(
    hidden=HIDDEN,
    target_hidden=HIDDEN,
    inner=160,
    heads=4,
    kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    vocab=VOCAB,
    draft_vocab=DRAFT_VOCAB,
    target_layers=TARGET_LAYERS,
    own_embedding=False,
)
QWEN3 = replace(TINY, qk_norm=True)
WINDOW = {"layer_types": ["sliding_attention"], "sliding_window": 6}
GENERATION = {"dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    producer: str
    tiny: Tiny = TINY
    flags: dict[str, object] = field(default_factory=dict)
    change: dict[str, Any] = field(default_factory=dict)
    vllm_class: str = "Eagle3LlamaForCausalLM"


CASES = [
    Case(name="safeailab", producer="safeailab"),
    Case(name="torchspec", producer="torchspec"),
    Case(name="modelopt", producer="modelopt"),
    Case(name="modelopt v3", producer="modelopt", tiny=replace(TINY, norm_before_fc=True)),
    Case(name="angelslim", producer="angelslim"),
    Case(name="speculators", producer="speculators", flags={"norm_output": True}),  # norm_before_residual: the default
    Case(name="speculators qwen3", producer="speculators", tiny=QWEN3, vllm_class="Eagle3Qwen3ForCausalLM"),
    Case(
        name="qwen3, two layers, eagle3.1",
        producer="vllm",
        tiny=replace(QWEN3, num_layers=2, fc_norm=True),
        flags={"norm_output": True},
        vllm_class="Eagle3Qwen3ForCausalLM",
    ),
    Case(
        name="qwen3, biases, window",
        producer="vllm",
        tiny=replace(QWEN3, attention_bias=True),
        change=WINDOW | {"use_sliding_window": True},
        vllm_class="Eagle3Qwen3ForCausalLM",
    ),
    Case(
        name="qwen3, a window that its config class drops",
        producer="vllm",
        tiny=QWEN3,
        change=WINDOW,
        vllm_class="Eagle3Qwen3ForCausalLM",
    ),
]


def sharp_weights(tiny: Tiny) -> Arrays:
    """Gains around 1, projections that keep the states' size: a forgotten norm cannot hide."""
    arrays = {}
    for name, array in weights(tiny).items():
        if array.dtype == np.float32 and array.ndim == 2:
            array = (array * 1.5 / np.sqrt(array.shape[1])).astype(np.float32)
        elif array.dtype == np.float32 and not name.endswith("bias"):
            array = (0.5 + np.abs(array)).astype(np.float32)
        arrays[name] = array
    return arrays


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@torch.inference_mode()
def test_vllm_computes_the_same_from_every_layout(case: Case, target: Path, tmp_path: Path) -> None:
    settings = config(case.producer, case.tiny, **case.flags) | case.change | GENERATION
    if case.producer == "speculators":
        settings["transformer_layer_config"] |= {"dtype": "float32"}
        settings["speculators_config"]["verifier"]["name_or_path"] = str(target)
    folder = write_checkpoint(tmp_path / "drafter", case.producer, sharp_weights(case.tiny), settings)
    drafter = load_drafter(folder, target)
    assert drafter.spec.producer == case.producer

    prompt = torch.randint(3, VOCAB, (NUM_PROMPT_TOKENS,), generator=torch.Generator().manual_seed(2)).tolist()
    num_slots = NUM_PROMPT_TOKENS + NUM_NEW_TOKENS + 2 * DEPTH
    with (
        vllm_engine.engine(
            target, folder, depth=DEPTH, max_model_len=num_slots, max_num_batched_tokens=64, skip_tokenizer_init=True
        ) as llm,
        vllm_engine.recorded(llm) as proposals,
    ):
        module = vllm_engine.proposer(llm).model
        assert type(module).__name__ == case.vllm_class
        assert len(module.model.layers) == drafter.spec.num_layers
        vllm_engine.generate(llm, [prompt], max_tokens=NUM_NEW_TOKENS, ignore_eos=True)

    assert len(proposals) >= 2
    slots, draft_ids = DrafterSlots(drafter, num_slots), drafter.target_ids()
    for r, proposal in enumerate(proposals):
        assert_close(drafter.true_state(proposal.aux), proposal.fused, f"round {r}, fused states")
        for k, call in enumerate(proposal.calls, start=1):
            logits, feedback = slots.forward(call.token_ids, call.positions, call.hidden)
            assert_close(feedback, call.feedback, f"round {r}, depth {k}, feedback state")
            assert_close(logits, call.logits[:, draft_ids], f"round {r}, depth {k}, logits")


def test_vllm_builds_as_many_layers_as_config_json_says(target: Path, tmp_path: Path) -> None:
    """NeMo's config.json, the target's depth in it, after its own export for vLLM: seven layers have no weights, which is
    why the reader calls `num_layers_disagrees` an error."""
    settings = config("nemo", TINY) | GENERATION | {"architectures": ["LlamaForCausalLMEagle3"]}
    folder = write_checkpoint(tmp_path / "drafter", "vllm", sharp_weights(TINY), settings)  # prefix stripped
    spec = read_spec(str(folder), target_config={"num_hidden_layers": TARGET_LAYERS, "hidden_size": HIDDEN})
    assert (spec.producer, spec.num_layers) == ("nemo", 1)
    assert [f.severity for f in spec.findings if f.code == "num_layers_disagrees"] == ["error"]
    num_slots = NUM_PROMPT_TOKENS + 4 * DEPTH
    with vllm_engine.engine(
        target, folder, depth=DEPTH, max_model_len=num_slots, max_num_batched_tokens=64, skip_tokenizer_init=True
    ) as llm:
        assert len(vllm_engine.proposer(llm).model.model.layers) == TARGET_LAYERS
