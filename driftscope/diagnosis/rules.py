"""The rules, but for drift: from the facts of a condition to verdicts with evidence. docs/verdicts.md has one row for each.

The principle: a cause is proven by changing one thing and measuring again; what is only measured is a sign, and said with
less confidence. Each rule is one function that returns its verdict, a reason why it could not be judged, or nothing.
Every number that a rule compares with is in driftscope/stats/thresholds.py; no rule knows a model, prompt or run by name.
"""

from __future__ import annotations

from driftscope.diagnosis.case import (
    FEEDBACK_WIRING,
    Case,
    Found,
    Outcome,
    backed_by_files,
    found,
    has_repairs,
    is_wiring,
    needs_interventions,
)
from driftscope.diagnosis.diagnosis import Evidence, NotJudged, VerdictId
from driftscope.diagnosis.evidence import (
    difference_evidence,
    file_evidence,
    gain_evidence,
    how,
    vocabulary_evidence,
)
from driftscope.diagnosis.facts import ConditionFacts, StateChange
from driftscope.diagnosis.gains import Gain
from driftscope.diagnosis.measures import (
    dense_difference,
    first_acceptance,
    out_of_vocab_share,
    second_depth,
    tokens_of,
    vocabulary_loss,
)
from driftscope.stats.thresholds import (
    COUNTED_MIN_GAIN_TOKENS,
    DEGENERATE_VERDICT_SHARE,
    DOUBTFUL_MAX_FIRST_ACCEPTANCE,
    FEEDBACK_MIN_SHARE_OF_FRESH,
    ROTATION_MAX_COSINE,
    ROTATION_MIN_GRAM_SIMILARITY,
    TARGET_MAX_NORM_CHANGE,
    TARGET_MIN_COSINE,
    TARGET_SAME_COSINE,
    TARGET_SAME_NORM_CHANGE,
    UNWIRED_MAX_FIRST_ACCEPTANCE,
    VERDICT_MIN_POSITIONS,
    VERDICT_MIN_TOKENS,
    VOCABULARY_GAP_MIN_SHARE,
)
from probes.interventions.registry import REPLAYED


def degenerate_text(case: Case) -> Outcome:
    facts = case.facts
    share = facts.num_degenerate / facts.num_prompts
    if share < DEGENERATE_VERDICT_SHARE:
        return None
    evidence = Evidence(
        name="degenerate_share",
        statement=f"{facts.num_degenerate} of {facts.num_prompts} prompts loop; every number is without them",
        value=share,
        threshold=DEGENERATE_VERDICT_SHARE,
    )
    remedy = "Loops are easy to draft and say nothing of real text: sample at T > 0, or use other prompts."
    return found(VerdictId.degenerate_text, "high", [evidence], remedy, 0.0, is_proven=True)


def wiring_fault(case: Case) -> Outcome:
    """A changed wiring gives acceptance back; else depth 1 is as bad as no trained drafter is."""
    facts = case.facts
    best = [g for g in facts.gains if g.is_repair and is_wiring(g, case)]
    errors = file_evidence(facts)
    if best:
        remedy = f"The drafter is not loaded as it was trained. `{best[0].id}` gives it back: {how(best[0].id)}."
        evidence = [*(gain_evidence(g) for g in best[:3]), *file_evidence(facts, best[:1])]
        return found(VerdictId.wiring_fault, "high", evidence, remedy, best[0].tokens, is_proven=True)
    backed = backed_by_files(facts)
    if backed is not None and is_wiring(backed, case):
        return _backed(VerdictId.wiring_fault, backed, facts)
    first = first_acceptance(facts)
    base = case.reference if case.reference is not None else facts
    base_first = first_acceptance(base)
    limit = DOUBTFUL_MAX_FIRST_ACCEPTANCE if errors else UNWIRED_MAX_FIRST_ACCEPTANCE
    is_default = case.is_own_reference or case.reference is not None
    if first is not None and base_first is not None and max(first, base_first) < limit and is_default:
        evidence = [
            Evidence(
                name="acceptance_conditional[1]",
                statement=f"{first:.3f} of the first drafts are accepted, {base_first:.3f} in the reference condition",
                value=first,
                threshold=limit,
            ),
            *errors,
        ]
        remedy = "Depth 1 reads true features only, so the fault is in what is read or how: run `driftscope check`."
        return found(
            VerdictId.wiring_fault, "medium" if errors else "low", evidence, remedy, VERDICT_MIN_TOKENS, is_proven=False
        )
    return None if has_repairs(facts) else needs_interventions(VerdictId.wiring_fault)


