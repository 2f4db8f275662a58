"""The rules: from the facts of a condition to verdicts with evidence. docs/verdicts.md has one row for each.

The principle: a cause is proven by changing one thing and measuring again; what is only measured is a sign, and said with
less confidence. Each rule is one function that returns its verdict, a reason why it could not be judged, or nothing.
Every number that a rule compares with is in driftscope/stats/thresholds.py; no rule knows a model, prompt or run by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from driftscope.diagnosis import drift
from driftscope.diagnosis.evidence import gain_evidence, how, verdict, vocabulary_evidence
from driftscope.diagnosis.facts import ConditionFacts, RunFacts
from driftscope.diagnosis.gains import Gain
from driftscope.diagnosis.measures import (
    dense_difference,
    first_acceptance,
    out_of_vocab_share,
    second_depth,
    tokens_of,
    vocabulary_loss,
)
from driftscope.diagnosis.models import Evidence, NotJudged, Verdict, VerdictId
from driftscope.stats.thresholds import (
    DEGENERATE_VERDICT_SHARE,
    DOUBTFUL_MAX_FIRST_ACCEPTANCE,
    FEEDBACK_MIN_SHARE_OF_FRESH,
    INTERVAL_MIN_PROMPTS,
    ROTATION_MIN_GRAM_SIMILARITY,
    TARGET_MIN_COSINE,
    UNWIRED_MAX_FIRST_ACCEPTANCE,
    VERDICT_MIN_POSITIONS,
    VERDICT_MIN_ROUNDS,
    VERDICT_MIN_TOKENS,
    VOCABULARY_GAP_MIN_SHARE,
)
from probes.interventions.base import PROOF_KINDS

FEEDBACK_WIRING = ("norm_output_", "norm_before_residual_")
"""Wiring that decides what is fed back; its repair proves a feedback_fault, that of any other a wiring_fault."""


@dataclass(frozen=True)
class Case:
    """One condition with what it is compared with; None where there is no such condition."""

    facts: ConditionFacts
    reference: ConditionFacts | None  # --reference RUN's same condition, else this run's reference condition
    without_document: ConditionFacts | None  # the same system prompt and template at context 0
    is_own_reference: bool  # this is the reference condition and there is no other


@dataclass(frozen=True)
class Found:
    """A verdict and how many tokens per round it is about: what changing one thing gave back, or was measured lost."""

    verdict: Verdict
    tokens: float
    is_proven: bool


Outcome = Found | NotJudged | None
Rule = Callable[[Case], Outcome]


def judge(
    facts: ConditionFacts, run: RunFacts, reference_run: RunFacts | None
) -> tuple[list[Verdict], list[NotJudged]]:
    """All verdicts of one condition, the likeliest first cause first, and what was not judged."""
    case = case_of(facts, run, reference_run)
    alone = degenerate_text(case)
    if not len(facts.prompt_ids):
        return [alone.verdict if isinstance(alone, Found) else _too_little(case)], []
    if len(facts.prompt_ids) < INTERVAL_MIN_PROMPTS or facts.num_rounds.sum() < VERDICT_MIN_ROUNDS:
        found = [alone.verdict] if isinstance(alone, Found) else []
        return [*found, _too_little(case)], []
    outcomes = [rule(case) for rule in RULES]
    verdicts = [outcome for outcome in outcomes if isinstance(outcome, Found)]
    verdicts.sort(key=lambda found: (not found.is_proven, -found.tokens))
    given = [found.verdict for found in verdicts]
    undecided = [u for u in _undecided(case) if u.id not in [v.id for v in given]]
    not_judged = [outcome for outcome in outcomes if isinstance(outcome, NotJudged)] + undecided
    return given or [_healthy(case, is_sure=not undecided)], not_judged


def case_of(facts: ConditionFacts, run: RunFacts, reference_run: RunFacts | None) -> Case:
    """What a condition is compared with: the same one of the reference run, else its own run's reference condition."""
    drafter, system, template, _ = facts.key
    if reference_run is not None:
        reference = reference_run.conditions.get(facts.key)
    else:
        reference = run.conditions.get((drafter, "default", "default", 0))
    is_itself = reference is not None and reference is facts
    without = run.conditions.get((drafter, system, template, 0)) if facts.key[3] else None
    return Case(facts, None if is_itself else reference, without, is_itself)


# ---- rules


