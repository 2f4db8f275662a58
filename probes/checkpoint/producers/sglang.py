"""SGLang's research checkpoints (its llama_eagle3.py): norms named by height instead of `fc_norm.{i}`, a flag of its own.

What SGLang serves otherwise is SpecForge's layout.
"""

from __future__ import annotations

from probes.checkpoint.producer import NESTED_IDS, VLLM_IDS, Config, Producer, has_layer

HEIGHTS = ("low", "mid", "high")


def score(config: Config, names: frozenset[str]) -> int:
    if not has_layer(names, "midlayer.") and not has_layer(names, "layers.0."):
        return 0
    return 30 if "use_aux_norm" in config or any(name.startswith("aux_norm_") for name in names) else 0


PRODUCER = Producer(
    name="sglang",
    score=score,
    sections=("eagle_config", ""),
    aux_id_keys=(VLLM_IDS, NESTED_IDS),
    aliases={"fc_norm": "use_aux_norm"},
    renames=(
        (r"^midlayer\.", "layers.0."),
        *((rf"^aux_norm_{height}\.", f"fc_norm.{i}.") for i, height in enumerate(HEIGHTS)),
    ),
    norm_output_default=(False, "SGLang llama_eagle3.py when the key is absent"),
    norm_before_residual_default=(False, "SGLang llama_eagle3.py (no such switch)"),
    title="SGLang research checkpoints",
    source="llama_eagle3.py after PR 24663",
    reads="tensors `aux_norm_low`, `aux_norm_mid`, `aux_norm_high`, or the key `use_aux_norm`",
    assumed=("low, mid and high are the three states in ascending order",),
    tested="-; vLLM 0.32 refuses these names",
)
