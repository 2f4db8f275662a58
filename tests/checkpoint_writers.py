"""Writes one tiny drafter's random weights in each producer's layout: same tensors, different names and config.json.

The safetensors writer is our own, so that tests can break files on purpose; `tests/cpu` reads them with the library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PRODUCERS = ("safeailab", "specforge", "speculators", "torchspec", "nemo", "modelopt", "angelslim", "sglang", "vllm")
IDS = "eagle_aux_hidden_state_layer_ids"
ROPE_PARAMETERS = {"rope_type": "default", "rope_theta": 500000.0}
Arrays = dict[str, np.ndarray]
DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "bool": "BOOL", "int8": "I8"}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """Sizes of the tiny drafter. Defaults: 3 aux states of a target with 8 layers, GQA 2, a pruned vocabulary."""

    hidden: int = 16
    target_hidden: int = 16
    inner: int = 24
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 4
    vocab: int = 40
    draft_vocab: int = 12
    num_aux: int = 3
    num_layers: int = 1
    target_layers: int = 8
    fc_norm: bool = False
    norm_before_fc: bool = False
    attention_bias: bool = False
    qk_norm: bool = False  # Qwen3's layer
    own_embedding: bool = True

    @property
    def target_config(self) -> dict[str, object]:
        return {
            "num_hidden_layers": self.target_layers,
            "hidden_size": self.target_hidden,
            "vocab_size": self.vocab,
        }


def weights(tiny: Tiny, seed: int = 0) -> Arrays:
    """Random tensors under canonical names, float32; d2t as offsets, t2d as its mask."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    hidden, fused = tiny.hidden, tiny.num_aux * tiny.target_hidden
    q_size, kv_size = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    arrays: Arrays = {
        "fc.weight": normal(hidden, fused),
        "norm.weight": normal(hidden),
        "lm_head.weight": normal(tiny.draft_vocab, hidden),
    }
    if tiny.own_embedding:
        arrays["embed_tokens.weight"] = normal(tiny.vocab, hidden)
    if tiny.fc_norm:
        arrays |= {f"fc_norm.{i}.weight": normal(tiny.target_hidden) for i in range(tiny.num_aux)}
    if tiny.norm_before_fc:
        arrays["input_norm.weight"] = normal(fused)
    for i in range(tiny.num_layers):
        read = 2 * hidden if i == 0 else hidden
        layer: Arrays = {
            "input_layernorm.weight": normal(hidden),
            "post_attention_layernorm.weight": normal(hidden),
            "self_attn.q_proj.weight": normal(q_size, read),
            "self_attn.k_proj.weight": normal(kv_size, read),
            "self_attn.v_proj.weight": normal(kv_size, read),
            "self_attn.o_proj.weight": normal(hidden, q_size),
            "mlp.gate_proj.weight": normal(tiny.inner, hidden),
            "mlp.up_proj.weight": normal(tiny.inner, hidden),
            "mlp.down_proj.weight": normal(hidden, tiny.inner),
        }
        if i == 0:
            layer["hidden_norm.weight"] = normal(hidden)
        if tiny.qk_norm:
            layer |= {f"self_attn.{x}_norm.weight": normal(tiny.head_dim) for x in ("q", "k")}
        if tiny.attention_bias:
            layer |= {
                "self_attn.q_proj.bias": normal(q_size),
                "self_attn.k_proj.bias": normal(kv_size),
                "self_attn.v_proj.bias": normal(kv_size),
            }
        arrays |= {f"layers.{i}.{name}": array for name, array in layer.items()}
    if tiny.draft_vocab < tiny.vocab:
        ids = np.sort(rng.choice(tiny.vocab, tiny.draft_vocab, replace=False))
        arrays["d2t"] = (ids - np.arange(tiny.draft_vocab)).astype(np.int64)
        arrays["t2d"] = np.isin(np.arange(tiny.vocab), ids)
    return arrays


