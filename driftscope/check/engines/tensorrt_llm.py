"""TensorRT-LLM's Eagle3DraftModel. Read: _torch/models/modeling_speculative.py at 00679c66, _torch/speculative/eagle3.py.

It takes the layers to capture from the user's speculative config, not from the checkpoint.
"""

from __future__ import annotations

from driftscope.check.engines.engine import (
    Engine,
    Reading,
    Readings,
    default_ids,
    flag,
    full_attention,
    has,
    is_on,
    is_pruned,
    map_reading,
    nested,
    rope_of,
    shared_embedding,
    unknown,
)
from driftscope.check.pair import Pair

NESTED_POST_NORM = "return_hidden_post_norm"


def read(pair: Pair) -> Readings:
    config, inner = pair.config, nested(pair.config)
    if "transformer_layer_config" in config:
        return {"weights": unknown("speculators' layout: not in the files of this engine that were read")}
    has_fc_norm = is_on(config, "fc_norm")
    return {
        "layer_ids": Reading(
            value=default_ids(pair),
            source="eagle3_layers_to_capture of the user's config; default outputs (1, n//2-1, n-4)",
        ),
        "num_aux": Reading(value=3, source="eagle3_layers_to_capture, default 3"),
        "fc_norm": flag(config, "fc_norm"),
        "norm_before_fc": (
            Reading(value=False, source="fc_norm wins")
            if has_fc_norm
            else flag(inner, "norm_before_fc", prefix="eagle_config.")
        ),
        "norm_output": (
            Reading(value=True, source=f"eagle_config.{NESTED_POST_NORM}")
            if is_on(inner, NESTED_POST_NORM)
            else flag(config, "norm_output")
        ),
        "norm_before_residual": Reading(value=False, source="no such switch"),
        "d2t": (
            unknown("no d2t: its buffer is never filled")
            if is_pruned(config, pair) and not has(pair, "d2t")
            else map_reading(pair, config, identity="")
        ),
        "embeddings": shared_embedding(config, "always the target's"),
        "lm_head": Reading(
            value="own" if has(pair, "lm_head.weight") else "target",
            source="lm_head.weight" if has(pair, "lm_head.weight") else "no lm_head.weight",
        ),
        "rope": rope_of(pair, config),
        "max_positions": unknown(),
        "sliding_window": Reading(value=full_attention(pair), source="no window in Eagle3Attention"),
        "qkv_bias": flag(config, "attention_bias"),
        "weights": unknown(),
    }


ENGINES = (Engine(name="TensorRT-LLM", is_current=True, read=read),)
