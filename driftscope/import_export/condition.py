"""The rounds of one condition as other tools count them: every round of the walk, whether it had K drafts or fewer.

Knows no format. Degenerate responses are left out, as in every headline of driftscope, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.runs import Run
from driftscope.runs.schema import CONDITION
from driftscope.runs.views import BATCH_KEY
from probes.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which conditions of a run; None: whatever there is."""

    drafter: str | None = None
    system_prompt: str | None = None
    template: str | None = None
    context_tokens: int | None = None

    def where(self) -> str:
        """As SQL over columns of these names; "true" when everything is asked for."""
        terms = [f"{name} = {_literal(value)}" for name in CONDITION if (value := getattr(self, name)) is not None]
        return " and ".join(terms) or "true"


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Rounds of one condition. Arrays are [group]: equal rounds of one prompt, `num_rounds` of them."""

    drafter: str
    system_prompt: str
    template: str
    context_tokens: int
    depth: int  # K
    prompt: np.ndarray  # number of the prompt, from 0
    category: np.ndarray  # of that prompt, str or None
    num_drafts: np.ndarray
    accepted_drafts: np.ndarray
    num_rounds: np.ndarray
    num_degenerate: int  # prompts left out

    def accepted_at(self, groups: np.ndarray | slice = slice(None)) -> list[int]:
        """Rounds that accepted depth 1, 2 .. K, of all rounds or of some groups."""
        accepted, weight = self.accepted_drafts[groups], self.num_rounds[groups]
        return [int(weight[accepted >= k].sum()) for k in range(1, self.depth + 1)]

    def tokens_per_round(self, groups: np.ndarray | slice = slice(None)) -> float:
        """Pooled, the bonus token included."""
        weight = self.num_rounds[groups]
        return 1.0 + float((self.accepted_drafts[groups] * weight).sum() / weight.sum())

    def tokens_per_round_prompt_mean(self, groups: np.ndarray | slice = slice(None)) -> float:
        """Every prompt weighs the same."""
        prompt, weight = self.prompt[groups], self.num_rounds[groups]
        accepted = np.bincount(prompt, self.accepted_drafts[groups] * weight)
        rounds = np.bincount(prompt, weight)
        return 1.0 + float(np.mean(accepted[rounds > 0] / rounds[rounds > 0]))


def walk_of(run: Run, selection: Selection) -> Walk:
    """The one condition that is selected. Raises InputError when there is none, several, or one without a walk."""
    found = run.query(
        f"select distinct {', '.join(CONDITION)} from rounds where {selection.where()} order by all"
    ).to_pylist()
    if len(found) != 1:
        names = "; ".join(" / ".join(str(value) for value in row.values()) for row in found[:6])
        raise InputError(
            f"{len(found)} conditions match ({names}): the format holds one" if found else "no condition matches",
            code="several_conditions" if found else "no_such_condition",
            where=str(run.path),
            remedy="choose one with --drafter, --system-prompt, --template and --context-tokens",
        )
    [condition] = found
    table = run.query(
        "select prompt_id, any_value(category) as category, num_drafts, accepted_drafts, count(*) as num_rounds, "
        "max(rounds.num_depths) as depth, any_value(is_degenerate) as is_degenerate "
        f"from rounds join batches using ({BATCH_KEY}) "
        f"where on_walk and {selection.where()} group by prompt_id, num_drafts, accepted_drafts order by all"
    )
    if not table.num_rows:
        raise InputError(
            "the condition has no walk: its text was not written by this target",
            code="no_walk",
            where=str(run.path),
            remedy="let the target answer (a prompt file without answers), or export tables",
        )
    columns = {name: np.array(table[name].to_pylist(), dtype=object) for name in table.column_names}
    is_degenerate = columns["is_degenerate"].astype(bool)
    num_degenerate = len(set(columns["prompt_id"][is_degenerate]))
    if is_degenerate.all():
        raise InputError(
            "every response of the condition is degenerate: its acceptance means nothing",
            code="degenerate_text",
            where=str(run.path),
            remedy="look at the responses first",
        )
    kept = {name: column[~is_degenerate] for name, column in columns.items()}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(kept["prompt_id"]))}
    return Walk(
        **condition,
        depth=int(kept["depth"].max()),
        prompt=np.array([numbers[name] for name in kept["prompt_id"]]),
        category=kept["category"],
        num_drafts=kept["num_drafts"].astype(np.int64),
        accepted_drafts=kept["accepted_drafts"].astype(np.int64),
        num_rounds=kept["num_rounds"].astype(np.int64),
        num_degenerate=num_degenerate,
    )


def categories(walk: Walk) -> Sequence[str]:
    """The prompts' categories, in order of appearance; none where no prompt has one."""
    return [name for name in dict.fromkeys(walk.category) if name is not None]


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