def degenerate_text(case: Case) -> Outcome:
    facts = case.facts
    share = facts.num_degenerate / facts.num_prompts
    if share < DEGENERATE_VERDICT_SHARE:
        return None
    evidence = Evidence(
        name="degenerate_share",
        statement=f"{facts.num_degenerate} of {facts.num_prompts} responses loop; every number is without them",
        value=share,
        threshold=DEGENERATE_VERDICT_SHARE,
    )
    remedy = "Loops are easy to draft and say nothing of real text: sample at T > 0, or use other prompts."
    return Found(verdict(VerdictId.degenerate_text, "high", [evidence], remedy), 0.0, is_proven=True)


def wiring_fault(case: Case) -> Outcome:
    """A changed wiring gives acceptance back; else depth 1 is as bad as no trained drafter is."""
    facts = case.facts
    best = [g for g in facts.gains if g.is_repair and _is_wiring(g, case)]
    errors = [Evidence(name="checkpoint", statement=message) for message in facts.checkpoint_errors]
    if best:
        remedy = f"The drafter is not loaded as it was trained. `{best[0].id}` gives it back: {how(best[0].id)}."
        evidence = [*(gain_evidence(g) for g in best[:3]), *errors]
        return _found(VerdictId.wiring_fault, "high", evidence, remedy, best[0].tokens, is_proven=True)
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
        return _found(
            VerdictId.wiring_fault, "medium" if errors else "low", evidence, remedy, VERDICT_MIN_TOKENS, is_proven=False
        )
    return None if _has_repairs(facts) else _needs_interventions(VerdictId.wiring_fault)


def feedback_fault(case: Case) -> Outcome:
    """What is fed back is not what the drafter was trained on: a repair, or a collapse at depth 2."""
    facts = case.facts
    best = [
        g
        for g in facts.gains
        if g.is_counted and g.id.startswith(FEEDBACK_WIRING) and (g.difference.estimate or 0.0) >= VERDICT_MIN_TOKENS
    ]
    if best:
        remedy = f"Set the flag as in training: `{best[0].id}` gives acceptance back ({how(best[0].id)})."
        evidence = [gain_evidence(g) for g in best]
        return _found(VerdictId.feedback_fault, "high", evidence, remedy, best[0].tokens, is_proven=True)
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
    return _found(VerdictId.feedback_fault, "medium", [collapse], remedy, lost, is_proven=False)


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
        vocabulary_evidence(loss),
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
    return _found(VerdictId.vocabulary_gap, confidence, evidence, remedy, size, is_proven=is_repaired)


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
        return _found(VerdictId.template_shift, "high", evidence, remedy, best[0].tokens, is_proven=True)
    return None if tried else _needs_interventions(VerdictId.template_shift)


def context_limit(case: Case) -> Outcome:
    """Good on short text, bad with a document before it."""
    facts = case.facts
    if not facts.key[3]:
        return None
    repairs = [g for g in facts.gains if g.kind == "context" and g.is_repair and not _is_wiring(g, case)]
    lost = dense_difference(case.without_document, facts) if case.without_document is not None else None
    is_lost = lost is not None and (lost.estimate or 0.0) >= VERDICT_MIN_TOKENS and lost.is_above_zero
    if not repairs and not is_lost:
        is_unknown = case.without_document is None
        detail = "the run has no condition with this system prompt and template at context 0"
        return NotJudged(id=VerdictId.context_limit, reason="needs_reference", detail=detail) if is_unknown else None
    evidence = []
    if lost is not None:
        evidence.append(
            Evidence(
                name="tokens_per_round",
                statement=f"{lost.estimate or 0.0:+.2f} tokens per round more without the document",
                value=lost.estimate,
                low=lost.low,
                high=lost.high,
                threshold=VERDICT_MIN_TOKENS,
            )
        )
    evidence += [gain_evidence(g) for g in repairs[:3]]
    if repairs:
        remedy = f"`{repairs[0].id}` gives acceptance back at this length: {how(repairs[0].id)}."
    else:
        remedy = "Train the drafter on texts of this length; `driftscope advise` says which depth still pays."
    size = max([(lost.estimate or 0.0) if lost else 0.0, *(g.tokens for g in repairs)])
    confidence = "high" if repairs else "medium"
    return _found(VerdictId.context_limit, confidence, evidence, remedy, size, is_proven=bool(repairs))


