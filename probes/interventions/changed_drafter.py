"""Another drafter on the same text and target states: the kind of `wiring`, `vocabulary` and `context`. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from probes.interventions.base import Intervention
from probes.interventions.parts import Parts, TargetFacts, load

if TYPE_CHECKING:
    from torch import Tensor

    from probes.drafter.model import Drafter
    from probes.interventions.acceptance import Counts
    from probes.interventions.finished_text import DrafterVariants, FinishedText


class DrafterIntervention(Intervention):
    """Override `applies`, and `spec`, `tensors` or `build`."""

    keeps_slots = False  # keys and values of true-feature slots stay as they are, so their cache can be shared

    def tensors(self, parts: Parts, target: TargetFacts) -> Mapping[str, Tensor]:
        """The tensors after the change; those that the new spec does not need are dropped."""
        return parts.tensors

    def build(self, parts: Parts, target: TargetFacts) -> Drafter | None:
        """The changed drafter; None where the tensors show that there is nothing to change."""
        from probes.drafter.algorithms import algorithm_of

        spec = self.spec(parts.spec, target)
        return load(algorithm_of(spec), spec, self.tensors(parts, target))

    def has_effect(self, on: DrafterVariants) -> bool:
        return super().has_effect(on) and on.changed(self.id, self.build) is not None

    def count(self, on: FinishedText) -> Counts | None:
        drafter = on.drafter.changed(self.id, self.build)
        if drafter is None:
            return None
        return on.count(drafter, on.trace, on.slots if self.keeps_slots else on.reader.prefix_slots(drafter))
