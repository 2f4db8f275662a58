"""Paths: true-feature values in some of a step's paths, at one depth (`paths` does the arithmetic). No torch at import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from probes.interventions.base import Intervention

if TYPE_CHECKING:
    from probes.interventions.acceptance import Counts
    from probes.interventions.finished_text import FinishedText


class PathIntervention(Intervention):
    """Every drafter has these paths. All patches of a text share its chain."""

    kind = "path"
    is_repair = False

    def __init__(self, id: str, *, keys: bool = False, query: bool = False, residual: bool = False) -> None:
        self.id = id
        self.patches_keys, self.patches_query, self.patches_residual = keys, query, residual
        named = [
            name
            for name, is_patched in (
                ("own-chain keys and values", keys),
                ("the query", query),
                ("the residual", residual),
            )
            if is_patched
        ]
        self.changes = f"at one depth, takes the true-feature value of {', '.join(named)}"

    @classmethod
    def count_each(
        cls, these: Sequence[PathIntervention], on: FinishedText
    ) -> Iterator[tuple[PathIntervention, Counts]]:
        from probes.interventions.paths import patch_paths

        job = on.job
        counts = patch_paths(
            on.drafter.model, on.trace, these, depth=job.depth, cache=on.slots, last_tokens=job.last_tokens
        )
        for patch in these:
            yield patch, counts.under(patch.id)


PATHS: tuple[PathIntervention, ...] = (
    PathIntervention("fresh", keys=True, query=True, residual=True),
    PathIntervention("patch_keys", keys=True),
    PathIntervention("patch_query", query=True),
    PathIntervention("patch_attention", keys=True, query=True),
    PathIntervention("patch_residual", residual=True),
    PathIntervention("patch_state", query=True, residual=True),
)
