"""From drafter steps to rounds: what was drafted, what the target said, and everything recorded at (round, depth).

Shared by replay and live, which differ only in where the chains start. Knows nothing of how the text was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.attention.masses import recent_masses
from probes.attention.slots import SLOT_REGIONS
from probes.chain import SlotCache, StepOutput, concat_aux, step
from probes.drafter.model import Drafter
from probes.errors import SelfCheckError
from probes.record import NUM_CANDIDATES, REGIONS, PromptRecord, RejectionReason, RoundBatch
from probes.target import TIE_LOGIT_GAP, TargetTrace
from probes.target_attention import TargetMasses, compared_masses, jensen_shannon

LABEL_BLOCK_ROUNDS = 256
"""Rounds whose full-vocabulary target rows are looked at together (bounds memory, changes nothing)."""


@dataclass(frozen=True)
class Drafted:
    """One depth of R chains: the greedy drafts, and the step's measurements with rounds as first axis."""

    row: Int[Tensor, "round"]  # of the draft vocabulary
    token: Int[Tensor, "round"]  # target id
    probability: Float[Tensor, "round draft_vocab"]  # softmax of the raw draft logits
    logit_gap: Float[Tensor, "round"]  # between the two best
    columns: dict[str, Tensor]  # name -> [round, ...]

    @classmethod
    def from_step(cls, drafter: Drafter, output: StepOutput) -> Drafted:
        logits = output.logits.float()
        probability = logits.softmax(-1)
        best = logits.topk(min(NUM_CANDIDATES, logits.shape[-1]), dim=-1)
        row = best.indices[:, 0]
        columns = {
            name: getattr(output, name)
            for name in (
                "hidden_in_norm",
                "hidden_out_norm",
                "hidden_feedback_norm",
                "branch_norm_attn",
                "branch_norm_mlp",
                "input_share_embed",
            )
        }
        columns |= {  # [round, layer, head, ...]
            name: torch.stack([getattr(m, name) for m in output.masses], dim=1)
            for name in ("region", "current", "own", "entropy")
        }
        columns["draft_top_token"] = drafter.to_target_ids(best.indices)
        columns["draft_top_prob"] = probability.gather(1, best.indices).half()
        return cls(row, drafter.to_target_ids(row), probability, best.values[:, 0] - best.values[:, 1], columns)

    def take(self, rows: Int[Tensor, "round"] | slice) -> Drafted:
        columns = {name: value[rows] for name, value in self.columns.items()}
        return Drafted(self.row[rows], self.token[rows], self.probability[rows], self.logit_gap[rows], columns)

    @staticmethod
    def concat(parts: Sequence[Drafted]) -> Drafted:
        return Drafted(
            *(torch.cat([getattr(p, name) for p in parts]) for name in ("row", "token", "probability", "logit_gap")),
            {name: torch.cat([p.columns[name] for p in parts]) for name in parts[0].columns},
        )


@dataclass(frozen=True)
class Fresh:
    """Depth 1 with true features at the slots first, first+1, ...: every start, and what later depths compare with."""

    first: int
    output: StepOutput
    drafted: Drafted
    recent: Float[Tensor, "slot depth layer head"]  # mass on the k-1 slots up to this one


