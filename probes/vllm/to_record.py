"""A finished request's rounds -> the records that every engine gives. No torch, no vLLM.

What an engine cannot see is None: probabilities, ranks, the true-feature pass and what is made from it. Rounds after the
end of the response and rounds that were never verified have the reason `unverified` and are on no walk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from probes.record import REGIONS, ConditionKey, RejectionReason, RoundBatch
from probes.vllm.requests import RequestRounds
from probes.vllm.rows import COUNTED

DEFAULT_LEVEL_REGIONS = ("own", "current", "sink", "response", "unknown")
"""Regions whose head mean level `default` stores; `unknown` is the rest: the prompt as a whole."""


def round_batch(
    rounds: RequestRounds,
    condition: ConditionKey,
    prompt_id: str,
    *,
    num_tokens: int,
    in_draft_vocab: np.ndarray,
    norm_output: bool,
) -> RoundBatch:
    """All rounds of a request, stored under this condition and prompt. `num_tokens` = L: prompt and response, without what
    the engine emitted past the stop.

    `in_draft_vocab` bool [vocab]; `norm_output`: the drafter feeds back the normed state.
    Raises ValueError when the engine emitted less than the response.
    """
    if len(rounds.token_ids) < num_tokens:
        raise ValueError(f"{num_tokens} tokens in the response, {len(rounds.token_ids)} recorded")
    rows, depth = rounds.rows, rounds.layout.depth
    start = rows["start"].astype(np.int32)
    is_counted = rounds.is_verified & (start < num_tokens - 2)
    accepted_drafts = np.where(is_counted, rounds.accepted_drafts, 0).astype(np.int32)
    num_drafts = np.where(is_counted, rounds.num_drafts, depth).astype(np.int32)
    accepted, target_token, reason = _labels(rounds, is_counted, accepted_drafts, num_drafts, in_draft_vocab)
    last = np.flatnonzero(is_counted)[-1:]
    trimmed = int(start[last[0]] + accepted_drafts[last[0]] + 1 - (num_tokens - 2)) if len(last) else None
    return RoundBatch(
        **condition._asdict(),
        prompt_id=prompt_id,
        engine="vllm",
        depth=depth,
        num_trimmed_tokens=trimmed,
        start=start,
        num_drafts=num_drafts,
        accepted_drafts=accepted_drafts,
        on_walk=is_counted,
        has_all_labels=is_counted,
        draft_us=rounds.draft_us,
        verify_us=rounds.verify_us,
        draft_token=rows["draft_token"].astype(np.int32),
        target_token=target_token,
        accepted=accepted,
        rejection_reason=reason,
        **_measured(rounds, norm_output),
    )


def _labels(
    rounds: RequestRounds,
    is_counted: np.ndarray,
    accepted_drafts: np.ndarray,
    num_drafts: np.ndarray,
    in_draft_vocab: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> (accepted int8, target_token int32, reason uint8), each [round, depth]."""
    k = np.arange(rounds.layout.depth)
    emitted = rounds.emitted[:, :-1]
    was_accepted = k < accepted_drafts[:, None]
    was_rejected = (k == accepted_drafts[:, None]) & (k < num_drafts[:, None]) & is_counted[:, None]
    has_label = was_accepted | was_rejected
    reason = np.full(emitted.shape, RejectionReason.not_reached, np.uint8)
    reason[was_accepted] = RejectionReason.none
    reason[was_rejected] = RejectionReason.disagreement
    reason[was_rejected & ~in_draft_vocab[np.maximum(emitted, 0)]] = RejectionReason.out_of_draft_vocab
    reason[(k >= num_drafts[:, None]) & is_counted[:, None]] = RejectionReason.limit
    reason[~is_counted] = RejectionReason.unverified
    accepted = np.where(was_accepted, 1, np.where(was_rejected, 0, -1)).astype(np.int8)
    return accepted, np.where(has_label, emitted, -1).astype(np.int32), reason


def _measured(rounds: RequestRounds, norm_output: bool) -> dict[str, Any]:
    """The columns of levels `default` and `heads`."""
    rows, layout = rounds.rows, rounds.layout
    if layout.level == "counts":
        return {}
    feedback = rows["hidden_feedback_norm"]
    hidden_in, hidden_out = np.full_like(rows["hidden_in_norm"], np.nan), np.full_like(rows["hidden_out_norm"], np.nan)
    hidden_in[:, 0, 0] = rows["hidden_in_norm"][:, 0, 0]
    hidden_in[:, 1:, 0] = feedback[:, :-1]
    hidden_out[:, :, -1] = rows["hidden_out_norm"][:, :, -1] if norm_output else feedback
    unmeasured = set(rounds.unmeasured) | ({"fusion_energy"} if "fusion_share" in rounds.unmeasured else set())
    columns: dict[str, Any] = {
        name: rows[name].copy() for name in layout.columns if name not in COUNTED and name not in unmeasured
    }
    columns |= {"hidden_in_norm": hidden_in, "hidden_out_norm": hidden_out}
    if "mass" in columns:
        names = REGIONS if layout.level == "heads" else DEFAULT_LEVEL_REGIONS
        columns["mass"] = {name: rows["mass"][..., REGIONS.index(name)].copy() for name in names}
    return columns


def vocabulary(offsets: np.ndarray | None, *, vocab_size: int, draft_vocab_size: int) -> np.ndarray:
    """bool [vocab]: what the drafter can say. `offsets` int [draft row]: target id - row (d2t); None without a map."""
    known = np.zeros(vocab_size, bool)
    rows = np.arange(draft_vocab_size)
    known[rows if offsets is None else rows + offsets] = True
    return known
