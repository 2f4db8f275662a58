"""SafeAILab/EAGLE (cb7e084): the reference implementation. Three boundary layers, hard-coded; no switches."""

from __future__ import annotations

from probes.checkpoint.producer import TESTED_IN_VLLM, VLLM_IDS, Config, Producer, architectures, has_layer


def score(config: Config, names: frozenset[str]) -> int:
    if not has_layer(names, "midlayer.") or "eagle_config" in config:  # eagle_config: settings in SpecForge's places
        return 0
    if architectures(config) == ("LlamaForCausalLM",):
        return 10
    return 3 if not architectures(config) else 0  # the layer's name alone: SpecForge always writes its architecture


PRODUCER = Producer(
    name="safeailab",
    score=score,
    sections=("",),
    aux_id_keys=(VLLM_IDS,),  # its own code knows no ids; a list at the top level was added for vLLM
    norm_output_default=(False, "SafeAILab cnets.py (no such switch; feeds back the pre-norm state)"),
    norm_before_residual_default=(False, "SafeAILab cnets.py (no such switch)"),
    title="SafeAILab/EAGLE",
    source="cb7e084",
    reads="`LlamaForCausalLM` (or none) with `midlayer.*`",
    assumed=(
        "no `rope_theta` means base 10000, whatever the target's is",
        "the embedding is the target's where the files have none",
        "its own loader prefers `pytorch_model.bin`: one beside safetensors is reported",
    ),
    tested=f"{TESTED_IN_VLLM} (tests/vllm/test_layouts.py)",
)
