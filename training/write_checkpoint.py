"""A trained drafter as a folder that vLLM and SGLang load unchanged: SpecForge's layout, bfloat16, no embedding.

Does not know how it was trained. Aux-layer ids are written at the top level as boundary ids (id i = the residual stream
entering layer i), which is where vLLM's both runners read them.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from probes.checkpoint.spec import DrafterSpec, Origin, Source
from probes.drafter.model import Drafter


def demo_spec(
    kind: str, target_config: dict[str, object], *, draft_vocab_size: int, intermediate_size: int
) -> DrafterSpec:
    """The drafter of the recipe, "eagle3" or "eagle3.1", for a Llama target with this config.json."""
    is_3_1 = {"eagle3": False, "eagle3.1": True}[kind]
    config = {key: value for key, value in target_config.items() if isinstance(value, int)}
    num_layers = config["num_hidden_layers"]
    rope = target_config["rope_parameters"]
    eps = target_config["rms_norm_eps"]
    assert isinstance(rope, dict)
    assert isinstance(eps, float)
    return DrafterSpec(
        producer="specforge",
        hidden_size=config["hidden_size"],
        target_hidden_size=config["hidden_size"],
        intermediate_size=intermediate_size,
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        vocab_size=config["vocab_size"],
        draft_vocab_size=draft_vocab_size,
        rms_norm_eps=eps,
        max_position_embeddings=config["max_position_embeddings"],
        rope_parameters=rope,
        aux_layer_ids=(2, num_layers // 2, num_layers - 3),
        has_fc_norm=is_3_1,
        norm_output=is_3_1,
        has_own_embedding=False,
        has_own_lm_head=True,
        has_vocab_map=True,
        origins={"norm_output": Origin(source=Source.override, detail="the recipe")},
    )


def write_checkpoint(drafter: Drafter, folder: Path) -> None:
    """config.json, model.safetensors: `midlayer.*`, `fc`, `fc_norm.{i}`, `norm`, `lm_head`, `d2t`, `t2d`."""
    spec = drafter.spec
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in drafter.state_dict().items()
        if name not in ("embed_tokens.weight", "d2t") and not name.startswith("rotary.")
    }
    tensors["d2t"] = drafter.d2t.cpu()
    tensors["t2d"] = torch.zeros(spec.vocab_size, dtype=torch.bool)
    tensors["t2d"][drafter.target_ids().cpu()] = True
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": spec.hidden_size,
        "target_hidden_size": spec.target_hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": spec.hidden_act,
        "rms_norm_eps": spec.rms_norm_eps,
        "attention_bias": spec.attention_bias,
        "mlp_bias": False,
        "max_position_embeddings": spec.max_position_embeddings,
        "rope_theta": spec.rope_parameters["rope_theta"],
        "rope_parameters": dict(spec.rope_parameters),
        "vocab_size": spec.vocab_size,
        "draft_vocab_size": spec.draft_vocab_size,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(spec.aux_layer_ids),
        "fc_norm": spec.has_fc_norm,
        "norm_output": spec.norm_output,
        "norm_before_residual": spec.norm_before_residual,
    }
    if any(spec.sliding_window):
        config["sliding_window"] = next(window for window in spec.sliding_window if window)
        config["layer_types"] = ["sliding_attention" if w else "full_attention" for w in spec.sliding_window]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
