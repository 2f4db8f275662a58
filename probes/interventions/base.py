"""The parts of an intervention: id, kind, one sentence on what it changes, where it applies, how it counts. No torch.

A kind is a file with a class of its own (`changed_drafter`, `chain_changes`, `path_patches`, `template`, ...): it says how
its interventions count. Knows no single intervention (`registry`) and not how texts are walked (`run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from probes.checkpoint.spec import DrafterSpec
from probes.conditions import PromptCondition, PromptInput
from probes.interventions.parts import TargetFacts

if TYPE_CHECKING:
    from probes.interventions.acceptance import Counts
    from probes.interventions.finished_text import DrafterVariants, FinishedText


Kind = TypeVar("Kind", bound="Intervention")


class Intervention:
    """Base of all. `changes` completes "this intervention ..." for docs/interventions.md."""

    id: str
    kind: str
    changes: str
    is_repair = True  # a gain may count as proof of a cause
    needs_reference = False  # there is nothing to count without a reference target
    needs_engine_rounds = False  # there is nothing to count where the run itself is a replay
    swaps_suffix = False  # of a rewritten prompt only the tokens between the last turn and the answer are taken

    def __repr__(self) -> str:
        return self.id

    def suits(self, engine: str, *, has_reference: bool) -> bool:
        """Whether a run of this engine brings along what the intervention needs."""
        return (has_reference or not self.needs_reference) and (engine != "replay" or not self.needs_engine_rounds)

    def applies(self, spec: DrafterSpec, target: TargetFacts) -> bool:
        """Whether it changes anything of a drafter on the texts as they are, as far as the spec tells."""
        return True

    def has_effect(self, on: DrafterVariants) -> bool:
        """Whether it changes anything of this drafter: `applies`, and what the tensors tell."""
        return self.applies(on.spec, on.facts)

    def spec(self, spec: DrafterSpec, target: TargetFacts) -> DrafterSpec:
        """The drafter's spec after the change."""
        return spec

    def count(self, on: FinishedText) -> Counts | None:
        """What it counts on a text as it is; None where it has nothing to say about this one."""
        return None

    @classmethod
    def count_each(cls: type[Kind], these: Sequence[Kind], on: FinishedText) -> Iterator[tuple[Kind, Counts]]:
        """Several of one class. A class whose interventions share work does it once here."""
        for intervention in these:
            counts = intervention.count(on)
            if counts is not None:
                yield intervention, counts

    def rewrites(self, condition: PromptCondition, prompts: Sequence[PromptInput], template_text: str) -> bool:
        """Whether it gives a prompt of the condition another text, which the target answers anew. `template_text`: the
        chat template in use, "" for none."""
        return False

    def rewrite(self, condition: PromptCondition, prompt: PromptInput) -> tuple[PromptCondition, PromptInput]:
        """The condition and the prompt after the change, where it `rewrites`."""
        return condition, prompt
