"""All interventions, by id. No torch at import; `python -m probes.interventions.registry` prints docs/interventions.md.

To add one: a small class in the module of its kind, an entry in that module's tuple, and the docs printed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.errors import InputError
from probes.interventions.base import (
    ChainIntervention,
    EngineIntervention,
    Intervention,
    PathIntervention,
    TargetIntervention,
)
from probes.interventions.context import CONTEXT
from probes.interventions.template import TEMPLATE
from probes.interventions.vocabulary import VOCABULARY
from probes.interventions.wiring import WIRING

BASELINE = "baseline"
"""Id and kind of the rows that hold the drafter as it is: every gain is against them, but for REPLAYED."""
REPLAYED = "replayed_rounds"
"""Against the rounds that the run's own engine made."""


class RescaledState(ChainIntervention):
    id = "rescale_state"
    kind = "sensitivity"
    changes = "gives each fed-back state the norm of the fused state at the chain's start"
    rescales_feedback = True


class HiddenOwnKeys(ChainIntervention):
    id = "hide_own_keys"
    kind = "sensitivity"
    changes = "hides the chain's earlier own slots from its queries (the query's own slot stays)"
    hides_own_keys = True


class ReferenceTarget(TargetIntervention):
    id = "reference_target"
    kind = "target"
    changes = (
        "gives the drafter the reference target's states (and embedding and lm_head, where borrowed) on the same text"
    )


class ReplayedRounds(EngineIntervention):
    id = REPLAYED
    kind = "wiring"
    changes = (
        "drafts the rounds of a live or vLLM run again by replay: a true feature in every verified slot, this drafter's "
        "own feedback, positions and kernels"
    )


class _Patch(PathIntervention):
    kind = "path"

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


CHAIN: tuple[ChainIntervention, ...] = (RescaledState(), HiddenOwnKeys())
TARGET: tuple[TargetIntervention, ...] = (ReferenceTarget(),)
ENGINE: tuple[EngineIntervention, ...] = (ReplayedRounds(),)
PATHS: tuple[PathIntervention, ...] = (
    _Patch("fresh", keys=True, query=True, residual=True),
    _Patch("patch_keys", keys=True),
    _Patch("patch_query", query=True),
    _Patch("patch_attention", keys=True, query=True),
    _Patch("patch_residual", residual=True),
    _Patch("patch_state", query=True, residual=True),
)

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
