"""What an intervention is: an id, a kind, one sentence on what it changes, and where it applies. No torch at import.

Knows no single intervention (`registry`) and not how chains are run (`acceptance`, `run`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from probes.checkpoint.spec import DrafterSpec
from probes.conditions import Cell, PromptInput

if TYPE_CHECKING:
    from torch import Tensor

    from probes.drafter.model import Drafter

KINDS = ("wiring", "vocabulary", "template", "context", "target", "sensitivity", "path")
PROOF_KINDS = ("wiring", "vocabulary", "template", "context", "target")
"""A gain of these is a repair and may count as proof; of `sensitivity` and `path` it never is one by itself."""


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """What an intervention may know of the target."""

    num_layers: int
    hidden_size: int
    config: Mapping[str, Any]  # its text config
    embedding: Tensor | None = None  # [vocab, hidden]
    lm_head: Tensor | None = None  # [vocab, hidden]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a drafter is made of. `tensors` by canonical name, the embedding, lm_head and d2t in use always there."""

    spec: DrafterSpec
    tensors: Mapping[str, Tensor]


class Intervention:
    """Base of all. `changes` completes "this intervention ..." for docs/interventions.md."""

    id: str
    kind: str
    changes: str

    def __repr__(self) -> str:
        return self.id


class DrafterIntervention(Intervention):
    """Another drafter on the same text and target states: override `spec`, `tensors` or `build`."""

    keeps_slots = False  # keys and values of true-feature slots stay as they are, so their cache can be shared
    window: int | None = None  # changes nothing in texts of at most so many slots

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        """Whether this would change anything, as far as the spec tells."""
        raise NotImplementedError

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        """The spec after the change."""
        return spec

    def tensors(self, parts: Parts, target: TargetFacts) -> Mapping[str, Tensor]:
        """The tensors after the change; those that the new spec does not need are dropped."""
        return parts.tensors

    def build(self, parts: Parts, target: TargetFacts) -> Drafter | None:
        """The changed drafter; None where the tensors show that there is nothing to change."""
        from probes.drafter.algorithms import algorithm_of

        spec = self.spec(parts.spec, target)
        return load(algorithm_of(spec), spec, self.tensors(parts, target))


class TextIntervention(Intervention):
    """Another prompt for the same user turn, answered anew by the target: paired with the original by prompt."""

    keeps_head: bool = False  # only the tokens between the last turn and the answer are taken from the new prompt

    def applies(self, cell: Cell, prompts: Sequence[PromptInput], template_text: str) -> bool:
        """Whether this changes a prompt of the condition. `template_text`: the chat template in use, "" for none."""
        raise NotImplementedError

    def rewrite(self, cell: Cell, prompt: PromptInput) -> tuple[Cell, PromptInput]:
        """The condition and the prompt after the change."""
        raise NotImplementedError


class ChainIntervention(Intervention):
    """The same drafter, chained in another way (see `acceptance.ChainChange`)."""

    rescales_feedback: bool = False
    hides_own_keys: bool = False

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        """Every drafter feeds a state back."""
        return True


class PathIntervention(Intervention):
    """Patches true-feature values into the paths named, at one depth (see `paths`)."""

    patches_keys: bool = False
    patches_query: bool = False
    patches_residual: bool = False

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        """Every drafter has these paths."""
        return True


class TargetIntervention(Intervention):
    """The reference target's states (and what the drafter borrows of it) on this target's text."""

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        """Wherever a reference target is given."""
        return True


class EngineIntervention(Intervention):
    """The run's own rounds, drafted again by replay: for engines other than replay itself."""

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        """Whatever the drafter."""
        return True


def load(kind: type[Drafter], spec: DrafterSpec, tensors: Mapping[str, Tensor]) -> Drafter:
    """A drafter of this spec: gains that a switched-on norm lacks are 1, what is not needed is dropped."""
    from probes.checkpoint.layout import expected_shapes

    some = tensors["norm.weight"]
    spec = replace(spec, has_own_embedding=True, has_own_lm_head=True)  # both are in `tensors`, whoever owns them
    state = {
        name: some.new_ones(shape) if name not in tensors and "norm" in name else tensors[name]
        for name, shape in expected_shapes(spec).items()
    }
    return kind.load(spec, state, dtype=some.dtype, device=some.device)
