"""Rounds and tokens of every prompt's walk at each K' up to the recorded K.

A smaller K' changes where rounds start. In a replay every start has its chain, and a chain's first K' drafts do not
depend on K: accepted = min(accepted, K'), and the walk is made again from the first start. That is exact. Elsewhere only
the starts of the walk at K are known; the same cut over those is an approximation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from driftscope.runs import Run
from driftscope.runs.schema import CONDITION
from driftscope.runs.views import BATCH_KEY
from probes.record import ConditionKey

PromptKey = tuple[str, str]  # prompt_id, sha256 of its messages


@dataclass(frozen=True)
class PromptWalks:
    """One prompt: int64 [depth], index 0 is K' = 1."""

    num_rounds: np.ndarray
    num_tokens: np.ndarray  # accepted drafts and the bonus token, past the end too
    num_accepted_at: np.ndarray  # of the walk at K: rounds accepted through each depth
    num_drafted_at: np.ndarray
    is_exact: bool

    @property
    def depth(self) -> int:
        """K."""
        return len(self.num_rounds)


@dataclass(frozen=True, kw_only=True)
class ConditionWalks:
    """A condition's prompts, degenerate ones left out."""

    key: ConditionKey
    prompts: Mapping[PromptKey, PromptWalks]
    num_degenerate: int


_LISTS = ("start", "num_drafts", "accepted", "on_walk")


def condition_walks(run: Run) -> list[ConditionWalks]:
    """In the order in which conditions were measured; those without a walk have no prompts.

    Raises RunError for a part that cannot be read.
    """
    table = run.query(
        f"select {BATCH_KEY}, any_value(messages_sha256) as sha256, any_value(batches.num_depths) as depth, "
        "bool_and(rounds.engine = 'replay') as is_replay, any_value(is_degenerate) as is_degenerate, "
        "list(start order by start, round_id) as start, list(num_drafts order by start, round_id) as num_drafts, "
        "list(accepted_drafts order by start, round_id) as accepted, list(on_walk order by start, round_id) as on_walk "
        f"from rounds join batches using ({BATCH_KEY}) group by {BATCH_KEY} order by min(round_id)"
    )
    prompts: dict[ConditionKey, dict[PromptKey, PromptWalks]] = {}
    num_degenerate: dict[ConditionKey, int] = {}
    for [batch] in (table.slice(number, 1).to_batches() for number in range(table.num_rows)):
        row = {name: batch[name][0].as_py() for name in batch.schema.names if name not in _LISTS}
        key = ConditionKey(*(row[name] for name in CONDITION))
        of_condition = prompts.setdefault(key, {})
        num_degenerate[key] = num_degenerate.get(key, 0) + row["is_degenerate"]
        start, num_drafts, accepted, on_walk = (batch[name].flatten().to_numpy(zero_copy_only=False) for name in _LISTS)
        if row["is_degenerate"] or not on_walk.any():
            continue
        is_dense = row["is_replay"] and bool(np.all(np.diff(start) == 1))
        of_condition[row["prompt_id"], row["sha256"] or ""] = walks_of(
            num_drafts, accepted, on_walk, depth=row["depth"], is_dense=is_dense
        )
    return [ConditionWalks(key=key, prompts=p, num_degenerate=num_degenerate[key]) for key, p in prompts.items()]


def walks_of(
    num_drafts: np.ndarray, accepted: np.ndarray, on_walk: np.ndarray, *, depth: int, is_dense: bool
) -> PromptWalks:
    """One prompt's rounds in the order of their starts, all [round]. `is_dense`: every position is a start, one apart."""
    rounds, tokens = np.zeros(depth, np.int64), np.zeros(depth, np.int64)
    for k in range(1, depth + 1):
        cut = np.minimum(accepted, k)
        if is_dense:
            place, end = int(np.argmax(on_walk)), len(cut)
            while place < end:
                rounds[k - 1] += 1
                tokens[k - 1] += cut[place] + 1
                place += int(cut[place]) + 1
        else:
            rounds[k - 1] = on_walk.sum()
            tokens[k - 1] = (cut[on_walk] + 1).sum()
    depths = np.arange(1, depth + 1)
    return PromptWalks(
        num_rounds=rounds,
        num_tokens=tokens,
        num_accepted_at=(accepted[on_walk, None] >= depths).sum(axis=0),
        num_drafted_at=(num_drafts[on_walk, None] >= depths).sum(axis=0),
        is_exact=is_dense,
    )