def target_changed(case: Case) -> Outcome:
    """The reference target's states give acceptance back, or this target's states are no longer those."""
    facts = case.facts
    swap = next((g for g in facts.gains if g.id == "reference_target"), None)
    if swap is None and not facts.state_changes:
        detail = "give the target that the drafter was trained for: --reference-target"
        return NotJudged(id=VerdictId.target_changed, reason="needs_reference", detail=detail)
    is_repaired = swap is not None and swap.is_repair
    worst = min(facts.state_changes, key=lambda s: s.cosine, default=None)
    is_other = worst is not None and worst.cosine < TARGET_MIN_COSINE
    if not is_repaired and not is_other:
        return None
    evidence = [gain_evidence(swap)] if swap is not None else []
    remedy = "Train or fine-tune the drafter on this target's own states and texts."
    if worst is not None:
        is_rotated = is_other and worst.gram_similarity >= ROTATION_MIN_GRAM_SIMILARITY
        what = "the same states in a rotated basis" if is_rotated else "changed states"
        if is_rotated:
            remedy = "Rotate fc's input slices (and the embedding and lm_head, where borrowed) as the target was."
        evidence.append(
            Evidence(
                name="cosine",
                statement=f"layer {worst.aux_layer_id}: cosine {worst.cosine:.3f}, norm ratio {worst.norm_ratio:.3f}, "
                f"similarity of inner products {worst.gram_similarity:.3f} with the reference target: {what}",
                value=worst.cosine,
                threshold=TARGET_MIN_COSINE,
            )
        )
    size = swap.tokens if swap is not None else 0.0
    confidence = "high" if is_repaired else "medium"
    return _found(VerdictId.target_changed, confidence, evidence, remedy, size, is_proven=is_repaired)


def attention_drift(case: Case) -> Outcome:
    """The excess of chain decay is carried by what the chain's queries attend to."""
    remedy = "Train with more TTT depth, or a drafter that feeds back the normed state (EAGLE-3.1)."
    return _drift(case, VerdictId.attention_drift, ("patch_keys", "patch_attention"), remedy)


def state_drift(case: Case) -> Outcome:
    """The excess of chain decay is carried by the fed-back state: query and residual together, since either alone beside
    the other's fed-back value is a combination that no drafter was trained on (docs/verdicts.md has the measurement)."""
    remedy = "Train with more TTT depth or feed back the normed state (EAGLE-3.1); until then lower the draft depth."
    return _drift(case, VerdictId.state_drift, ("patch_state",), remedy)


def _drift(case: Case, id: VerdictId, patches: tuple[str, ...], remedy: str) -> Outcome:
    if case.is_own_reference:
        return None  # every drafter has a chain_gap; the reference condition is judged by feedback_fault alone
    if case.reference is None:
        detail = "no condition to compare with: the target's default system prompt at context 0, or --reference RUN"
        return NotJudged(id=id, reason="needs_reference", detail=detail)
    excess = drift.chain_decay_excess(case.facts, case.reference)
    if excess is None:
        return NotJudged(id=id, reason="needs_fresh_pass", detail="one of the two has no walk with a fresh pass")
    if (excess.estimate or 0.0) < VERDICT_MIN_TOKENS or not excess.is_above_zero:
        return None
    growth = drift.gap_growth(case.facts)
    if not growth.is_above_zero:
        return None
    shares = [(drift.recovered_share(case.facts, case.reference, patch), patch) for patch in patches]
    known = [(share, patch) for share, patch in shares if share is not None]
    if not known:
        return _needs_interventions(id)
    share, patch = max(known)
    if share < drift.MIN_SHARE:
        return None
    evidence = [
        Evidence(
            name="chain_decay",
            statement=f"chain decay costs {excess.estimate or 0.0:.2f} tokens per round more than in the reference",
            value=excess.estimate,
            low=excess.low,
            high=excess.high,
            threshold=VERDICT_MIN_TOKENS,
        ),
        Evidence(
            name="chain_gap",
            statement=f"chain_gap grows by {growth.estimate or 0.0:.3f} from depth 2 to the deeper ones",
            value=growth.estimate,
            low=growth.low,
            high=growth.high,
            threshold=0.0,
        ),
        Evidence(
            name=patch,
            statement=f"true features on this path recover {share:.0%} of the excess",
            value=share,
            threshold=drift.MIN_SHARE,
        ),
    ]
    return _found(id, "high", evidence, remedy, excess.estimate, is_proven=True)