def fresh_pass(
    drafter: Drafter,
    trace: TargetTrace,
    cache: SlotCache,
    one_hot: Float[Tensor, "slot region"],
    *,
    first: int,
    last: int,
    depth: int,
) -> Fresh:
    """Depth 1 at the slots first .. last; `cache` holds at least these slots."""
    fused = drafter.fuse(concat_aux(drafter, trace.aux, first, last + 1))
    output = step(drafter, cache, one_hot, trace.token_ids[first + 1 : last + 2], fused, start=first)
    slots = torch.arange(first, last + 1, device=trace.token_ids.device)
    recent = [
        recent_masses(
            output.queries[i],
            cache.k[i],
            slots,
            output.masses[i].lse,
            scale=layer.head_dim**-0.5,
            window=layer.window,
            depth=depth,
        )
        for i, layer in enumerate(drafter.layers)
    ]
    return Fresh(first, output, Drafted.from_step(drafter, output), torch.stack(recent, dim=2))


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

    def all_before(flag: Tensor) -> Tensor:
        shifted = torch.cat([torch.ones_like(flag[:, :1]), flag[:, :-1]], dim=1)
        return shifted.long().cumprod(dim=1).bool()

    has_label = exists & all_before(exists & (token == text) & agrees)
    accepted = has_label & (token == expected)
    is_rejected = has_label & ~accepted
    was_rejected = ~all_before(~is_rejected)
    in_vocab = torch.zeros(drafter.spec.vocab_size, dtype=torch.bool, device=starts.device)
    in_vocab[drafter.target_ids()] = True
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
        follows_text=exists & all_before(exists & (token == text)),
        has_all_labels=exists[:, -1] & all_before(agrees)[:, -1],
    )


def target_view(
    drafter: Drafter, trace: TargetTrace, starts: Int[Tensor, "round"], drafts: list[Drafted], labels: Labels
) -> dict[str, np.ndarray]:
    """-> the columns of `RoundBatch` that compare with the target's probabilities, by name; NaN / -1 unlabelled.

    p: after temperature when T > 0, else softmax of the raw logits; q is 0 outside the draft vocabulary.
    """
    shape, device = labels.has_label.shape, starts.device
    num_candidates = min(NUM_CANDIDATES, trace.logits.shape[-1])
    probability = torch.full(shape, torch.nan, device=device)
    overlap = torch.full(shape, torch.nan, device=device)
    rank = torch.full(shape, -1, dtype=torch.int32, device=device)
    top_token = torch.full((*shape, num_candidates), -1, dtype=torch.int32, device=device)
    top_prob = torch.full((*shape, num_candidates), torch.nan, device=device)
    ids = drafter.target_ids()
    labelled = labels.has_label.T.nonzero()[:, 1].split(labels.has_label.sum(dim=0).tolist())  # rounds, by depth
    for k, (drafted, rows) in enumerate(zip(drafts, labelled, strict=True)):
        for block in rows.split(LABEL_BLOCK_ROUNDS):
            logits = trace.logits[starts[block] + k + 1 - (trace.num_prompt_tokens - 1)].float()
            if trace.temperature > 0:
                logits = logits / trace.temperature
            of_draft = logits.gather(1, drafted.token[block, None])
            lse = logits.logsumexp(dim=-1, keepdim=True)
            probability[block, k] = (of_draft - lse).exp()[:, 0]
            rank[block, k] = (logits > of_draft).sum(dim=-1, dtype=torch.int32)
            p = (logits[:, ids] - lse).exp()
            overlap[block, k] = torch.minimum(p, drafted.probability[block]).sum(dim=-1)
            best = logits.topk(num_candidates, dim=-1)
            top_token[block, k] = best.indices.int()
            top_prob[block, k] = (best.values - lse).exp().half().float()
    return {
        "target_prob_of_draft": probability.cpu().numpy(),
        "target_rank_of_draft": rank.cpu().numpy(),
        "overlap": overlap.cpu().numpy(),
        "target_top_token": top_token.cpu().numpy(),
        "target_top_prob": top_prob.cpu().numpy(),
    }


def walk(starts: np.ndarray, accepted_drafts: np.ndarray, num_tokens: int) -> tuple[np.ndarray, int]:
    """The rounds an engine would make, t -> t + accepted + 1 until t >= L-2 -> (on_walk [round], trimmed tokens).

    `starts` is contiguous; `num_tokens` = L, prompt and response.
    """
    on_walk = np.zeros(len(starts), bool)
    t = int(starts[0]) if len(starts) else num_tokens - 2
    while t < num_tokens - 2:
        index = t - int(starts[0])
        on_walk[index] = True
        t += int(accepted_drafts[index]) + 1
    return on_walk, t - (num_tokens - 2)


