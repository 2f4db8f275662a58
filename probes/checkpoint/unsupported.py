"""Names what a checkpoint is when no producer claims it, so that the refusal says more than "unknown".

A row becomes dead when a producer file claims its checkpoints; delete it then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from probes.checkpoint.producer import architectures
from probes.errors import CheckpointError


@dataclass(frozen=True)
class _Kind:
    what: str
    is_it: Callable[[Mapping[str, object], frozenset[str], str], bool]  # (config, tensor names, architectures)


def _any(names: Iterable[str], part: str) -> bool:
    return any(part in name for name in names)


def _layer_type(config: Mapping[str, object]) -> object:
    layer = config.get("transformer_layer_config")
    return layer.get("model_type") if isinstance(layer, Mapping) else None


_KINDS = (
    _Kind(
        "a P-EAGLE / parallel-drafting head (all drafts in one forward, no feedback)",
        lambda c, n, a: (
            c.get("speculators_model_type") == "peagle"
            or "mask_hidden" in n
            or a.lower().startswith("peagle")
            or any(key in c for key in ("pard_token", "ptd_token_id"))
        ),
    ),
    _Kind(
        "a DFlash / DSpark block-drafting head",
        lambda c, n, a: c.get("speculators_model_type") in ("dflash", "dspark") or "dflash" in a.lower(),
    ),
    _Kind(
        "an MLA (DeepSeek / Kimi type) EAGLE-3 drafter",
        lambda c, n, a: _any(n, "kv_a_proj_with_mqa") or "deepseek" in a.lower(),
    ),
    _Kind(
        "a Qwen3-type EAGLE-3 drafter (q_norm / k_norm)",
        lambda c, n, a: _any(n, ".q_norm.") or str(_layer_type(c)).startswith("qwen3") or a.startswith("Eagle3Qwen3"),
    ),
    _Kind("Medusa heads", lambda c, n, a: _any(n, "medusa") or "Medusa" in a),
    _Kind("an MTP head", lambda c, n, a: _any(n, "eh_proj") or c.get("speculators_model_type") == "mtp"),
    _Kind(
        "an NVIDIA NeMo Automodel EAGLE-3 drafter (tensors under `model.`)",
        lambda c, n, a: "Eagle3DraftModel" in a and any(name.startswith("model.") for name in n),
    ),
    _Kind("an AngelSlim EAGLE-3 drafter", lambda c, n, a: "aux_hidden_states_layer_ids" in c),
    _Kind(
        "an EAGLE-3 drafter in NVIDIA ModelOpt's (or TorchSpec's --vllm) layout (`layers.0.*` with `eagle_config`)",
        lambda c, n, a: a == "LlamaForCausalLMEagle3" and any(name.startswith("layers.0.") for name in n),
    ),
    _Kind(
        "an EAGLE-1 / EAGLE-2 drafter (last-layer features, no fused layers)",
        lambda c, n, a: (
            c.get("speculators_model_type") == "eagle"
            or (
                {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= n
                and not _any(n, "hidden_norm.")
                and "d2t" not in n
            )
        ),
    ),
    _Kind(
        "a whole language model, not a drafter",
        lambda c, n, a: "fc.weight" not in n and any(re.match(r"(model\.)?(.*\.)?layers\.1\.", name) for name in n),
    ),
)


def unsupported(config: Mapping[str, object], names: frozenset[str], *, where: str) -> CheckpointError:
    """The error to raise for a checkpoint that nobody claims: what it is, or what it calls itself."""
    claimed = architectures(config)
    first = claimed[0] if claimed else ""
    for kind in _KINDS:
        if kind.is_it(config, names, first):
            return CheckpointError(
                f"this is {kind.what}, which is not supported yet",
                code="unsupported_family",
                where=where,
                remedy="Supported: Llama-type EAGLE-3 / EAGLE-3.1 of SafeAILab, SpecForge/SGLang and vLLM speculators",
            )
    some = ", ".join(name[:60] for name in sorted(names)[:4])
    return CheckpointError(
        f"unknown kind of drafter: architectures {[a[:60] for a in claimed[:4]]}, tensors {some}, ...",
        code="unsupported_family",
        where=where,
        remedy="Supported: Llama-type EAGLE-3 / EAGLE-3.1 of SafeAILab, SpecForge/SGLang and vLLM speculators",
    )
