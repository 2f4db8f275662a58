"""The drafter's forward pass against vLLM's own module, inside a running engine: every slot of every round and depth.

Both get the same inputs: vLLM's captured target states (which must equal the project's) for the fusion, and for the
decoder the token ids, positions and states that vLLM gave its module, in the order in which it gave them. So also slots
that vLLM drafts into and later overwrites, and the rejected ones that it carries along, must agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from probes.checkpoint.read import read_spec
from probes.checkpoint.tensors import load_tensors
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.target.model import Target
from probes.target.source import target_config
from tests.vllm import vllm_engine
from tests.vllm.tiny_pair import TARGET_LAYERS, VOCAB, write_drafter, write_target

DEPTH, NUM_PROMPT_TOKENS, NUM_NEW_TOKENS = 5, 24, 12
TOLERANCE = 1e-4  # of the largest |reference| value, float32


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    config: dict[str, object] = field(default_factory=dict)  # keys of config.json
    flags: dict[str, object] = field(default_factory=dict)  # what the spec must say, so that no case tests another
    has_own_embedding: bool = False


CASES = [
    Case(name="eagle3", flags={"kind": "eagle3", "has_fc_norm": False, "norm_output": False}),
    Case(
        name="eagle3.1",
        config={"fc_norm": True, "norm_output": True},
        flags={"kind": "eagle3.1", "has_fc_norm": True, "norm_output": True},
    ),
    Case(
        name="norm_before_fc",
        config={"eagle_config": {"norm_before_fc": True}},
        flags={"norm_before_fc": True, "has_fc_norm": False, "norm_output": False},
    ),
    Case(
        name="norm_before_residual",
        config={"norm_before_residual": True},
        flags={"norm_before_residual": True, "norm_output": False},
    ),
    Case(
        name="norm_before_residual_and_norm_output",
        config={"norm_before_residual": True, "norm_output": True, "fc_norm": True},
        flags={"norm_before_residual": True, "norm_output": True, "has_fc_norm": True},
    ),
    Case(
        name="both_fusion_norms_four_states",
        config={
            "norm_before_fc": True,
            "fc_norm": True,
            "eagle_aux_hidden_state_layer_ids": [0, 3, 6, TARGET_LAYERS],
            "num_aux_hidden_states": 4,  # vLLM does not count a top-level list
        },
        flags={"norm_before_fc": True, "has_fc_norm": True, "aux_layer_ids": (0, 3, 6, TARGET_LAYERS)},
    ),
    Case(
        name="two_layers_gqa_4_yarn",
        config={
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        },
        flags={"num_layers": 2, "num_heads": 8, "num_kv_heads": 2},
    ),
    Case(
        name="final_state_without_fc",
        config={"eagle_config": {"use_aux_hidden_state": False}, "norm_output": True},
        flags={"use_aux_hidden_state": False, "has_fc": False, "has_hidden_norm": True},
    ),
    Case(
        name="attention_bias",
        config={"attention_bias": True},
        flags={"attention_bias": True, "has_o_proj_bias": True},
    ),
    Case(
        name="window_llama3_rope_own_embedding",
        config={
            "layer_types": ["sliding_attention"],
            "sliding_window": 6,
            "rope_theta": 500.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        flags={"sliding_window": (6,), "has_own_embedding": True},
        has_own_embedding=True,
    ),
]


def load_drafter(folder: Path, target: Path) -> Drafter:
    spec = read_spec(str(folder), target_config=target_config(target))
    embedding = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    return Eagle3.load(spec, load_tensors(str(folder), spec), target_embedding=embedding)


def target_states(target: Path, drafter: Drafter, token_ids: list[int]) -> Tensor:
    """The project's own capture, [token, fused]."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    capture = Target(model, tokenizer=None, aux_layer_ids=drafter.spec.aux_layer_ids)
    return drafter.features(capture.prefill(np.asarray(token_ids)).aux, slice(0, len(token_ids)))