def record_rounds(
    drafter: Drafter,
    trace: TargetTrace,
    prompt: PromptRecord,
    starts: Int[Tensor, "round"],
    drafts: list[Drafted],
    fresh: Fresh,
    *,
    name: str,
    engine: str,
    target_attention: TargetMasses | None = None,
    draft_us: np.ndarray | None = None,
    verify_us: np.ndarray | None = None,
) -> RoundBatch:
    """All columns of these rounds. Raises SelfCheckError when masses do not sum to 1."""
    depth, num_rounds = len(drafts), len(starts)
    labels = label(drafter, trace, starts, torch.stack([d.token for d in drafts], dim=1))
    accepted_drafts = labels.accepted.sum(dim=1).cpu().numpy().astype(np.int32)
    start_list = starts.cpu().numpy().astype(np.int32)
    num_text_tokens = trace.num_prompt_tokens + trace.num_response_tokens
    if engine == "live":
        on_walk = np.ones(num_rounds, bool)
        trimmed: int | None = len(trace.token_ids) - num_text_tokens
        has_all_labels = np.ones(num_rounds, bool)
    elif trace.is_forced:
        on_walk, trimmed = np.zeros(num_rounds, bool), None
        has_all_labels = labels.has_all_labels.cpu().numpy()
    else:
        on_walk, trimmed = walk(start_list, accepted_drafts, num_text_tokens)
        if num_rounds and start_list[0] > trace.num_prompt_tokens - 1:
            trimmed = None  # a walk over the last tokens alone does not make the whole response
        has_all_labels = labels.has_all_labels.cpu().numpy()

    def over_depth(name: str) -> Tensor:
        return torch.stack([d.columns[name] for d in drafts], dim=1)

    region, own, current = over_depth("region"), over_depth("own"), over_depth("current")
    mass = {"own": own, "current": current, "learned_sink": torch.zeros_like(own)}
    mass |= {region_name: region[..., i] for i, region_name in enumerate(SLOT_REGIONS)}
    total = sum(mass.values())
    if num_rounds and not bool(((total - 1).abs() < 1e-3).all()):
        raise SelfCheckError(
            f"attention masses sum to {float(total.min()):.5f} .. {float(total.max()):.5f} instead of 1",
            code="masses_do_not_sum_to_one",
            where=f"drafter {name}, prompt {prompt.prompt_id}",
            remedy="this is a defect of the attention kernel or of driftscope: please report it with this checkpoint",
        )
    # the true-feature query at slot t+k-1; beyond the text there is none
    slot = starts[:, None] + torch.arange(depth, device=starts.device) - fresh.first
    has_fresh = slot < len(fresh.drafted.row)
    slot = slot.clamp_max(len(fresh.drafted.row) - 1)
    depth_index = torch.arange(depth, device=starts.device).expand_as(slot)

    def where_fresh(value: Tensor) -> Tensor:
        return torch.where(has_fresh.view(*has_fresh.shape, *(1 for _ in value.shape[2:])), value, torch.nan)

    recent = where_fresh(fresh.recent[slot, depth_index])
    fresh_sink = where_fresh(fresh.drafted.columns["region"][slot][..., 0])
    fresh_token = torch.where(has_fresh, fresh.drafted.token[slot], -1)
    next_position = starts[:, None] + torch.arange(2, depth + 2, device=starts.device)
    has_next = next_position < len(trace.token_ids)
    text_token = trace.token_ids[next_position.clamp_max(len(trace.token_ids) - 1)]
    fresh_right = torch.where(has_fresh & has_next, (fresh_token == text_token).long(), -1)

    shares = drafter.shares(
        torch.stack([concat_aux(drafter, trace.aux, t, t + 1)[0] for t in start_list.tolist()])
        if num_rounds
        else concat_aux(drafter, trace.aux, 0, 0)
    )
    draft_prob = torch.stack([d.probability.gather(1, d.row[:, None])[:, 0] for d in drafts], dim=1)
    entropy = torch.stack([torch.special.entr(d.probability).sum(dim=-1) for d in drafts], dim=1)
    was_reached = labels.reason != RejectionReason.not_reached
    is_tie = torch.stack([d.logit_gap for d in drafts], dim=1) < TIE_LOGIT_GAP
    return RoundBatch(
        drafter=name,
        prompt_id=prompt.prompt_id,
        system_prompt=prompt.system_prompt,
        template=prompt.template,
        context_tokens=prompt.context_tokens,
        engine=engine,
        depth=depth,
        num_trimmed_tokens=trimmed,
        num_ties=int((is_tie & was_reached).sum()) + trace.num_ties,
        start=start_list,
        num_drafts=np.full(num_rounds, depth, np.int32),
        accepted_drafts=accepted_drafts,
        on_walk=on_walk,
        has_all_labels=has_all_labels,
        draft_us=draft_us,
        verify_us=verify_us,
        fusion_share=_float(shares.share),
        fusion_share_bias=_float(shares.share_bias),
        fusion_energy=_float(shares.energy),
        aux_norm=_float(shares.aux_norm),
        draft_token=torch.stack([d.token for d in drafts], dim=1).cpu().numpy().astype(np.int32),
        draft_prob=_float(draft_prob),
        draft_entropy=_float(entropy),
        target_token=labels.expected.cpu().numpy().astype(np.int32),
        **target_view(drafter, trace, starts, drafts, labels),
        draft_top_token=over_depth("draft_top_token").cpu().numpy().astype(np.int32),
        draft_top_prob=_float(over_depth("draft_top_prob")),
        accepted=torch.where(labels.has_label, labels.accepted.long(), -1).cpu().numpy().astype(np.int8),
        rejection_reason=labels.reason.cpu().numpy().astype(np.uint8),
        fresh_token=fresh_token.cpu().numpy().astype(np.int32),
        fresh_right=fresh_right.cpu().numpy().astype(np.int8),
        hidden_feedback_norm=_float(over_depth("hidden_feedback_norm")),
        input_share_embed=_float(over_depth("input_share_embed")),
        hidden_in_norm=_float(over_depth("hidden_in_norm")),
        hidden_out_norm=_float(over_depth("hidden_out_norm")),
        branch_norm_attn=_float(over_depth("branch_norm_attn")),
        branch_norm_mlp=_float(over_depth("branch_norm_mlp")),
        target_divergence=None
        if target_attention is None
        else target_divergence(drafter, trace, starts, labels, region, own + current, target_attention),
        mass={name: _float(mass[name]) for name in REGIONS},
        recent_mass=_float(recent),
        own_excess=_float(own - recent),
        sink_deficit=_float(fresh_sink - region[..., 0]),
        attention_entropy=_float(over_depth("entropy")),
    )


