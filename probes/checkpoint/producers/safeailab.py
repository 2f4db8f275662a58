"""SafeAILab/EAGLE (cb7e084): the reference implementation. Three boundary layers, hard-coded; no switches."""

from __future__ import annotations

from collections.abc import Mapping

from probes.checkpoint.producer import AuxIdConvention, AuxIdKey, Producer, architectures, has_layer


def score(config: Mapping[str, object], names: frozenset[str]) -> int:
    if not has_layer(names, "midlayer.") or "eagle_config" in config:  # eagle_config: settings in SpecForge's places
        return 0
    if architectures(config) == ("LlamaForCausalLM",):
        return 10
    return 3 if not architectures(config) else 0  # the layer's name alone: SpecForge always writes its architecture


PRODUCER = Producer(
    name="safeailab",
    score=score,
    sections=("",),
    # Its own code knows no ids; a list at the top level was added for vLLM, which takes it as boundary ids.
    aux_id_keys=(
        AuxIdKey(
            section="",
            key="eagle_aux_hidden_state_layer_ids",
            convention=AuxIdConvention.boundary,
            is_settled=False,
        ),
    ),
    renames=((r"^midlayer\.", "layers.0."),),
    harmless_tensors=(r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)",),
    norm_output_default=(False, "SafeAILab cnets.py (no such switch; feeds back the pre-norm state)"),
    norm_before_residual_default=(False, "SafeAILab cnets.py (no such switch)"),
)
