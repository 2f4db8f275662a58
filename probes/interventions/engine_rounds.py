"""Engine: the run's own rounds, drafted again by replay, for engines other than replay itself. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.interventions.base import Intervention

if TYPE_CHECKING:
    from probes.interventions.acceptance import Counts
    from probes.interventions.finished_text import FinishedText

REPLAYED = "replayed_rounds"
"""Compared with the rounds that the run's own engine made; all others with the baseline."""


class ReplayedRounds(Intervention):
    id = REPLAYED
    kind = "wiring"
    changes = (
        "drafts the rounds of a live or vLLM run again by replay: a true feature in every verified slot, this drafter's "
        "own feedback, positions and kernels"
    )
    needs_engine_rounds = True

    def count(self, on: FinishedText) -> Counts | None:
        return None if on.record.is_forced else on.baseline.walk().beside(on.baseline)


ENGINE: tuple[Intervention, ...] = (ReplayedRounds(),)
