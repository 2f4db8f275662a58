"""NVIDIA-NeMo/Automodel (36044ad): `LlamaEagle3DraftModel`, every tensor but lm_head, d2t and t2d under `model.`.

config.json is the target's own with a few keys added: its num_hidden_layers and layer_types are the target's, its
model_type may be qwen3 though the layer is Llama's. `serve_sglang` renames the architecture in place, `serve_vllm` also
strips the prefix; the key `parallel_drafting` gives those away. The recipe's aux_layer_ids are not written down.
"""

from __future__ import annotations

from probes.checkpoint.producer import VLLM_IDS, Config, Doubt, Producer, architectures, has_layer

RENAMED = "LlamaForCausalLMEagle3"


def score(config: Config, names: frozenset[str]) -> int:
    claimed = architectures(config)
    if "LlamaEagle3DraftModel" in claimed and (has_layer(names, "model.layers.0.") or has_layer(names, "layers.0.")):
        return 20
    if RENAMED in claimed and has_layer(names, "model.layers.0."):
        return 15
    return 15 if RENAMED in claimed and has_layer(names, "layers.0.") and "parallel_drafting" in config else 0


PRODUCER = Producer(
    name="nemo",
    score=score,
    sections=("",),
    aux_id_keys=(VLLM_IDS,),
    renames=((r"^model\.", ""),),
    norm_output_default=(False, "NeMo LlamaEagle3DraftModel when the key is absent"),
    norm_before_residual_default=(False, "vLLM llama_eagle3.py when the key is absent; NeMo has no such switch"),
    doubts=(
        Doubt(
            field="aux_layer_ids",
            code="aux_ids_not_recorded",
            severity="info",
            is_raised=lambda config, spec: spec.has_fc and not config.get(VLLM_IDS.key),
            message="NeMo does not write the recipe's aux_layer_ids down; taken as its default",
            remedy="If the recipe set aux_layer_ids (layer outputs), give them + 1 as the override `aux_layer_ids`",
        ),
    ),
    title="NVIDIA NeMo Automodel",
    source="36044ad",
    reads="`LlamaEagle3DraftModel` with `model.layers.*`, also after `serve_sglang` or `serve_vllm` renamed it",
    assumed=(
        "the layer is Llama's whatever `model_type` says: config.json is a copy of the target's",
        "`layer_types` and `sliding_window` count as in vLLM, though NeMo trains with full attention",
    ),
    tested="-; vLLM 0.32 does not know the architecture, and builds the target's number of layers from what `serve_vllm` "
    "writes (tests/vllm/test_layouts.py)",
)
