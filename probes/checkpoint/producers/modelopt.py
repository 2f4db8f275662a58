"""NVIDIA/Model-Optimizer (a2fbac7) and NVIDIA's heads: `layers.*`, settings in `eagle_config`, no embedding, no t2d.

Ids are layer outputs. NVIDIA's gpt-oss v3 head differs: it was trained with speculators, has `norm_before_fc` and
boundary ids, the last of them n, the stream after the last layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from probes.checkpoint.producer import (
    NESTED_IDS,
    TESTED_IN_VLLM,
    VLLM_IDS,
    Config,
    Doubt,
    Producer,
    architectures,
    has_layer,
)
from probes.checkpoint.spec import DrafterSpec


def score(config: Config, names: frozenset[str]) -> int:
    is_layer = has_layer(names, "layers.0.") and not has_layer(names, "midlayer.")
    is_its = is_layer and "LlamaForCausalLMEagle3" in architectures(config)
    return 10 if is_its and isinstance(config.get("eagle_config"), Mapping) else 0


def has_exports_rope(_config: Config, spec: DrafterSpec) -> bool:
    """`eagle_export_rope_scaling`'s default; the original length is set to the training length by its scripts."""
    return spec.rope_parameters["rope_type"] == "yarn" and spec.rope_parameters.get("factor") == 32


PRODUCER = Producer(
    name="modelopt",
    score=score,
    sections=("eagle_config", ""),
    aux_id_keys=(
        VLLM_IDS,
        replace(
            NESTED_IDS,
            boundary_with="norm_before_fc",
            because="ModelOpt writes layer outputs there; NVIDIA's heads with norm_before_fc boundary ids",
        ),
    ),
    aliases={"norm_output": "return_hidden_post_norm"},
    norm_output_default=(False, "vLLM and TensorRT-LLM when the key is absent"),
    norm_before_residual_default=(False, "vLLM llama_eagle3.py when the key is absent; ModelOpt has no such switch"),
    doubts=(
        Doubt(
            field="rope_parameters",
            code="rope_set_at_export",
            severity="info",
            is_raised=has_exports_rope,
            message="yarn with factor 32 is what ModelOpt writes at export for a drafter trained with plain rope",
            remedy="If acceptance is low, try the override `rope_parameters` with rope_type default and the same theta",
        ),
    ),
    title="NVIDIA ModelOpt",
    source="a2fbac7; TensorRT-LLM 00679c66",
    reads="`LlamaForCausalLMEagle3` with `layers.*` and `eagle_config`",
    assumed=(
        "the embedding is the target's",
        "`use_aux_hidden_state: false` with neither `fc` nor `hidden_norm` reads the target's state after its final norm",
        "`eagle_config.norm_before_fc` means boundary ids (gpt-oss v3), unless the first id is 1",
        "the residual is the raw state; ModelOpt's own conversion for vLLM writes `norm_before_residual: true`",
    ),
    tested=f"{TESTED_IN_VLLM} (tests/vllm/test_layouts.py)",
)
