"""Tencent/AngelSlim (67394ce): `Eagle3LlamaForCausalLM` with `midlayer.*` and ids, as layer outputs, under its own key.

Its training class computes rope from head_dim alone: base 10000 whatever `rope_theta` says. Engines use config.json's.
"""

from __future__ import annotations

from probes.checkpoint.producer import (
    TESTED_IN_VLLM,
    VLLM_IDS,
    AuxIdConvention,
    AuxIdKey,
    Config,
    Doubt,
    Producer,
    architectures,
    has_layer,
)
from probes.checkpoint.rope import DEFAULT_THETA

IDS = "aux_hidden_states_layer_ids"


def score(config: Config, names: frozenset[str]) -> int:
    if not has_layer(names, "midlayer.") and not has_layer(names, "layers.0."):
        return 0
    if config.get(IDS) is not None:
        return 20
    return 10 if "Eagle3LlamaForCausalLM" in architectures(config) and has_layer(names, "midlayer.") else 0


PRODUCER = Producer(
    name="angelslim",
    score=score,
    sections=("",),
    aux_id_keys=(
        VLLM_IDS,
        AuxIdKey(
            section="",
            key=IDS,
            convention=AuxIdConvention.output,
            is_settled=True,
            because="only AngelSlim writes it",
        ),
    ),
    norm_output_default=(False, "vLLM and SGLang llama_eagle3.py when the key is absent"),
    norm_before_residual_default=(False, "vLLM llama_eagle3.py when the key is absent; AngelSlim has no such switch"),
    doubts=(
        Doubt(
            field="rope_parameters",
            code="rope_theta_unused_in_training",
            severity="warning",
            is_raised=lambda _config, spec: spec.rope_parameters["rope_theta"] != DEFAULT_THETA,
            message="AngelSlim's training class ignores rope_theta and computes rope with base 10000; engines use "
            "config.json's, which costs acceptance",
            remedy="Compare with the override `rope_parameters` with rope_theta 10000; if it accepts more, set rope_theta "
            "to 10000 in config.json",
        ),
    ),
    title="AngelSlim",
    source="67394ce",
    reads="`aux_hidden_states_layer_ids`, or `Eagle3LlamaForCausalLM` with `midlayer.*`",
    assumed=("the embedding is the target's where the files have none",),
    tested=f"{TESTED_IN_VLLM} (tests/vllm/test_layouts.py)",
)
