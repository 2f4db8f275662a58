"""Decoder layers by what files show of them: a row for each family that is read, and the kinds of drafter that are not.

A new family is a row of FAMILIES, and its layer with a row of `probes.drafter.layers`. Knows no producer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from probes.checkpoint.spec import DrafterSpec

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class LayerFamily:
    shapes: Callable[[DrafterSpec, int], Shapes]  # (spec, features that q, k and v read) -> a layer's tensors
    marks: tuple[str, ...] = ()  # parts of a tensor's name that only this family's layers have
    classes: tuple[str, ...]  # vLLM's architectures with such layers


def _llama(spec: DrafterSpec, num_read: int) -> Shapes:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, num_read),
        "self_attn.k_proj.weight": (kv_size, num_read),
        "self_attn.v_proj.weight": (kv_size, num_read),
        "self_attn.o_proj.weight": (hidden, q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if spec.attention_bias:
        shapes |= {f"self_attn.{x}_proj.bias": (size,) for x, size in (("q", q_size), ("k", kv_size), ("v", kv_size))}
    if spec.has_o_proj_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    return shapes


def _qwen3(spec: DrafterSpec, num_read: int) -> Shapes:
    """Llama's, and a norm over each head of q and k."""
    return _llama(spec, num_read) | {f"self_attn.{x}_norm.weight": (spec.head_dim,) for x in ("q", "k")}


DEFAULT_FAMILY = "llama"
FAMILIES: dict[str, LayerFamily] = {
    DEFAULT_FAMILY: LayerFamily(
        shapes=_llama,
        classes=(
            *("Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3MiniMaxM2ForCausalLM"),
            *("Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM"),
        ),
    ),
    "qwen3": LayerFamily(
        shapes=_qwen3, marks=(".self_attn.q_norm.", ".self_attn.k_norm."), classes=("Eagle3Qwen3ForCausalLM",)
    ),
}
"""By `DrafterSpec.family`, which is also the `model_type` of speculators' transformer_layer_config."""

FAMILY_OF_CLASS = {name: family for family, row in FAMILIES.items() for name in row.classes}


@dataclass(frozen=True, kw_only=True)
class RefusedKind:
    """A kind of drafter that is recognised and not read; delete its row when a family or an algorithm reads it."""

    what: str  # with an article
    marks: tuple[str, ...] = ()  # parts of a tensor's name that no drafter read here has
    claims: Callable[[Mapping[str, object], frozenset[str], str], bool] = lambda config, names, architecture: False

    def is_it(self, config: Mapping[str, object], names: frozenset[str], architecture: str) -> bool:
        return any(mark in name for name in names for mark in self.marks) or self.claims(config, names, architecture)


REFUSED = (
    RefusedKind(
        what="a P-EAGLE / parallel-drafting head (all drafts in one forward, no feedback)",
        marks=("mask_hidden",),
        claims=lambda c, n, a: (
            c.get("speculators_model_type") == "peagle"
            or a.lower().startswith("peagle")
            or any(key in c for key in ("pard_token", "ptd_token_id"))
            or c.get("parallel_drafting") is True
        ),
    ),
    RefusedKind(
        what="a DFlash / DSpark block-drafting head",
        claims=lambda c, n, a: c.get("speculators_model_type") in ("dflash", "dspark") or "dflash" in a.lower(),
    ),
    RefusedKind(
        what="an MLA (DeepSeek / Kimi type) EAGLE-3 drafter",
        marks=("kv_a_proj_with_mqa", "kv_b_proj"),
        claims=lambda c, n, a: "deepseek" in a.lower(),
    ),
    RefusedKind(what="a mixture-of-experts EAGLE-3 drafter", marks=("mlp.experts.",)),
    RefusedKind(
        what="Medusa heads",
        marks=("medusa_",),
        claims=lambda c, n, a: any("medusa" in name for name in n) or "Medusa" in a,
    ),
    RefusedKind(
        what="an MTP head", marks=("eh_proj",), claims=lambda c, n, a: c.get("speculators_model_type") == "mtp"
    ),
    RefusedKind(
        what="an EAGLE-1 / EAGLE-2 drafter (last-layer features, no fused layers)",
        claims=lambda c, n, a: (
            c.get("speculators_model_type") == "eagle"
            or a in ("LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "LlamaEagleDraftModel")
            or (
                {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= {name.removeprefix("model.") for name in n}
                and not any("hidden_norm." in name for name in n)
                and "d2t" not in n
            )
        ),
    ),
    RefusedKind(
        what="a whole language model, not a drafter",
        claims=lambda c, n, a: (
            "fc.weight" not in n and any(re.match(r"(model\.)?(.*\.)?layers\.1\.", name) for name in n)
        ),
    ),
)
"""The first that is it names a checkpoint that no producer claims."""

UNREAD_PARTS = tuple(mark for kind in REFUSED for mark in kind.marks)
