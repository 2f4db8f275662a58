"""SpecForge / SGLang (a6b6b02): `LlamaForCausalLMEagle3` with `midlayer.*`; vLLM loads these names as they are.

SpecForge writes its layer ids into `eagle_config`, as layer outputs. vLLM never converts and its V2 runner reads the top
level only, so a list there is what someone wrote for vLLM: boundary ids. TorchSpec writes the same layout.
"""

from __future__ import annotations

from collections.abc import Mapping

from probes.checkpoint.producer import AuxIdConvention, AuxIdKey, Producer, architectures, has_layer


def score(config: Mapping[str, object], names: frozenset[str]) -> int:
    if not has_layer(names, "midlayer."):
        return 0
    if "LlamaForCausalLMEagle3" in architectures(config):
        return 10
    return 5 if "eagle_config" in config and architectures(config) in ((), ("LlamaForCausalLM",)) else 0


PRODUCER = Producer(
    name="specforge",
    score=score,
    sections=("eagle_config", ""),
    aux_id_keys=(
        AuxIdKey(
            section="",
            key="eagle_aux_hidden_state_layer_ids",
            convention=AuxIdConvention.boundary,
            is_settled=False,
        ),
        AuxIdKey(
            section="eagle_config",
            key="eagle_aux_hidden_state_layer_ids",
            convention=AuxIdConvention.output,
            is_settled=False,
        ),
    ),
    renames=((r"^midlayer\.", "layers.0."),),
    harmless_tensors=(r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)",),
    norm_output_default=(False, "vLLM and SGLang llama_eagle3.py when the key is absent"),
    norm_before_residual_default=(False, "vLLM llama_eagle3.py when the key is absent; SpecForge has no such switch"),
)
