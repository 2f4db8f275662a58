"""A tiny random target and tiny random drafters as checkpoint folders, in the layout that SpecForge writes.

Nothing is trained. Weights are large enough that attention and every norm gain matter: with unit gains and tiny
weights a swapped or forgotten norm would stay inside the tolerance.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, HEAD_DIM, KV_HEADS, VOCAB, DRAFT_VOCAB, TARGET_LAYERS = 128, 32, 2, 256, 96, 8

CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,  # vLLM's CPU attention takes multiples of 32
    "num_hidden_layers": TARGET_LAYERS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


class _Tensors:
    """Random tensors by name, from one seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.by_name: dict[str, torch.Tensor] = {}

    def linear(self, name: str, rows: int, columns: int) -> None:
        self.by_name[name] = torch.randn(rows, columns, generator=self.generator) * 1.5 * columns**-0.5

    def bias(self, name: str, size: int) -> None:
        self.by_name[name] = torch.randn(size, generator=self.generator)

    def gain(self, name: str, size: int) -> None:
        self.by_name[name] = 0.5 + torch.rand(size, generator=self.generator)

    def decoder_layer(self, at: str, config: dict, input_size: int) -> None:
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        q_size, kv_size = config["num_attention_heads"] * HEAD_DIM, config["num_key_value_heads"] * HEAD_DIM
        for name, rows in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            self.linear(f"{at}.self_attn.{name}_proj.weight", rows, input_size)
            if config["attention_bias"]:
                self.bias(f"{at}.self_attn.{name}_proj.bias", rows)
        self.linear(f"{at}.self_attn.o_proj.weight", hidden, q_size)
        if config["attention_bias"]:  # vLLM leaves an o_proj bias that the file does not have uninitialised
            self.bias(f"{at}.self_attn.o_proj.bias", hidden)
        self.linear(f"{at}.mlp.gate_proj.weight", inner, hidden)
        self.linear(f"{at}.mlp.up_proj.weight", inner, hidden)
        self.linear(f"{at}.mlp.down_proj.weight", hidden, inner)
        self.gain(f"{at}.input_layernorm.weight", hidden)
        self.gain(f"{at}.post_attention_layernorm.weight", hidden)

    def save(self, folder: Path, config: dict) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        save_file(self.by_name, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def write_target(folder: Path, seed: int = 0) -> Path:
    tensors = _Tensors(seed)
    tensors.linear("model.embed_tokens.weight", VOCAB, HIDDEN)
    for i in range(TARGET_LAYERS):
        tensors.decoder_layer(f"model.layers.{i}", CONFIG, HIDDEN)
    tensors.gain("model.norm.weight", HIDDEN)
    tensors.linear("lm_head.weight", VOCAB, HIDDEN)
    return tensors.save(folder, {**CONFIG, "architectures": ["LlamaForCausalLM"]})


def write_drafter(folder: Path, seed: int = 1, has_own_embedding: bool = False, **config_changes: object) -> Path:
    """`config_changes` replace or add keys of config.json; the tensors follow from the config."""
    config = {
        **CONFIG,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCAB,
        **config_changes,
    }
    nested = config.get("eagle_config", {})
    layer_ids = config.get("eagle_aux_hidden_state_layer_ids") or nested.get("eagle_aux_hidden_state_layer_ids")
    num_aux = len(layer_ids) if layer_ids else 3
    hidden, target_hidden = config["hidden_size"], config.get("target_hidden_size", HIDDEN)

    tensors = _Tensors(seed)
    for i in range(config["num_hidden_layers"]):
        at = "midlayer" if i == 0 else f"layers.{i}"
        tensors.decoder_layer(at, config, 2 * hidden if i == 0 else hidden)
    tensors.gain("midlayer.hidden_norm.weight", hidden)
    if nested.get("use_aux_hidden_state", True):
        tensors.linear("fc.weight", hidden, num_aux * target_hidden)
    if config.get("norm_before_fc") or nested.get("norm_before_fc"):
        tensors.gain("input_norm.weight", num_aux * target_hidden)
    if config.get("fc_norm"):
        for i in range(num_aux):
            tensors.gain(f"fc_norm.{i}.weight", target_hidden)
    if has_own_embedding:
        tensors.linear("embed_tokens.weight", VOCAB, hidden)
    tensors.gain("norm.weight", hidden)
    tensors.linear("lm_head.weight", DRAFT_VOCAB, hidden)
    kept = torch.randperm(VOCAB, generator=tensors.generator)[:DRAFT_VOCAB].sort().values  # target ids
    tensors.by_name["d2t"] = kept - torch.arange(DRAFT_VOCAB)
    tensors.by_name["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, kept, True)
    return tensors.save(folder, config)