def feedback_fault(case: Case) -> Outcome:
    """What is fed back is not what the drafter was trained on: a repair, or a collapse at depth 2."""
    facts = case.facts
    best = [g for g in facts.gains if g.is_repair and g.id.startswith(FEEDBACK_WIRING)]
    if best:
        near = [g for g in best if best[0].tokens - g.tokens < COUNTED_MIN_GAIN_TOKENS]
        either = " or ".join(f"`{g.id}` ({how(g.id)})" for g in near)
        remedy = f"Set the flag as in training: {either} gives acceptance back."
        if best[0].id == REPLAYED:
            remedy = (
                "The checkpoint is sound, the engine that made these rounds is not: look at how it refreshes draft keys "
                "after verification, at what it feeds back, at positions and at the attention kernel."
            )
        evidence = [*(gain_evidence(g) for g in best), *file_evidence(facts, best[:1])]
        return found(VerdictId.feedback_fault, "high", evidence, remedy, best[0].tokens, is_proven=True)
    backed = backed_by_files(facts)
    if backed is not None and backed.id.startswith(FEEDBACK_WIRING):
        return _backed(VerdictId.feedback_fault, backed, facts)
    depth_2 = second_depth(facts)
    if depth_2 is None or depth_2.num_positions < VERDICT_MIN_POSITIONS:
        return None
    shortfall = depth_2.shortfall
    if shortfall.estimate is None or shortfall.estimate <= 0 or not shortfall.is_above_zero:
        return None
    collapse = Evidence(
        name="acceptance_conditional[2]",
        statement=f"{depth_2.conditional:.3f} of the second drafts are right where the first was, with true features "
        f"{depth_2.fresh:.3f} would be",
        value=depth_2.conditional,
        threshold=FEEDBACK_MIN_SHARE_OF_FRESH * depth_2.fresh,
    )
    remedy = "Depth 2 is the first that reads a fed-back state: check norm_output, the draft KV slots and positions."
    lost = tokens_of(depth_2.fresh) - tokens_of(depth_2.conditional)
    return found(VerdictId.feedback_fault, "medium", [collapse], remedy, lost, is_proven=False)


def _backed(id: VerdictId, gain: Gain, facts: ConditionFacts) -> Found:
    remedy = (
        f"The files say what is wrong, and `{gain.id}` gains most of all that was tried ({how(gain.id)}); more prompts "
        "would make it certain."
    )
    evidence = [gain_evidence(gain), *file_evidence(facts, [gain])]
    return found(id, "medium", evidence, remedy, gain.tokens, is_proven=True)


def vocabulary_gap(case: Case) -> Outcome:
    """Emitted tokens that the draft vocabulary does not hold."""
    loss, share = vocabulary_loss(case.facts), out_of_vocab_share(case.facts)
    if share is None or share < VOCABULARY_GAP_MIN_SHARE:
        return None  # every cut vocabulary costs something: `healthy` says how much
    repair = next((g for g in case.facts.gains if g.id == "full_draft_vocab"), None)
    is_repaired = repair is not None and repair.is_repair
    is_measured = (loss.estimate or 0.0) >= VERDICT_MIN_TOKENS and loss.is_above_zero
    if not is_repaired and not is_measured:
        return None
    evidence = [
        vocabulary_evidence(case.facts, loss),
        Evidence(
            name="out_of_draft_vocab_share",
            statement=f"{share:.1%} of the emitted tokens cannot be drafted",
            value=share,
            threshold=VOCABULARY_GAP_MIN_SHARE,
        ),
    ]
    if repair is not None:
        evidence.append(gain_evidence(repair))
    remedy = (
        "Train with a draft vocabulary counted on text like this (`driftscope check --prompts` lists what is missing)."
    )
    size = repair.tokens if repair is not None and is_repaired else loss.estimate
    confidence = "high" if is_repaired else "medium"
    return found(VerdictId.vocabulary_gap, confidence, evidence, remedy, size, is_proven=is_repaired)


