"""How a chain is drafted and fed back: one module an algorithm, one row here. `probes.drafter.model.Drafter` is what each
must answer; `probes.checkpoint.algorithms` has the row on its files. Knows no layer's inside.
"""

from __future__ import annotations

from probes.checkpoint.spec import DrafterSpec
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter

ALGORITHMS: dict[str, type[Drafter]] = {"eagle3": Eagle3}


def algorithm_of(spec: DrafterSpec) -> type[Drafter]:
    """The class of this spec's drafters, to be made by its `load`."""
    return ALGORITHMS[spec.algorithm]