def config(producer: str, tiny: Tiny, **flags: object) -> dict[str, Any]:
    """config.json as this producer writes it. `flags`: norm_output, norm_before_residual (where the producer has them)."""
    layer: dict[str, Any] = {
        "model_type": "qwen3" if tiny.qk_norm else "llama",
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.inner,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "num_hidden_layers": tiny.num_layers,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "vocab_size": tiny.vocab,
        "max_position_embeddings": 2048,
        "attention_bias": tiny.attention_bias,
    }
    stated = {name: True for name in ("fc_norm", "norm_before_fc") if getattr(tiny, name)} | flags
    boundary = [2, tiny.target_layers // 2, tiny.target_layers - 3]
    outputs = [i - 1 for i in boundary]
    if tiny.target_hidden != tiny.hidden:
        stated["target_hidden_size"] = tiny.target_hidden
    plain = {"draft_vocab_size": tiny.draft_vocab, **layer, "rope_theta": 500000}
    nested = {IDS: outputs, "use_aux_hidden_state": True}
    if producer == "safeailab":
        return {"architectures": ["LlamaForCausalLM"], **plain, "rope_scaling": None, **stated}
    if producer == "specforge":
        return {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": nested, **plain, **stated}
    if producer == "speculators":
        return {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.5.0",
            "speculators_config": {
                "algorithm": "eagle3",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
                "verifier": {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]},
            },
            "draft_vocab_size": tiny.draft_vocab,
            IDS: boundary,
            "target_hidden_size": None,
            "transformer_layer_config": {**layer, "rope_parameters": ROPE_PARAMETERS},
            **stated,
        }
    if producer == "torchspec":
        mark = {"_torchspec_version": "0.1.0", "num_aux_hidden_states": tiny.num_aux}
        return {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": nested, **plain, **mark, **stated}
    if producer == "nemo":  # the target's config with a few keys: its depth, its model type, its rope
        target = {"model_type": "qwen3", "num_hidden_layers": tiny.target_layers, "rope_parameters": ROPE_PARAMETERS}
        mark = {"target_hidden_size": tiny.target_hidden, "parallel_drafting": False}
        del plain["rope_theta"]
        return {"architectures": ["LlamaEagle3DraftModel"], **plain, **target, **mark, **stated}
    if producer == "modelopt":
        if stated.pop("norm_before_fc", False):  # as NVIDIA's gpt-oss v3 head has it
            nested = {"norm_before_fc": True, "use_aux_hidden_state": True, IDS: boundary}
        flags_of_modelopt = {
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
            "next_layer_regular": True,
            "parallel_draft_step": 1,
            "parallel_draft_heads_num_layers": None,
        }
        eagle_config = {**nested, **flags_of_modelopt}
        return {"architectures": ["LlamaForCausalLMEagle3"], **plain, "eagle_config": eagle_config, **stated}
    if producer == "angelslim":
        mark = {"aux_hidden_states_layer_ids": outputs, "target_model_type": "qwen3", "modal_type": "LLM"}
        return {"architectures": ["Eagle3LlamaForCausalLM"], **plain, **mark, **stated}
    if producer == "sglang":
        mark = {"use_aux_norm": stated.pop("fc_norm", False)}
        return {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": nested, **plain, **mark, **stated}
    if producer == "vllm":
        architecture = "Eagle3Qwen3ForCausalLM" if tiny.qk_norm else "LlamaForCausalLMEagle3"
        return {"architectures": [architecture], IDS: boundary, **plain, **stated}
    raise ValueError(producer)


def file_name(producer: str, canonical: str) -> str | None:
    """A canonical tensor name as this producer writes it; None for what it does not write."""
    name = canonical
    if producer in ("safeailab", "specforge", "torchspec", "angelslim", "sglang"):
        name = re.sub(r"^layers\.0\.", "midlayer.", name)
    if producer == "sglang":
        name = re.sub(r"^fc_norm\.(\d)", lambda match: "aux_norm_" + ("low", "mid", "high")[int(match[1])], name)
    if producer == "nemo" and canonical not in ("lm_head.weight", "d2t", "t2d"):
        name = "model." + name
    if producer == "modelopt" and canonical in ("embed_tokens.weight", "t2d"):
        return None
    return name


def named(producer: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """`arrays` (canonical names) under the names, and without the parts, of this producer."""
    names = {canonical: file_name(producer, canonical) for canonical in arrays}
    return {name: arrays[canonical] for canonical, name in names.items() if name is not None}


def write_checkpoint(
    folder: Path,
    producer: str,
    arrays: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    *,
    num_shards: int = 1,
    is_bf16: bool = False,
) -> Path:
    """A checkpoint folder of `arrays` (canonical names) with config.json; more than one shard comes with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = named(producer, arrays)
    if num_shards == 1:
        save(folder / "model.safetensors", tensors, is_bf16=is_bf16)
        return folder
    weight_map = {}
    for i in range(num_shards):
        shard = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[i::num_shards]}
        save(folder / shard, part, is_bf16=is_bf16)
        weight_map |= dict.fromkeys(part, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def save(path: Path, arrays: Mapping[str, np.ndarray], *, is_bf16: bool = False) -> None:
    """A safetensors file; with `is_bf16` float32 arrays are cut to bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks, end = [], 0
    for name, array in arrays.items():
        dtype, data = DTYPES[array.dtype.name], np.ascontiguousarray(array)
        if is_bf16 and dtype == "F32":
            dtype, data = "BF16", (data.view(np.uint32) >> 16).astype(np.uint16)
        chunks.append(data.tobytes())
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + len(chunks[-1])]}
        end += len(chunks[-1])
    write_raw(path, header, b"".join(chunks))


def write_raw(path: Path, header: object, data: bytes) -> None:
    """A safetensors file of exactly this header and data, right or wrong."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
