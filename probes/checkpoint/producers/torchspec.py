"""lightseekorg/TorchSpec (6f21829; tools/convert_to_hf.py): SpecForge's places, its own version key.

Native exports have `midlayer.*`, those with `--vllm` `layers.0.*`; the ids stay layer outputs in both (`--vllm` adds 1
for kimi_k2 alone, an MLA drafter). Its post-hoc vocabulary pruning indexes lm_head with the offsets, see `vocab`.
"""

from __future__ import annotations

from probes.checkpoint.producer import NESTED_IDS, TESTED_IN_VLLM, VLLM_IDS, Config, Producer, has_layer


def score(config: Config, names: frozenset[str]) -> int:
    is_layer = has_layer(names, "midlayer.") or has_layer(names, "layers.0.")
    return 20 if is_layer and config.get("_torchspec_version") is not None else 0


PRODUCER = Producer(
    name="torchspec",
    score=score,
    sections=("eagle_config", ""),
    aux_id_keys=(VLLM_IDS, NESTED_IDS),
    norm_output_default=(False, "vLLM and SGLang llama_eagle3.py when the key is absent"),
    norm_before_residual_default=(False, "vLLM llama_eagle3.py when the key is absent; TorchSpec has no such switch"),
    title="TorchSpec",
    source="6f21829, before its PR 97",
    reads="`_torchspec_version` with `midlayer.*` or `layers.*`",
    assumed=(
        "an export without `_torchspec_version` is read as SpecForge's or ModelOpt's, which has the same meaning",
    ),
    tested=f"{TESTED_IN_VLLM} (tests/vllm/test_layouts.py)",
)