class DrafterSlots:
    """The project's drafter with a plain key/value store by slot, attended with a full softmax.

    Mirrors what an engine's cache holds: a slot written again is overwritten, a query sees slots 0..its own.
    """

    def __init__(self, drafter: Drafter, num_slots: int) -> None:
        spec = drafter.spec
        self.drafter = drafter
        self.keys = torch.zeros(spec.num_layers, num_slots, spec.num_heads, spec.head_dim)
        self.values = torch.zeros_like(self.keys)

    def forward(self, token_ids: Tensor, positions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """-> (logits [slot, draft_vocab], feedback [slot, hidden])."""
        spec = self.drafter.spec
        group = spec.num_heads // spec.num_kv_heads
        embeds, rotation = self.drafter.embed_tokens(token_ids), self.drafter.rotation(positions)
        stream = hidden
        for i, layer in enumerate(self.drafter.layers):
            made = layer.project(embeds, stream, rotation)
            self.keys[i, positions] = made.k.repeat_interleave(group, dim=1)
            self.values[i, positions] = made.v.repeat_interleave(group, dim=1)
            scores = torch.einsum("qhd,khd->hqk", made.q, self.keys[i]) / math.sqrt(spec.head_dim)
            distance = positions[:, None] - torch.arange(self.keys.shape[1])  # [query, slot]
            window = spec.sliding_window[i]
            is_visible = (distance >= 0) & (distance < (window or math.inf))
            attended = torch.einsum(
                "hqk,khd->qhd", scores.masked_fill(~is_visible, -math.inf).softmax(-1), self.values[i]
            )
            stream = layer.finish(attended.flatten(1), made.residual)
        return self.drafter.predict(stream)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("pair") / "target")


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    assert ours.shape == theirs.shape, what
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error <= TOLERANCE, f"{what}: relative error {error:.1e}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@torch.inference_mode()
def test_forward_pass_equals_vllms(case: Case, target: Path, tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "drafter", has_own_embedding=case.has_own_embedding, **case.config)
    drafter = load_drafter(folder, target)
    for name, value in case.flags.items():
        assert getattr(drafter.spec, name) == value, f"the checkpoint reader got {name} wrong"

    prompt = torch.randint(3, VOCAB, (NUM_PROMPT_TOKENS,), generator=torch.Generator().manual_seed(2)).tolist()
    num_slots = NUM_PROMPT_TOKENS + NUM_NEW_TOKENS + 2 * DEPTH
    with (
        vllm_engine.engine(
            target, folder, depth=DEPTH, max_model_len=num_slots, max_num_batched_tokens=64, skip_tokenizer_init=True
        ) as llm,
        vllm_engine.recorded(llm) as proposals,
    ):
        [generated] = vllm_engine.generate(llm, [prompt], max_tokens=NUM_NEW_TOKENS, ignore_eos=True)

    assert len(generated.token_ids) == NUM_NEW_TOKENS
    assert len(proposals) >= len(generated.accepted_drafts) >= 2
    captured = target_states(target, drafter, prompt)
    assert_close(captured, proposals[0].aux, f"target states at the boundaries {drafter.spec.aux_layer_ids}")
    slots, draft_ids = DrafterSlots(drafter, num_slots), drafter.target_ids()
    outside = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, draft_ids, False)
    for r, proposal in enumerate(proposals):
        assert_close(drafter.true_state(proposal.aux), proposal.fused, f"round {r}, fused states")
        assert len(proposal.calls) == DEPTH
        for k, call in enumerate(proposal.calls, start=1):
            where = f"round {r}, depth {k}"
            logits, feedback = slots.forward(call.token_ids, call.positions, call.hidden)
            assert_close(feedback, call.feedback, f"{where}, feedback state")
            assert_close(logits, call.logits[:, draft_ids], f"{where}, logits")
            assert torch.isneginf(call.logits[:, outside]).all(), f"{where}: a token outside the draft vocabulary"
