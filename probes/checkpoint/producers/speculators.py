"""vllm-project/speculators (c05b95b; RedHatAI's heads): settings at the top level and in `transformer_layer_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from probes.checkpoint.families import FAMILIES
from probes.checkpoint.producer import (
    ROTARY_TABLES,
    TESTED_IN_VLLM,
    VLLM_IDS,
    Config,
    Producer,
    architectures,
    has_layer,
)

ARCHITECTURES = {"Eagle3Speculator", "Eagle3DraftModel"}


def score(config: Config, names: frozenset[str]) -> int:
    layer = config.get("transformer_layer_config")
    layer_type = layer.get("model_type", "llama") if isinstance(layer, Mapping) else "llama"
    if layer_type not in tuple(FAMILIES) or not has_layer(names, "layers.0."):
        return 0
    kind = config.get("speculators_model_type")
    if kind == "eagle3":
        return 20
    return 10 if kind is None and ARCHITECTURES.intersection(architectures(config)) else 0


PRODUCER = Producer(
    name="speculators",
    score=score,
    sections=("", "transformer_layer_config"),
    aux_id_keys=(replace(VLLM_IDS, is_settled=True, because="speculators and vLLM agree on it"),),
    renames=(),
    harmless_tensors=(r"verifier_.*", ROTARY_TABLES),
    norm_output_default=(False, "vLLM update_eagle3 (configs/speculators/algos.py) when the key is absent"),
    norm_before_residual_default=(
        True,
        "vLLM update_eagle3 (configs/speculators/algos.py) when the key is absent; the speculators class itself: False",
    ),
    title="vLLM speculators",
    source="c05b95b",
    reads="`speculators_model_type: eagle3`, or `Eagle3Speculator` / `Eagle3DraftModel`, with `layers.*`; the layer is "
    "`transformer_layer_config.model_type` (llama or qwen3)",
    assumed=(
        "an absent `norm_before_residual` is true, as vLLM takes it, though the speculators class takes false",
        "engines older than vLLM's PR 46488 do not pass `norm_output` on; it is read as config.json says",
    ),
    tested=f"{TESTED_IN_VLLM} (tests/vllm/test_layouts.py)",
)
