"""From drafter steps to rounds: what was drafted, what the target said, and everything recorded at (round, depth).

Shared by replay and live, which differ only in where the chains start. Knows nothing of how the text was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from probes.attention.slots import SLOT_REGIONS
from probes.chain.drafted import STEP_COLUMNS, Drafted, Fresh
from probes.chain.target_columns import target_columns
from probes.drafter.model import Drafter
from probes.errors import SelfCheckError
from probes.record import REGIONS, PromptRecord, RejectionReason, RoundBatch
from probes.target.attention import TargetMasses, compared_masses, jensen_shannon
from probes.target.trace import TIE_LOGIT_GAP, TargetTrace

MASS_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Labels:
    """What the target said of each draft, [round, depth]."""

    expected: Int[Tensor, "round depth"]  # the emitted token; -1 without a label
    has_label: Bool[Tensor, "round depth"]  # the target has seen this very prefix and its choice is known
    accepted: Bool[Tensor, "round depth"]
    reason: Int[Tensor, "round depth"]
    follows_text: Bool[Tensor, "round depth"]  # the drafts before this depth equal the text
    has_all_labels: Bool[Tensor, "round"]  # K labels exist for this start, whatever is drafted


def label(
    drafter: Drafter, trace: TargetTrace, starts: Int[Tensor, "round"], token: Int[Tensor, "round depth"]
) -> Labels:
    """Acceptance of deterministic drafts under standard rejection sampling: a draft is accepted exactly when it equals the
    emitted token. In forced text the target's argmax stands for it, up to the first position where the text differs.
    `token`: the drafts, target ids.
    """
    depth, num_tokens = token.shape[1], len(trace.token_ids)
    position = starts[:, None] + torch.arange(1, depth + 1, device=starts.device)  # the target's, predicts position + 1
    exists = position + 1 < num_tokens
    at = position.clamp_max(num_tokens - 2)
    text = trace.token_ids[at + 1]
    index = at - (trace.num_prompt_tokens - 1)
    best = trace.choices.best[index] if trace.is_forced or trace.temperature > 0 else text
    expected = best if trace.is_forced else text
    agrees = (text == expected) & exists

    is_text = (token == text) & exists

    def all_before(flag: Bool[Tensor, "*round depth"]) -> Bool[Tensor, "*round depth"]:
        shifted = torch.cat([torch.ones_like(flag[..., :1]), flag[..., :-1]], dim=-1)
        return shifted.cumprod(dim=-1).bool()

    may_be_labelled, follows_text, agrees_so_far = all_before(torch.stack([is_text & agrees, is_text, agrees]))
    has_label = exists & may_be_labelled
    accepted = has_label & (token == expected)
    is_rejected = has_label & ~accepted
    was_rejected = ~all_before(~is_rejected)
    in_vocab = torch.zeros(drafter.spec.vocab_size, dtype=torch.bool, device=starts.device)
    in_vocab.index_fill_(0, drafter.target_ids(), True)
    reason = torch.full_like(token, RejectionReason.past_end)
    reason[was_rejected] = RejectionReason.not_reached
    reason[accepted] = RejectionReason.none
    reason[is_rejected] = RejectionReason.disagreement
    if trace.temperature > 0:
        reason[is_rejected & (token == best)] = RejectionReason.sampled_out
    reason[is_rejected & ~in_vocab[expected]] = RejectionReason.out_of_draft_vocab
    return Labels(
        expected=torch.where(has_label, expected, -1),
        has_label=has_label,
        accepted=accepted,
        reason=reason,
        follows_text=exists & follows_text,
        has_all_labels=exists[:, -1] & agrees_so_far[:, -1],
    )


def walk(starts: np.ndarray, accepted_drafts: np.ndarray, num_tokens: int) -> tuple[np.ndarray, int]:
    """The rounds an engine would make, t -> t + accepted + 1 until t >= L-2 -> (on_walk [round], trimmed tokens).

    `starts` is contiguous; `num_tokens` = L, prompt and response.
    """
    on_walk = np.zeros(len(starts), bool)
    first = t = int(starts[0]) if len(starts) else num_tokens - 2
    accepted = accepted_drafts.tolist()
    while t < num_tokens - 2:
        on_walk[t - first] = True
        t += accepted[t - first] + 1
    return on_walk, t - (num_tokens - 2)


def measure_rounds(
    drafter: Drafter,
    trace: TargetTrace,
    starts: Int[Tensor, "round"],
    span: tuple[int, int],
    drafts: list[Drafted],
    fresh: Fresh,
    *,
    is_greedy: bool = True,
    target_attention: TargetMasses | None = None,
) -> dict[str, Tensor]:
    """The rounds' columns, each [round, ...], by `RoundBatch`'s names (`mass/REGION` but for `learned_sink`, which no
    drafter has; `is_tie` [round, depth]; `mass_sum` [round, 2]: the least and the largest sum of a head's masses).

    `span`: the first and the last start, known to the host. Nothing here waits for the device. Of drafts that were drawn
    (`is_greedy` False) none is a tie, and whether the fresh argmax is right says nothing about them: null.
    """
    # 1) what was drafted, and what the target says of it
    labels = label(drafter, trace, starts, torch.stack([d.token for d in drafts], dim=1))
    columns: dict[str, Tensor | None] = {
        "accepted_drafts": labels.accepted.sum(dim=1, dtype=torch.int32),
        "has_all_labels": labels.has_all_labels,
        "accepted": torch.where(labels.has_label, labels.accepted.to(torch.int8), -1),
        "rejection_reason": labels.reason.to(torch.uint8),
        "target_token": labels.expected.int(),
        **target_columns(drafter, trace, starts, span, drafts, labels.has_label),
        **_draft_columns(drafter, drafts, labels, is_greedy),
    }
    # 2) what the drafter read: the target's states at the start, and where it looked at each depth
    columns |= drafter.feature_columns(drafter.features(trace.aux, starts))
    mass, own = _over_depth(drafts, "mass"), _over_depth(drafts, "own")  # [round, depth, layer, head, ...]
    by_region = mass.permute(4, 0, 1, 2, 3).contiguous()  # [region and current, round, depth, layer, head]
    columns |= {f"mass/{name}": values for name, values in zip((*SLOT_REGIONS, "current"), by_region, strict=True)}
    columns |= {"mass/own": own, "attention_entropy": _over_depth(drafts, "entropy")}
    columns["mass_sum"] = torch.stack((mass.sum(dim=-1) + own).flatten(1).aminmax(dim=1), dim=1)
    # 3) what it would have drafted and where looked with true features at the same slots
    columns |= _fresh_columns(trace, starts, fresh, by_region[0], own, is_greedy)
    # 4) where the target looked
    if target_attention is not None:
        divergence = target_divergence(drafter, trace, starts, labels, mass, own, target_attention)
        columns["target_divergence"] = divergence
    return {
        name: value.float() if value.is_floating_point() else value
        for name, value in columns.items()
        if value is not None
    }


def _over_depth(drafts: list[Drafted], name: str) -> Shaped[Tensor, "round depth ..."]:
    """A column of every depth's step."""
    values = [d.columns[name] for d in drafts]
    # one axis behind the round's: with more of them torch copies depth by depth
    return torch.stack([v.reshape(len(v), -1) for v in values], dim=1).view(-1, len(drafts), *values[0].shape[1:])


def _draft_columns(drafter: Drafter, drafts: list[Drafted], labels: Labels, is_greedy: bool) -> dict[str, Tensor]:
    """The drafts and their probabilities, and what their steps measured beside attention."""
    lse = torch.stack([d.lse for d in drafts], dim=1)  # [round, depth]
    gap = torch.stack([d.logit_gap for d in drafts], dim=1)
    return {
        "draft_token": torch.stack([d.token for d in drafts], dim=1).int(),
        "draft_prob": (_over_depth(drafts, "draft_logit") - lse).exp(),
        "draft_entropy": _over_depth(drafts, "draft_entropy"),
        "draft_top_token": drafter.to_target_ids(_over_depth(drafts, "top_id")).int(),
        "draft_top_prob": (_over_depth(drafts, "top") - lse[..., None]).exp().half(),
        "is_tie": (gap < TIE_LOGIT_GAP) & is_greedy & (labels.reason != RejectionReason.not_reached),
        **{name: _over_depth(drafts, name) for name in STEP_COLUMNS if name in drafts[0].columns},
    }


def _fresh_columns(
    trace: TargetTrace,
    starts: Int[Tensor, "round"],
    fresh: Fresh,
    sink: Float[Tensor, "round depth layer head"],
    own: Float[Tensor, "round depth layer head"],
    is_greedy: bool,
) -> dict[str, Tensor]:
    """Depth k beside the true-feature query at the same slot t+k-1; beyond the text there is none."""
    depth = own.shape[1]
    slot = starts[:, None] + torch.arange(depth, device=starts.device) - fresh.first  # [round, depth]
    has_fresh = slot < len(fresh.drafted.row)
    slot = slot.clamp_max(len(fresh.drafted.row) - 1)

    def where_fresh(value: Float[Tensor, "round depth layer head"]) -> Float[Tensor, "round depth layer head"]:
        return torch.where(has_fresh[..., None, None], value, torch.nan)

    recent = where_fresh(fresh.recent[slot, torch.arange(depth, device=starts.device).expand_as(slot)])
    fresh_sink = where_fresh(fresh.drafted.columns["mass"][..., 0][slot])
    token = torch.where(has_fresh, fresh.drafted.token[slot], -1)
    next_position = starts[:, None] + torch.arange(2, depth + 2, device=starts.device)
    has_next = next_position < len(trace.token_ids)
    text_token = trace.token_ids[next_position.clamp_max(len(trace.token_ids) - 1)]
    return {
        "recent_mass": recent,
        "own_excess": own - recent,
        "sink_deficit": fresh_sink - sink,
        "fresh_token": token.int(),
        "fresh_right": torch.where(has_fresh & has_next & is_greedy, (token == text_token).to(torch.int8), -1),
    }


def record_rounds(
    columns: Mapping[str, np.ndarray],
    starts: np.ndarray,
    trace: TargetTrace,
    prompt: PromptRecord,
    *,
    name: str,
    engine: str,
    draft_us: np.ndarray | None = None,
    verify_us: np.ndarray | None = None,
) -> RoundBatch:
    """The record of `measure_rounds`' columns, all of a prompt. Raises SelfCheckError when masses do not sum to 1."""
    columns = dict(columns)
    num_rounds, depth = columns["draft_token"].shape
    accepted_drafts = columns.pop("accepted_drafts")
    has_all_labels = columns.pop("has_all_labels")
    num_text_tokens = trace.num_prompt_tokens + trace.num_response_tokens
    if engine == "live":
        on_walk, has_all_labels = np.ones(num_rounds, bool), np.ones(num_rounds, bool)
        trimmed: int | None = len(trace.token_ids) - num_text_tokens
    elif trace.is_forced:
        on_walk, trimmed = np.zeros(num_rounds, bool), None
    else:
        on_walk, trimmed = walk(starts, accepted_drafts, num_text_tokens)
        if num_rounds and starts[0] > trace.num_prompt_tokens - 1:
            trimmed = None  # a walk over the last tokens alone does not make the whole response
    no_mass = np.zeros(columns["mass/own"].shape, np.float32)
    mass = {region: columns.pop(f"mass/{region}", no_mass) for region in REGIONS}
    mass_sum = columns.pop("mass_sum")
    if num_rounds and not (np.abs(mass_sum - 1) < MASS_SUM_TOLERANCE).all():
        raise SelfCheckError(
            f"attention masses sum to {mass_sum.min():.5f} .. {mass_sum.max():.5f} instead of 1",
            code="masses_do_not_sum_to_one",
            where=f"drafter {name}, prompt {prompt.prompt_id}",
            remedy="this is a defect of the attention kernel or of driftscope: please report it with this checkpoint",
        )
    return RoundBatch(
        drafter=name,
        prompt_id=prompt.prompt_id,
        system_prompt=prompt.system_prompt,
        template=prompt.template,
        context_tokens=prompt.context_tokens,
        engine=engine,
        depth=depth,
        num_trimmed_tokens=trimmed,
        num_ties=int(columns.pop("is_tie").sum()) + trace.num_ties,
        start=starts.astype(np.int32),
        num_drafts=np.full(num_rounds, depth, np.int32),
        accepted_drafts=accepted_drafts,
        on_walk=on_walk,
        has_all_labels=has_all_labels,
        draft_us=draft_us,
        verify_us=verify_us,
        mass=mass,
        **columns,
    )


def target_divergence(
    drafter: Drafter,
    trace: TargetTrace,
    starts: Int[Tensor, "round"],
    labels: Labels,
    mass: Float[Tensor, "round depth layer head _"],
    own: Float[Tensor, "round depth layer head"],
    target: TargetMasses,
) -> Tensor:
    """[round, depth, aux + 1] bits, see `RoundBatch.target_divergence`; the drafter's layers and heads are averaged."""
    mean = mass.mean(dim=(2, 3))
    ours = compared_masses(mean[..., :-1], mean[..., -1] + own.mean(dim=(2, 3)))
    depth = mass.shape[1]
    index = starts[:, None] + torch.arange(1, depth + 1, device=starts.device) - (trace.num_prompt_tokens - 1)
    columns = []
    for theirs in [*(target.by_layer.get(i - 1) for i in drafter.boundary_ids(drafter.spec)), target.full_mean]:
        if theirs is None:
            columns.append(torch.full(index.shape, torch.nan, device=index.device))
        else:
            divergence = jensen_shannon(ours, theirs[index.clamp_max(len(theirs) - 1)])
            columns.append(torch.where(labels.follows_text, divergence, torch.nan))
    return torch.stack(columns, dim=-1)
