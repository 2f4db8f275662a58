"""What a producer has to say about its checkpoints. Plain data and small functions of config.json; no files.

Knows no tensor's shape and no layer family: `layout` has those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from probes.checkpoint.families import UNREAD_PARTS
from probes.checkpoint.spec import DrafterSpec, Origin, Source

Config = Mapping[str, object]

TESTED_IN_VLLM = "vLLM 0.32: its own module on these files computes the same states and logits"

ROTARY_TABLES = r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"
"""Computed tables that some trainers save; they follow from the rope settings."""


class AuxIdConvention(StrEnum):
    """What the id of a captured target layer means (r_i = the residual stream after i layers)."""

    boundary = "boundary"  # id i: the stream entering layer i, r_i
    output = "output"  # id j: the output of layer j, r_{j+1}


@dataclass(frozen=True, kw_only=True)
class AuxIdKey:
    """One key that may hold the layer ids. `is_settled`: only this producer writes it there, in this one convention."""

    section: str  # "" = top level of config.json
    key: str = "eagle_aux_hidden_state_layer_ids"
    convention: AuxIdConvention
    is_settled: bool = False
    boundary_with: str | None = None  # a flag of the same section that makes them boundary ids (unless the first is 1)
    because: str  # who writes or reads the key so; a clause

    @property
    def label(self) -> str:
        return f"{self.section}.{self.key}" if self.section else self.key


VLLM_IDS = AuxIdKey(section="", convention=AuxIdConvention.boundary, because="vLLM takes a top-level list so")
NESTED_IDS = AuxIdKey(
    section="eagle_config",
    convention=AuxIdConvention.output,
    because="SpecForge, TorchSpec and ModelOpt write layer outputs there",
)


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A value that this producer's files give otherwise than training may have used it. The files' value is kept, as
    engines keep it; its origin becomes uncertain and a finding says what else to try."""

    field: str  # of DrafterSpec
    code: str
    severity: str
    is_raised: Callable[[Config, DrafterSpec], bool]
    message: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Producer:
    """One producer's layout. The last group of fields is for people: docs/checkpoints.md is made of it."""

    name: str
    algorithm: str = "eagle3"  # a row of `algorithms.LAYOUTS`
    score: Callable[[Config, frozenset[str]], int]
    """(config, tensor names) -> 0 when it is not this producer's, else how sure: below 10 the names alone speak for it,
    10 config.json too, 20 and more a mark that only this producer leaves."""
    sections: tuple[str, ...]
    """Where settings stand in config.json, first wins; "" = top level."""
    aux_id_keys: tuple[AuxIdKey, ...]
    """Where layer ids may stand, first wins."""
    aliases: Mapping[str, str] | None = None
    """Setting -> this producer's own key for it."""
    renames: tuple[tuple[str, str], ...] = ((r"^midlayer\.", "layers.0."),)
    """(regular expression, replacement) from the file's tensor names to canonical ones, all applied in order."""
    harmless_tensors: tuple[str, ...] = (ROTARY_TABLES,)
    """Regular expressions of tensors in the file that the forward pass does not need."""
    norm_output_default: tuple[bool, str]
    """(value, whose default) when config.json has no `norm_output`."""
    norm_before_residual_default: tuple[bool, str]
    doubts: tuple[Doubt, ...] = ()

    title: str
    source: str  # what was read, with its version
    reads: str  # how its checkpoints are recognised
    assumed: tuple[str, ...] = ()
    tested: str  # beyond the tests that all producers share

    def canonical_name(self, name: str) -> str:
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def origin(self, config: Config) -> Origin:
        """How the checkpoint was recognised."""
        kind = config.get("speculators_model_type")
        said = f"architectures {list(architectures(config))}" if kind is None else f"speculators_model_type {kind!r}"
        return Origin(source=Source.file_key, detail=f"{said} and the tensors' names")

    def is_harmless(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.harmless_tensors)


def architectures(config: Config) -> tuple[str, ...]:
    """config.json's `architectures` (a list of strings or absent, see `choose_producer`)."""
    value = config.get("architectures")
    return tuple(str(v) for v in value) if isinstance(value, list) else ()


def has_layer(names: frozenset[str], prefix: str) -> bool:
    """Whether a layer stands under `prefix` ("midlayer.", "layers.") and nothing of a kind that is not read."""
    return any(n.startswith(prefix) for n in names) and not any(part in n for n in names for part in UNREAD_PARTS)
