"""Checkpoints that somebody wrote in vLLM's own names (0.25-0.33), for its registry: no other mark of a producer.

The layer class follows `architectures`: `Eagle3Qwen3ForCausalLM` norms q and k per head, the others are Llama's.
"""

from __future__ import annotations

from probes.checkpoint.families import FAMILY_OF_CLASS
from probes.checkpoint.producer import NESTED_IDS, TESTED_IN_VLLM, VLLM_IDS, Config, Producer, architectures, has_layer


def score(config: Config, names: frozenset[str]) -> int:
    is_layer = has_layer(names, "midlayer.") or has_layer(names, "layers.0.")
    return 5 if is_layer and FAMILY_OF_CLASS.keys() & architectures(config) else 0


PRODUCER = Producer(
    name="vllm",
    score=score,
    sections=("eagle_config", ""),
    aux_id_keys=(VLLM_IDS, NESTED_IDS),
    norm_output_default=(False, "vLLM llama_eagle3.py when the key is absent"),
    norm_before_residual_default=(False, "vLLM llama_eagle3.py when the key is absent"),
    title="vLLM's own names",
    source="vLLM 0.25.1 and 0.33.0",
    reads="an EAGLE-3 architecture of vLLM's registry with `layers.*` or `midlayer.*`, when no other producer claims it",
    assumed=("a top-level list of layer ids holds boundary ids, as vLLM captures them",),
    tested=f"{TESTED_IN_VLLM} (tests/vllm/test_layouts.py)",
)
