"""vllm-project/speculators (c05b95b; RedHatAI's heads): settings at the top level and in `transformer_layer_config`."""

from __future__ import annotations

from collections.abc import Mapping

from probes.checkpoint.producer import AuxIdConvention, AuxIdKey, Producer, architectures, has_layer

ARCHITECTURES = {"Eagle3Speculator", "Eagle3DraftModel"}


def score(config: Mapping[str, object], names: frozenset[str]) -> int:
    layer = config.get("transformer_layer_config")
    layer_type = layer.get("model_type", "llama") if isinstance(layer, Mapping) else "llama"
    if layer_type != "llama" or not has_layer(names, "layers."):
        return 0
    kind = config.get("speculators_model_type")
    if kind == "eagle3":
        return 10
    return 9 if kind is None and ARCHITECTURES.intersection(architectures(config)) else 0


PRODUCER = Producer(
    name="speculators",
    score=score,
    sections=("", "transformer_layer_config"),
    aux_id_keys=(
        AuxIdKey(
            section="",
            key="eagle_aux_hidden_state_layer_ids",
            convention=AuxIdConvention.boundary,
            is_settled=True,
        ),
    ),
    harmless_tensors=(r"verifier_.*", r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"),
    norm_output_default=(False, "vLLM update_eagle3 (configs/speculators/algos.py) when the key is absent"),
    norm_before_residual_default=(
        True,
        "vLLM update_eagle3 (configs/speculators/algos.py) when the key is absent; the speculators class itself: False",
    ),
)