RULES: tuple[Rule, ...] = (
    degenerate_text,
    target_changed,
    wiring_fault,
    feedback_fault,
    vocabulary_gap,
    template_shift,
    context_limit,
    state_drift,
    attention_drift,
)

# ---- parts


def _is_wiring(gain: Gain, case: Case) -> bool:
    """Whether a repair of this kind speaks of wiring: the kind itself, d2t, and rope or windows that help short text
    as well as long."""
    if gain.kind == "wiring":
        return not gain.id.startswith(FEEDBACK_WIRING)
    if gain.kind == "vocabulary":
        return gain.id != "full_draft_vocab"
    if gain.kind != "context":
        return False
    if not case.facts.key[3]:
        return True
    short = case.without_document
    return short is not None and any(g.id == gain.id and g.is_counted for g in short.gains)


def _has_repairs(facts: ConditionFacts) -> bool:
    """Whether anything that could prove a cause was tried on enough prompts for its absence to mean something."""
    return any(g.kind in PROOF_KINDS and g.difference.num_prompts >= INTERVAL_MIN_PROMPTS for g in facts.gains)


def _found(
    id: VerdictId, confidence: str, evidence: list[Evidence], remedy: str, tokens: float | None, *, is_proven: bool
) -> Found:
    return Found(verdict(id, confidence, evidence, remedy), tokens or 0.0, is_proven)


def _needs_interventions(id: VerdictId) -> NotJudged:
    return NotJudged(
        id=id,
        reason="needs_interventions",
        detail="none that could prove it was run on enough prompts: `driftscope diagnose RUN` runs them where target and "
        "drafters are at hand",
    )


def _too_little(case: Case) -> Verdict:
    facts = case.facts
    evidence = Evidence(
        name="num_prompts",
        statement=f"{len(facts.prompt_ids)} prompts and {int(facts.num_rounds.sum())} rounds without looping text; "
        f"{INTERVAL_MIN_PROMPTS} and {VERDICT_MIN_ROUNDS} are needed",
        value=float(len(facts.prompt_ids)),
        threshold=float(INTERVAL_MIN_PROMPTS),
    )
    return verdict(VerdictId.not_enough_data, "high", [evidence], "Measure more prompts, or longer responses.")


def _undecided(case: Case) -> list[NotJudged]:
    """Interventions whose gain would be a repair if it were certain: one for each verdict, the largest gain."""
    found: dict[VerdictId, NotJudged] = {}
    for gain in case.facts.gains:
        is_open = gain.kind in PROOF_KINDS and gain.tokens >= VERDICT_MIN_TOKENS and not gain.is_counted
        if not is_open or gain.id == "full_draft_vocab":  # a cut vocabulary's cost is stated by `healthy`
            continue
        if gain.id.startswith(FEEDBACK_WIRING):
            id = VerdictId.feedback_fault
        elif _is_wiring(gain, case):
            id = VerdictId.wiring_fault
        else:
            by_kind = {"template": VerdictId.template_shift, "target": VerdictId.target_changed}
            id = by_kind.get(gain.kind, VerdictId.context_limit)
        low, high = gain.difference.low, gain.difference.high
        interval = "no interval" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"
        detail = f"`{gain.id}` {gain.tokens:+.2f} {interval} over {gain.difference.num_prompts} prompts: measure more"
        found.setdefault(id, NotJudged(id=id, reason="not_enough_data", detail=detail))
    return list(found.values())


def _healthy(case: Case, *, is_sure: bool) -> Verdict:
    facts = case.facts
    rounds = int(facts.num_rounds.sum())
    mean = 1 + float(facts.num_accepted.sum()) / rounds
    evidence = Evidence(
        name="tokens_per_round",
        statement=f"{mean:.2f} tokens per round over {rounds} rounds, and no fault that costs {VERDICT_MIN_TOKENS}",
        value=mean,
    )
    loss = vocabulary_loss(facts)
    costs = [vocabulary_evidence(loss)] if (loss.estimate or 0.0) >= VERDICT_MIN_TOKENS else []
    remedy = "A larger draft vocabulary would help; nothing is at fault." if costs else "Nothing to do."
    return verdict(VerdictId.healthy, "high" if is_sure and _has_repairs(facts) else "low", [evidence, *costs], remedy)
