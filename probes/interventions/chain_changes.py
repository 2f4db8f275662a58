"""Sensitivity: the same drafter, chained in another way. A gain here proves nothing by itself. No torch at import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.interventions.base import Intervention

if TYPE_CHECKING:
    from probes.interventions.acceptance import Counts
    from probes.interventions.finished_text import FinishedText


class ChainIntervention(Intervention):
    """Another chain of the drafter as it is (see `acceptance.ChainChange`)."""

    kind = "sensitivity"
    is_repair = False
    rescales_feedback = False
    hides_own_keys = False

    def count(self, on: FinishedText) -> Counts:
        from probes.interventions.acceptance import ChainChange

        return on.count(on.drafter.model, on.trace, on.slots, ChainChange(self.rescales_feedback, self.hides_own_keys))


class RescaledState(ChainIntervention):
    id = "rescale_state"
    changes = "gives each fed-back state the norm of the fused state at the chain's start"
    rescales_feedback = True


class HiddenOwnKeys(ChainIntervention):
    id = "hide_own_keys"
    changes = "hides the chain's earlier own slots from its queries (the query's own slot stays)"
    hides_own_keys = True


CHAIN: tuple[ChainIntervention, ...] = (RescaledState(), HiddenOwnKeys())