def template_shift(case: Case) -> Outcome:
    """The reference prompt gives acceptance back."""
    facts = case.facts
    if facts.key[1:3] == ("default", "default"):
        return None
    tried = [g for g in facts.gains if g.kind == "template"]
    best = [g for g in tried if g.is_repair]
    if best:
        remedy = "Train the drafter with this system prompt or template too, or serve it with the one it knows."
        evidence = [gain_evidence(g) for g in best]
        return found(VerdictId.template_shift, "high", evidence, remedy, best[0].tokens, is_proven=True)
    return None if tried else needs_interventions(VerdictId.template_shift)


def context_limit(case: Case) -> Outcome:
    """Good on short text, bad with a document before it."""
    facts = case.facts
    if not facts.key[3]:
        return None
    repairs = [g for g in facts.gains if g.kind == "context" and g.is_repair and not is_wiring(g, case)]
    lost = dense_difference(case.without_document, facts) if case.without_document is not None else None
    is_lost = lost is not None and (lost.estimate or 0.0) >= VERDICT_MIN_TOKENS and lost.is_above_zero
    if not repairs and not is_lost:
        is_unknown = case.without_document is None
        detail = "the run has no condition with this system prompt and template at context 0"
        return NotJudged(id=VerdictId.context_limit, reason="needs_reference", detail=detail) if is_unknown else None
    evidence = []
    if lost is not None:
        evidence.append(
            difference_evidence(
                "tokens_per_round",
                f"{lost.estimate or 0.0:+.2f} {facts.basis} tokens per round without the document, over the same "
                f"{lost.num_prompts} prompts",
                lost,
            )
        )
    evidence += [gain_evidence(g) for g in repairs[:3]]
    if repairs:
        remedy = f"`{repairs[0].id}` gives acceptance back at this length: {how(repairs[0].id)}."
    else:
        remedy = "Train the drafter on texts of this length; `driftscope advise` says which depth still pays."
    size = max([(lost.estimate or 0.0) if lost else 0.0, *(g.tokens for g in repairs)])
    confidence = "high" if repairs else "medium"
    return found(VerdictId.context_limit, confidence, evidence, remedy, size, is_proven=bool(repairs))


def target_changed(case: Case) -> Outcome:
    """The reference target's states give acceptance back, or this target's states are no longer those."""
    facts = case.facts
    swap = next((g for g in facts.gains if g.id == "reference_target"), None)
    if swap is None and not facts.state_changes:
        detail = "give the target that the drafter was trained for: --reference-target"
        return NotJudged(id=VerdictId.target_changed, reason="needs_reference", detail=detail)
    is_repaired = swap is not None and swap.is_repair
    worst = min(facts.state_changes, key=lambda s: s.cosine - abs(s.norm_ratio - 1), default=None)
    is_other = _differs(worst, TARGET_MIN_COSINE, TARGET_MAX_NORM_CHANGE)
    is_changed = _differs(worst, TARGET_SAME_COSINE, TARGET_SAME_NORM_CHANGE)
    if not is_repaired and not is_changed:
        return None
    evidence = [gain_evidence(swap)] if swap is not None else []
    remedy = "Train or fine-tune the drafter on this target's own states and texts."
    if worst is not None:
        is_rotated = worst.cosine < ROTATION_MAX_COSINE and worst.gram_similarity >= ROTATION_MIN_GRAM_SIMILARITY
        what = "the same states in a rotated basis" if is_rotated else "other states" if is_other else "changed states"
        if is_rotated:
            remedy = "Rotate fc's input slices (and the embedding and lm_head, where borrowed) as the target was."
        evidence.append(
            Evidence(
                name="cosine",
                statement=f"layer {worst.aux_layer_id}: cosine {worst.cosine:.3f}, norm ratio {worst.norm_ratio:.3f}, "
                f"similarity of inner products {worst.gram_similarity:.3f} with the reference target: {what}",
                value=worst.cosine,
                threshold=TARGET_MIN_COSINE if is_other else TARGET_SAME_COSINE,
            )
        )
    if not is_repaired and not is_other:
        remedy = (
            f"The target is not the reference any more, at a cost below {VERDICT_MIN_TOKENS} here: nothing to do yet."
        )
    size = swap.tokens if swap is not None else 0.0
    confidence = "high" if is_repaired else "medium" if is_other else "low"
    return found(VerdictId.target_changed, confidence, evidence, remedy, size, is_proven=is_repaired)


def _differs(change: StateChange | None, min_cosine: float, max_norm_change: float) -> bool:
    return change is not None and (change.cosine < min_cosine or abs(change.norm_ratio - 1) > max_norm_change)