def target_divergence(
    drafter: Drafter,
    trace: TargetTrace,
    starts: Int[Tensor, "round"],
    labels: Labels,
    region: Float[Tensor, "round depth layer head region"],
    own_and_current: Float[Tensor, "round depth layer head"],
    target: TargetMasses,
) -> np.ndarray:
    """[round, depth, aux + 1] bits, see `RoundBatch.target_divergence`; the drafter's layers and heads are averaged."""
    ours = compared_masses(region.mean(dim=(2, 3)), own_and_current.mean(dim=(2, 3)))
    depth = region.shape[1]
    index = starts[:, None] + torch.arange(1, depth + 1, device=starts.device) - (trace.num_prompt_tokens - 1)
    columns = []
    for theirs in [*(target.by_layer.get(i - 1) for i in drafter.spec.aux_layer_ids), target.full_mean]:
        if theirs is None:
            columns.append(torch.full(index.shape, torch.nan, device=index.device))
        else:
            divergence = jensen_shannon(ours, theirs[index.clamp_max(len(theirs) - 1)])
            columns.append(torch.where(labels.follows_text, divergence, torch.nan))
    return torch.stack(columns, dim=-1).cpu().numpy()


def _float(value: Tensor | None) -> np.ndarray | None:
    return None if value is None else value.float().cpu().numpy()
