"""All rules on one condition: its verdicts, the likeliest first cause first, and what could not be judged.

The rules themselves are in `rules` and `drift_rules`.
"""

from __future__ import annotations

from driftscope.diagnosis import drift_rules, rules
from driftscope.diagnosis.case import FEEDBACK_WIRING, Case, Found, Rule, has_repairs, is_wiring
from driftscope.diagnosis.diagnosis import Evidence, NotJudged, Verdict, VerdictId
from driftscope.diagnosis.evidence import vocabulary_evidence
from driftscope.diagnosis.facts import ConditionFacts, RunFacts
from driftscope.diagnosis.measures import vocabulary_loss
from driftscope.stats.thresholds import INTERVAL_MIN_PROMPTS, VERDICT_MIN_ROUNDS, VERDICT_MIN_TOKENS
from probes.interventions.registry import PROOF_KINDS
from probes.record import ConditionKey

RULES: tuple[Rule, ...] = (
    rules.degenerate_text,
    rules.target_changed,
    rules.wiring_fault,
    rules.feedback_fault,
    rules.vocabulary_gap,
    rules.template_shift,
    rules.context_limit,
    drift_rules.state_drift,
    drift_rules.attention_drift,
)


def judge(
    facts: ConditionFacts, run: RunFacts, reference_run: RunFacts | None
) -> tuple[list[Verdict], list[NotJudged]]:
    """All verdicts of one condition, the likeliest first cause first, and what was not judged."""
    case = case_of(facts, run, reference_run)
    alone = rules.degenerate_text(case)
    if not len(facts.prompt_ids):
        return [alone.verdict if isinstance(alone, Found) else _too_little(case)], []
    if facts.num_prompts_with_rounds < INTERVAL_MIN_PROMPTS or facts.num_rounds.sum() < VERDICT_MIN_ROUNDS:
        found = [alone.verdict] if isinstance(alone, Found) else []
        return [*found, _too_little(case)], []
    outcomes = [rule(case) for rule in RULES]
    verdicts = [outcome for outcome in outcomes if isinstance(outcome, Found)]
    if any(found.is_proven and found.tokens for found in verdicts):  # a mere sign says nothing beside what explains it
        verdicts = [found for found in verdicts if found.is_proven or found.verdict.confidence != "low"]
    is_loop = VerdictId.degenerate_text  # first: every other number is over what little does not loop
    verdicts.sort(key=lambda found: (found.verdict.id is not is_loop, not found.is_proven, -found.tokens))
    given = [found.verdict for found in verdicts]
    undecided = [u for u in _undecided(case) if u.id not in [v.id for v in given]]
    not_judged = [outcome for outcome in outcomes if isinstance(outcome, NotJudged)] + undecided
    return given or [_healthy(case, is_sure=not undecided)], not_judged


def case_of(facts: ConditionFacts, run: RunFacts, reference_run: RunFacts | None) -> Case:
    """What a condition is compared with: the same one of the reference run, else its own run's reference condition."""
    key = facts.key
    if reference_run is not None:
        reference = reference_run.conditions.get(key)
    else:
        reference = run.conditions.get(ConditionKey(key.drafter, "default", "default", 0))
    is_itself = reference is not None and reference is facts
    without = run.conditions.get(key._replace(context_tokens=0)) if key.context_tokens else None
    return Case(facts, None if is_itself else reference, without, is_itself)


def _too_little(case: Case) -> Verdict:
    facts = case.facts
    evidence = Evidence(
        name="num_prompts",
        statement=f"{facts.num_prompts_with_rounds} prompts with {int(facts.num_rounds.sum())} {facts.basis} rounds, "
        f"looping text left out; {INTERVAL_MIN_PROMPTS} prompts with {VERDICT_MIN_ROUNDS} rounds are needed",
        value=float(facts.num_prompts_with_rounds),
        threshold=float(INTERVAL_MIN_PROMPTS),
    )
    remedy = "Measure more prompts, or longer responses."
    return Verdict(id=VerdictId.not_enough_data, confidence="high", evidence=[evidence], remedy=remedy)


def _undecided(case: Case) -> list[NotJudged]:
    """Interventions whose gain would be a repair if it were certain: one for each verdict, the largest gain."""
    found: dict[VerdictId, NotJudged] = {}
    for gain in case.facts.gains:
        is_open = gain.kind in PROOF_KINDS and gain.tokens >= VERDICT_MIN_TOKENS and not gain.is_counted
        if not is_open or gain.id == "full_draft_vocab":  # a cut vocabulary's cost is stated by `healthy`
            continue
        if gain.id.startswith(FEEDBACK_WIRING):
            id = VerdictId.feedback_fault
        elif is_wiring(gain, case):
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
    gain = vocabulary_loss(facts)
    limits = [vocabulary_evidence(facts, gain)] if (gain.estimate or 0.0) >= VERDICT_MIN_TOKENS else []
    limit = " (the size of the draft vocabulary is no fault)" if limits else ""
    evidence = Evidence(
        name="tokens_per_round",
        statement=f"{mean:.2f} {facts.basis} tokens per round over {rounds} {facts.basis} rounds of "
        f"{facts.num_prompts_with_rounds} prompts; no fault was found that costs {VERDICT_MIN_TOKENS}{limit}",
        value=mean,
    )
    remedy = "Nothing is at fault. A larger draft vocabulary would help." if limits else "Nothing to do."
    confidence = "high" if is_sure and has_repairs(facts) else "low"
    return Verdict(id=VerdictId.healthy, confidence=confidence, evidence=[evidence, *limits], remedy=remedy)
