"""SpecForge / SGLang (a6b6b02): `LlamaForCausalLMEagle3` with `midlayer.*`; vLLM loads these names as they are.

SpecForge writes its layer ids into `eagle_config`, as layer outputs. vLLM never converts and its V2 runner reads the top
level only, so a list there is what someone wrote for vLLM: boundary ids.
"""

from __future__ import annotations

from probes.checkpoint.producer import NESTED_IDS, TESTED_IN_VLLM, VLLM_IDS, Config, Producer, architectures, has_layer


def score(config: Config, names: frozenset[str]) -> int:
    if not has_layer(names, "midlayer."):
        return 0
    if "LlamaForCausalLMEagle3" in architectures(config):
        return 10
    return 5 if "eagle_config" in config and architectures(config) in ((), ("LlamaForCausalLM",)) else 0


PRODUCER = Producer(
    name="specforge",
    score=score,
    sections=("eagle_config", ""),
    aux_id_keys=(VLLM_IDS, NESTED_IDS),
    norm_output_default=(False, "vLLM and SGLang llama_eagle3.py when the key is absent"),
    norm_before_residual_default=(False, "vLLM llama_eagle3.py when the key is absent; SpecForge has no such switch"),
    title="SpecForge",
    source="a6b6b02, before its PR 879",
    reads="`LlamaForCausalLMEagle3` with `midlayer.*`",
    assumed=(
        "`norm_output` means what engines do with it (the post-norm state is fed back); heads that SpecForge trained "
        "with it before PR 879 fed back the pre-norm state in training",
    ),
    tested=f"{TESTED_IN_VLLM} (tests/vllm/test_module_parity.py)",
)
