"""What a producer has to say about its checkpoints. Plain data and one scoring function; no files, no tensors' shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from probes.checkpoint.spec import Origin, Source

FOREIGN_PARTS = ("q_norm.", "k_norm.", "kv_a_proj_with_mqa", "kv_b_proj", "mask_hidden", "eh_proj", "medusa_layers")
"""Parts of a tensor's name that no Llama-type EAGLE-3 drafter has: Qwen3, MLA, parallel drafting, MTP, Medusa."""


class AuxIdConvention(StrEnum):
    """What the id of a captured target layer means (r_i = the residual stream after i layers)."""

    boundary = "boundary"  # id i: the stream entering layer i, r_i
    output = "output"  # id j: the output of layer j, r_{j+1}


@dataclass(frozen=True, kw_only=True)
class AuxIdKey:
    """One key that may hold the layer ids. `is_settled`: only this producer writes it there, in this one convention."""

    section: str  # "" = top level of config.json
    key: str
    convention: AuxIdConvention
    is_settled: bool

    @property
    def label(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key


@dataclass(frozen=True, kw_only=True)
class Producer:
    """One producer's layout."""

    name: str
    family: str = "llama"
    score: Callable[[Mapping[str, object], frozenset[str]], int]
    """(config, tensor names) -> 0 when it is not this producer's, else how sure (1..10)."""
    sections: tuple[str, ...]
    """Where settings stand in config.json, first wins; "" = top level."""
    aux_id_keys: tuple[AuxIdKey, ...]
    """Where layer ids may stand, first wins."""
    renames: tuple[tuple[str, str], ...] = ()
    """(regular expression, replacement) from the file's tensor names to canonical ones, all applied in order."""
    harmless_tensors: tuple[str, ...] = ()
    """Regular expressions of tensors in the file that the forward pass does not need."""
    norm_output_default: tuple[bool, str]
    """(value, whose default) when config.json has no `norm_output`."""
    norm_before_residual_default: tuple[bool, str]

    def canonical_name(self, name: str) -> str:
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def origin(self, config: Mapping[str, object]) -> Origin:
        """How the checkpoint was recognised."""
        kind = config.get("speculators_model_type")
        said = f"architectures {list(architectures(config))}" if kind is None else f"speculators_model_type {kind!r}"
        return Origin(source=Source.file_key, detail=f"{said} and the tensors' names")

    def is_harmless(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.harmless_tensors)


def architectures(config: Mapping[str, object]) -> tuple[str, ...]:
    """config.json's `architectures` (a list of strings or absent, see `choose_producer`)."""
    value = config.get("architectures")
    return tuple(str(v) for v in value) if isinstance(value, list) else ()


def has_layer(names: frozenset[str], prefix: str) -> bool:
    """Whether a Llama-type layer stands under `prefix` ("midlayer.", "layers.0.") and nothing of another family."""
    return any(n.startswith(prefix) for n in names) and not any(part in n for n in names for part in FOREIGN_PARTS)
