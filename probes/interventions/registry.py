"""All interventions, by id. No torch at import; `python -m probes.interventions.registry` prints docs/interventions.md.

To add one: a small class in the module of its kind, an entry in that module's tuple, and the docs printed again. A new kind
is a file with a subclass of `Intervention` and a row in ALL.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.errors import InputError
from probes.interventions.base import Intervention
from probes.interventions.chain_changes import CHAIN
from probes.interventions.context import CONTEXT
from probes.interventions.engine_rounds import ENGINE, REPLAYED
from probes.interventions.path_patches import PATHS
from probes.interventions.reference_target import TARGET
from probes.interventions.template import TEMPLATE
from probes.interventions.vocabulary import VOCABULARY
from probes.interventions.wiring import WIRING

__all__ = ["ALL", "BASELINE", "BY_ID", "PROOF_KINDS", "REPLAYED", "TARGET", "documentation", "select"]

BASELINE = "baseline"
"""Id and kind of the rows that hold the drafter as it is: every gain is against them, but for REPLAYED."""

ALL: tuple[Intervention, ...] = (
    *PATHS,
    *ENGINE,
    *WIRING,
    *VOCABULARY,
    *CONTEXT,
    *TEMPLATE,
    *TARGET,
    *CHAIN,
)
BY_ID = {intervention.id: intervention for intervention in ALL}
assert len(BY_ID) == len(ALL)
PROOF_KINDS = frozenset(i.kind for i in ALL if i.is_repair)
"""A gain of these is a repair and may count as proof; of the others it never is one by itself."""


def select(names: Sequence[str]) -> tuple[Intervention, ...]:
    """The interventions that `--interventions` names: ("all",), ("none",) or ids. Raises InputError for an unknown id."""
    if list(names) == ["all"]:
        return ALL
    if list(names) == ["none"]:
        return ()
    unknown = [name for name in names if name not in BY_ID]
    if unknown:
        raise InputError(
            f"there is no intervention {unknown[0]!r}",
            code="unknown_intervention",
            where="--interventions",
            remedy=f"all, none, or of: {', '.join(BY_ID)}",
        )
    return tuple(i for i in ALL if i.id in names)


def documentation() -> str:
    """docs/interventions.md."""
    lines = [
        "# Interventions",
        "",
        "One change to one thing, then the same chains again. Printed from the registry by",
        "`python -m probes.interventions.registry > docs/interventions.md`; a test keeps the two equal.",
        "",
        "Gains are in dense tokens_per_round, paired by prompt. Only the kinds wiring, vocabulary, template, context and",
        "target can count as proof of a cause; sensitivity never does (a head trained without the change is expected to",
        "suffer from it), and path patches say where a loss is carried, one depth at a time. An intervention that would",
        "change nothing (a flag that is set already) is not run. `template` ones rewrite the text: the target answers",
        "anew. `reference_target` needs `--reference-target`. `replayed_rounds` is compared with the run's own rounds.",
        "",
        "| id | kind | what it does |",
        "|---|---|---|",
        *(f"| `{i.id}` | {i.kind} | {i.changes} |" for i in ALL),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(documentation(), end="")
