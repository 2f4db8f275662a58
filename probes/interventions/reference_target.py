"""Target: the reference target's states, and what the drafter borrows of it, on this target's text. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from probes.interventions.base import Intervention

if TYPE_CHECKING:
    from probes.interventions.acceptance import Counts
    from probes.interventions.finished_text import FinishedText


class ReferenceTarget(Intervention):
    id = "reference_target"
    kind = "target"
    changes = (
        "gives the drafter the reference target's states (and embedding and lm_head, where borrowed) on the same text"
    )
    needs_reference = True

    def count(self, on: FinishedText) -> Counts | None:
        if on.reference is None:
            return None
        drafter = on.drafter.beside_reference
        trace = replace(on.trace, aux=on.reference.trace.aux)
        return on.count(drafter, trace, on.reference.reader.prefix_slots(drafter))


TARGET: tuple[Intervention, ...] = (ReferenceTarget(),)
