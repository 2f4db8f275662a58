"""The oracle against an independent implementation: transformers' own layers, cache, masks and rope.

A drafter is a Llama (Mistral for windows, Qwen3) whose first layer's input norm also brings in the embedding. That model is
decoded with a real KV cache, one slot at a time; the oracle has none.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig, LlamaModel, MistralConfig, MistralModel, Qwen3Config, Qwen3Model

from probes.checkpoint.spec import DrafterSpec
from tests.reference_decoder import ReferenceDecoder, to_target_id
from tests.tiny_models import random_tensors, random_text, tiny_spec

ROPE_TOLERANCE = 1e-5  # transformers computes cos and sin in float32
NUM_TOKENS, START, DEPTH = 30, 12, 5


class PairNorm(nn.Module):
    """In place of layer 0's input norm: [input_layernorm(embedding), hidden_norm(state)]."""

    def __init__(self, norm_embedding: nn.Module, norm_hidden: nn.Module) -> None:
        super().__init__()
        self.norm_embedding, self.norm_hidden, self.embedding = norm_embedding, norm_hidden, torch.zeros(0)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.cat([self.norm_embedding(self.embedding), self.norm_hidden(hidden)], dim=-1)


class TransformersDrafter:
    """A drafter made of transformers' decoder layers, with a KV cache."""

    def __init__(self, spec: DrafterSpec, tensors: dict[str, Tensor]) -> None:
        self.spec, self.tensors = spec, tensors
        config: dict[str, Any] = {
            "vocab_size": spec.vocab_size,
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.intermediate_size,
            "num_hidden_layers": spec.num_layers,
            "num_attention_heads": spec.num_heads,
            "num_key_value_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "rms_norm_eps": spec.rms_norm_eps,
            "max_position_embeddings": spec.max_position_embeddings,
            "rope_parameters": dict(spec.rope_parameters),
            "attn_implementation": "eager",
        }
        window = spec.sliding_window[0]
        if spec.family == "qwen3":
            windows = {"use_sliding_window": window is not None, "sliding_window": window, "max_window_layers": 0}
            self.model = Qwen3Model(Qwen3Config(**config, **windows)).double().eval()
        elif window is None:
            self.model = LlamaModel(LlamaConfig(**config, attention_bias=spec.attention_bias)).double().eval()
        else:
            self.model = MistralModel(MistralConfig(**config, sliding_window=window)).double().eval()
        first = self.model.layers[0]
        self.hidden_norm = type(first.input_layernorm)(spec.hidden_size, spec.rms_norm_eps).double()
        is_normed_inside = spec.has_hidden_norm and not spec.norm_before_residual
        for name in ("q_proj", "k_proj", "v_proj"):
            size = getattr(first.self_attn, name).out_features
            setattr(first.self_attn, name, nn.Linear(2 * spec.hidden_size, size, spec.attention_bias).double())
        named = {
            n: t
            for n, t in tensors.items()
            if n.startswith(("layers.", "norm.", "embed_tokens.")) and "hidden_norm" not in n
        }
        self.model.load_state_dict(named, strict=True)
        if spec.has_hidden_norm:
            self.hidden_norm.weight.data = tensors["layers.0.hidden_norm.weight"]
        first.input_layernorm = PairNorm(first.input_layernorm, self.hidden_norm if is_normed_inside else nn.Identity())
        self.model.norm.register_forward_pre_hook(lambda _module, args: setattr(self, "stream", args[0]))
        self.cache = DynamicCache(config=self.model.config)

    @torch.no_grad()
    def read(self, token_ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The next slots -> (feedback [slot, hidden], logits [slot, draft_vocab], per layer [head, query, key])."""
        self.model.layers[0].input_layernorm.embedding = self.tensors["embed_tokens.weight"][token_ids][None]
        if self.spec.norm_before_residual and self.spec.has_hidden_norm:
            features = self.hidden_norm(features)
        out = self.model(
            inputs_embeds=features[None], past_key_values=self.cache, use_cache=True, output_attentions=True
        )
        normed = out.last_hidden_state[0]
        logits = normed @ self.tensors["lm_head.weight"].T * self.spec.logit_scale
        return normed if self.spec.norm_output else self.stream[0], logits, [a[0] for a in out.attentions]


CASES = {
    "eagle3": {},
    "eagle3.1": {"norm_output": True, "has_fc_norm": True},
    "norm_before_fc": {"norm_output": True, "norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "no aux, no hidden norm": {"use_aux_hidden_state": False, "has_hidden_norm": False},
    "biases": {"has_fc_bias": True, "attention_bias": True, "has_o_proj_bias": True},
    "llama3 rope, one kv head a head": {"rope": "llama3", "num_kv_heads": 6},
    "yarn rope, one kv head": {"rope": "yarn", "num_kv_heads": 1, "head_dim": 16},
    "linear rope, logit scale": {"rope": "linear", "logit_scale": 0.5},
    "window": {"sliding_window": 8},
    "window smaller than the chain": {"sliding_window": 3, "norm_output": True},
    "qwen3": {"family": "qwen3", "norm_output": True, "has_fc_norm": True},
    "qwen3, two layers, window, wide heads": {
        "family": "qwen3",
        "num_layers": 2,
        "sliding_window": 5,
        "head_dim": 16,
        "rope": "llama3",
    },
    "two layers": {"num_layers": 2},
    "two layers, window": {"num_layers": 2, "sliding_window": 3, "norm_before_residual": True},
}


def largest_difference(actual: Tensor, expected: Tensor) -> float:
    """Relative to the largest value."""
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("flags", CASES.values(), ids=CASES.keys())
def test_chain_equals_transformers_with_a_cache(flags: dict[str, Any]) -> None:
    spec = tiny_spec(**flags)
    tensors = random_tensors(spec, seed=3)
    token_ids, aux = random_text(spec, NUM_TOKENS, seed=4)
    oracle = ReferenceDecoder(spec, tensors, token_ids, aux)

    drafter = TransformersDrafter(spec, tensors)
    feedback, logits, attention = drafter.read(token_ids[1 : START + 2], oracle.fusion.fused[: START + 1])
    for k, step in enumerate(oracle.chain(START, DEPTH), start=1):
        assert largest_difference(feedback[-1], step.feedback) < ROPE_TOLERANCE, f"depth {k}"
        assert largest_difference(logits[-1], step.logits) < ROPE_TOLERANCE, f"depth {k}"
        for layer, probability in enumerate(attention):
            seen = probability[:, -1]  # a windowed cache holds the last slots only
            assert largest_difference(seen, step.attention[layer][:, -seen.shape[-1] :]) < ROPE_TOLERANCE, f"depth {k}"
        assert step.token == to_target_id(spec, tensors, int(logits[-1].argmax()))
        feedback, logits, attention = drafter.read(torch.tensor([step.token]), feedback[-1:])


@pytest.mark.parametrize("flags", CASES.values(), ids=CASES.keys())
def test_depth_one_is_fresh_and_later_tokens_are_not_seen(flags: dict[str, Any]) -> None:
    spec = tiny_spec(**flags)
    tensors = random_tensors(spec, seed=5)
    token_ids, aux = random_text(spec, NUM_TOKENS, seed=6)
    whole = ReferenceDecoder(spec, tensors, token_ids, aux)
    cut = ReferenceDecoder(spec, tensors, token_ids[: START + 2], aux[: START + 1])
    for step in (whole.chain(START, 1)[0], cut.fresh(START)):
        torch.testing.assert_close(step.logits, whole.fresh(START).logits, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(step.attention, whole.fresh(START).attention, rtol=1e-12, atol=1e-12)


def test_a_window_hides_what_is_w_or_more_slots_behind_the_query() -> None:
    spec = tiny_spec(sliding_window=3)
    token_ids, aux = random_text(spec, NUM_TOKENS, seed=8)
    chain = ReferenceDecoder(spec, random_tensors(spec, seed=7), token_ids, aux).chain(START, DEPTH)
    for step in chain:
        assert (step.attention[..., : step.slot - 2] == 0).all()
        assert (step.attention[..., step.slot - 2 :] > 0).all()
    assert chain[3].slot - 2 > START  # at depth 4 no true-feature slot is left


def test_chains_at_neighbouring_starts_differ_only_by_what_is_fed_back() -> None:
    """Were the fed-back state and the draft the true ones, depth 2 would be depth 1 of the next start."""
    spec = tiny_spec()
    tensors = random_tensors(spec, seed=9)
    token_ids, aux = random_text(spec, NUM_TOKENS, seed=10)
    oracle = ReferenceDecoder(spec, tensors, token_ids, aux)
    step = oracle.chain(START, 1)[0]
    token_ids[START + 2] = step.token
    oracle = ReferenceDecoder(spec, tensors, token_ids, aux)
    oracle.fusion.fused[START + 1] = step.feedback
    torch.testing.assert_close(oracle.fresh(START + 1).logits, oracle.chain(START, 2)[1].logits, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("flags", [{}, {"has_fc_bias": True, "has_fc_norm": True}, {"norm_before_fc": True}])
def test_fusion_is_the_sum_of_its_layers(flags: dict[str, Any]) -> None:
    spec = tiny_spec(**flags)
    tensors = random_tensors(spec, seed=11)
    _, aux = random_text(spec, NUM_TOKENS, seed=12)
    fusion = ReferenceDecoder(spec, tensors, torch.zeros(NUM_TOKENS), aux).fusion
    total = fusion.share.sum(-1) + (fusion.share_bias if spec.has_fc_bias else 0)
    torch.testing.assert_close(total, torch.ones(NUM_TOKENS, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    if not spec.has_fc_norm and not spec.norm_before_fc:
        torch.testing.assert_close(fusion.fused, aux @ tensors["fc.weight"].T, rtol=1e-12, atol=1e-12)
