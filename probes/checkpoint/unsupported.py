"""Names what a checkpoint is when no producer claims it, so that the refusal says more than "unknown".

A row becomes dead when a producer file claims its checkpoints; delete it then. `docs/checkpoints.md` lists the rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from probes.checkpoint.producer import architectures
from probes.errors import CheckpointError


@dataclass(frozen=True)
class _Kind:
    """`what` with an article."""

    what: str
    is_it: Callable[[Mapping[str, object], frozenset[str], str], bool]  # (config, tensor names, architectures)


def _any(names: Iterable[str], part: str) -> bool:
    return any(part in name for name in names)


KINDS = (
    _Kind(
        "a P-EAGLE / parallel-drafting head (all drafts in one forward, no feedback)",
        lambda c, n, a: (
            c.get("speculators_model_type") == "peagle"
            or "mask_hidden" in n
            or a.lower().startswith("peagle")
            or any(key in c for key in ("pard_token", "ptd_token_id"))
            or c.get("parallel_drafting") is True
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
    _Kind("a mixture-of-experts EAGLE-3 drafter", lambda c, n, a: _any(n, "mlp.experts.")),
    _Kind("Medusa heads", lambda c, n, a: _any(n, "medusa") or "Medusa" in a),
    _Kind("an MTP head", lambda c, n, a: _any(n, "eh_proj") or c.get("speculators_model_type") == "mtp"),
    _Kind(
        "an EAGLE-1 / EAGLE-2 drafter (last-layer features, no fused layers)",
        lambda c, n, a: (
            c.get("speculators_model_type") == "eagle"
            or a in ("LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "LlamaEagleDraftModel")
            or (
                {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= {name.removeprefix("model.") for name in n}
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


def unsupported(
    config: Mapping[str, object], names: frozenset[str], *, where: str, supported: tuple[str, ...]
) -> CheckpointError:
    """The error to raise for a checkpoint that nobody claims: what it is, or what it calls itself."""
    claimed = architectures(config)
    first = claimed[0] if claimed else ""
    remedy = f"Supported: EAGLE-3 / EAGLE-3.1 with Llama or Qwen3 layers, as written by {', '.join(supported)}"
    for kind in KINDS:
        if kind.is_it(config, names, first):
            what = f"this is {kind.what}, which is not supported yet"
            return CheckpointError(what, code="unsupported_family", where=where, remedy=remedy)
    some = ", ".join(name[:60] for name in sorted(names)[:4])
    return CheckpointError(
        f"unknown kind of drafter: architectures {[a[:60] for a in claimed[:4]]}, tensors {some}, ...",
        code="unsupported_family",
        where=where,
        remedy=remedy,
    )
