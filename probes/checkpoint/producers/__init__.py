"""Who made the checkpoint: one small file per producer, each exporting `PRODUCER`. A new producer is one new file here.

A file says how to recognise its checkpoints, where its settings stand, what its tensors are called, what its layer ids
mean, and which default an engine takes where the files are silent. It reads no file and knows no tensor's shape.
`docs/checkpoints.md` is made of these files (`python -m probes.checkpoint.document`).
"""

from __future__ import annotations

import importlib
import pkgutil
import reprlib
from collections.abc import Mapping
from functools import cache

from probes.checkpoint.families import REFUSED
from probes.checkpoint.producer import Producer, architectures
from probes.errors import CheckpointError


@cache
def all_producers() -> tuple[Producer, ...]:
    """Every `PRODUCER` of this folder, by name."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return tuple(sorted((module.PRODUCER for module in modules), key=lambda p: p.name))


def choose_producer(config: Mapping[str, object], names: frozenset[str], *, where: str) -> Producer:
    """The producer with the highest score for this config.json and these tensor names.

    Raises CheckpointError naming what the checkpoint is, when nobody claims it.
    """
    claimed = config.get("architectures")
    if claimed is not None and not (isinstance(claimed, list) and all(isinstance(a, str) for a in claimed)):
        raise CheckpointError(
            f"`architectures` must be a list of strings, found {reprlib.repr(claimed)}",
            code="config_wrong_type",
            where=where,
            remedy="Correct this key; see the producer's own example config",
        )
    best = max(all_producers(), key=lambda producer: producer.score(config, names))
    if best.score(config, names) == 0:
        titles = tuple(producer.title for producer in all_producers())
        raise _unsupported(config, names, where=where, supported=titles)
    return best


def producer_named(name: str) -> Producer:
    """The producer of a `DrafterSpec.producer`."""
    for producer in all_producers():
        if producer.name == name:
            return producer
    raise CheckpointError(
        f"unknown producer {name!r}",
        code="unknown_producer",
        remedy=f"Known: {', '.join(p.name for p in all_producers())}",
    )


def _unsupported(
    config: Mapping[str, object], names: frozenset[str], *, where: str, supported: tuple[str, ...]
) -> CheckpointError:
    """Says what the checkpoint is (`families.REFUSED`), or what it calls itself. `supported`: the producers' titles."""
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
