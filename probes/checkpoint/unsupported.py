"""The refusal of a checkpoint that no producer claims: what it is (`families.REFUSED`), or what it calls itself."""

from __future__ import annotations

from collections.abc import Mapping

from probes.checkpoint.families import REFUSED
from probes.checkpoint.producer import architectures
from probes.errors import CheckpointError


def unsupported(
    config: Mapping[str, object], names: frozenset[str], *, where: str, supported: tuple[str, ...]
) -> CheckpointError:
    """The error to raise; `supported`: the producers' titles."""
    claimed = architectures(config)
    first = claimed[0] if claimed else ""
    remedy = f"Supported: EAGLE-3 / EAGLE-3.1 with Llama or Qwen3 layers, as written by {', '.join(supported)}"
    for kind in REFUSED:
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
