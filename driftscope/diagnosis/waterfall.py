"""The loss waterfall: each round's lost drafts K - A go whole to the first cause.

docs/architecture.md#loss-waterfall has the order. An attribution over the walk, not the gain of a repair: `LOSS_NAMES`
keeps the two apart for readers. The parts' means add up to K + 1 - tokens_per_round of the same rounds exactly. Rounds that
end past the text or unverified have no cause: they are left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftscope.runs import BatchKey, Run

PARTS = (
    "limit",  # fewer drafts were allowed, and all of them accepted
    "out_of_draft_vocab",  # the emitted token cannot be drafted
    "grammar",
    "sampled_out",  # T > 0: the draft was the target's most probable token
    "hard_token",  # depth 1, or true features would have been wrong too
    "chain_decay",  # true features would have been right
    "hard_token_or_chain_decay",  # beyond depth 1 without a fresh pass
    "unattributed",  # the engine gave no reason
)
LOSS_NAMES = {
    "limit": "lost to the draft limit",
    "out_of_draft_vocab": "lost to vocabulary",
    "grammar": "lost to the grammar",
    "sampled_out": "lost to sampling",
    "hard_token": "lost to hard tokens",
    "chain_decay": "lost to chain decay",
    "hard_token_or_chain_decay": "lost to hard tokens or chain decay",
    "unattributed": "lost, no reason known",
}
"""What a reader is shown of each part. A loss is never called a gain or a cost: all drafts that a round lost go to its
first cause, most of which no repair gives back. What a repair gives is a *gain*, estimated or measured."""
_BY_REASON = {"out_of_draft_vocab": 1, "grammar": 2, "sampled_out": 3}
_LEFT_OUT_REASONS = ("past_end", "unverified")
LEFT_OUT = -1
NO_LOSS = -2


@dataclass(frozen=True)
class Waterfall:
    """Sums by prompt; a mean over any prompts is a sum of these."""

    loss: np.ndarray  # float64 [prompt, part]: lost drafts
    num_rounds: np.ndarray  # int [prompt], those left out not counted


def part_of_rounds(
    depth: np.ndarray, num_drafts: np.ndarray, accepted: np.ndarray, reason: np.ndarray, fresh_right: np.ndarray
) -> np.ndarray:
    """Index into PARTS for each round, LEFT_OUT, or NO_LOSS where all K drafts were accepted. All [round].

    `reason` (a RejectionReason's name, None without) and `fresh_right` (1, 0, -1 unmeasured) are those at depth A + 1.
    """
    part = np.full(len(accepted), PARTS.index("hard_token"), dtype=np.int64)
    is_later = accepted > 0
    part[is_later & (fresh_right == 1)] = PARTS.index("chain_decay")
    part[is_later & (fresh_right < 0)] = PARTS.index("hard_token_or_chain_decay")
    is_unknown = np.array([r is None or r in ("none", "not_reached", "limit") for r in reason], dtype=bool)
    part[is_unknown] = PARTS.index("unattributed")
    for name, index in _BY_REASON.items():
        part[reason == name] = index
    for name in _LEFT_OUT_REASONS:
        part[reason == name] = LEFT_OUT
    is_all = accepted == num_drafts
    part[is_all & (num_drafts < depth)] = PARTS.index("limit")
    part[accepted == depth] = NO_LOSS
    return part


def waterfalls(run: Run) -> dict[BatchKey, Waterfall]:
    """Each batch's own (one prompt): arrays of length 1. Only rounds on the walk."""
    key = ", ".join(f"r.{name}" for name in BatchKey._fields)
    table = run.query(
        f"select {key}, r.num_depths, r.num_drafts, r.accepted_drafts, d.rejection_reason, d.fresh_right, "
        "count(*) as num_rounds from rounds r left join depths d on r.round_id = d.round_id and d.layer = 0 "
        "and d.depth = r.accepted_drafts + 1 where r.on_walk group by all order by min(r.round_id)"
    )
    if not table.num_rows:
        return {}
    columns = {name: table[name].to_pylist() for name in table.column_names}
    keys = [BatchKey(*k) for k in zip(*(columns[name] for name in BatchKey._fields), strict=True)]
    depth, num_drafts, accepted, num_rounds = (
        np.array(columns[n]) for n in ("num_depths", "num_drafts", "accepted_drafts", "num_rounds")
    )
    reason = np.array(columns["rejection_reason"], dtype=object)
    fresh = np.array([-1 if value is None else value for value in columns["fresh_right"]])
    part = part_of_rounds(depth, num_drafts, accepted, reason, fresh)
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    rows = np.array([index[key] for key in keys])
    total = collect(part, rows, depth=depth, accepted=accepted, num_prompts=len(index), num_rounds=num_rounds)
    return {
        key: Waterfall(*(getattr(total, name)[i : i + 1] for name in Waterfall.__dataclass_fields__))
        for key, i in index.items()
    }


def collect(
    part: np.ndarray,
    prompt: np.ndarray,
    *,
    depth: np.ndarray,
    accepted: np.ndarray,
    num_prompts: int,
    num_rounds: np.ndarray | None = None,
) -> Waterfall:
    """Sums rounds by prompt. `part` as `part_of_rounds` gives it, `prompt` 0..num_prompts-1, all [round];
    `num_rounds`: how many equal rounds each entry stands for (1 when None)."""
    weight = np.ones(len(part), np.int64) if num_rounds is None else num_rounds
    is_kept = part != LEFT_OUT
    loss = np.zeros((num_prompts, len(PARTS)))
    has_loss = part >= 0
    np.add.at(loss, (prompt[has_loss], part[has_loss]), ((depth - accepted) * weight)[has_loss])

    kept_rounds = np.bincount(prompt[is_kept], weight[is_kept], num_prompts)
    return Waterfall(loss=loss, num_rounds=kept_rounds.astype(np.int64))


def mean_parts(waterfall: Waterfall) -> dict[str, float]:
    """Tokens lost in an average walk round by part; empty without rounds. Rare parts are left out when 0."""
    num_rounds = int(waterfall.num_rounds.sum())
    if not num_rounds:
        return {}
    mean = waterfall.loss.sum(axis=0) / num_rounds
    return {
        name: float(value)
        for name, value in zip(PARTS, mean, strict=True)
        if value or name not in ("hard_token_or_chain_decay", "unattributed")
    }


def join(parts: list[Waterfall]) -> Waterfall:
    """Several prompts' as one."""
    return Waterfall(*(np.concatenate([getattr(p, n) for p in parts]) for n in Waterfall.__dataclass_fields__))
