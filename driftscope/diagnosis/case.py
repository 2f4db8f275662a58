"""What a rule is given and what it gives back, and the few questions that several rules ask. Knows no rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from driftscope.diagnosis.diagnosis import Evidence, NotJudged, Verdict, VerdictId
from driftscope.diagnosis.facts import ConditionFacts
from driftscope.diagnosis.files import suspects
from driftscope.diagnosis.gains import Gain
from driftscope.stats.thresholds import INTERVAL_MIN_PROMPTS, VERDICT_MIN_TOKENS
from probes.interventions.registry import PROOF_KINDS, REPLAYED

FEEDBACK_WIRING = ("norm_output_", "norm_before_residual_", REPLAYED)
"""Wiring that decides what is fed back; its repair proves a feedback_fault, that of any other a wiring_fault. A replay of
an engine's own rounds differs from it in what it does with fed-back states and draft keys, in positions and kernels."""


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


def is_wiring(gain: Gain, case: Case) -> bool:
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


def backed_by_files(facts: ConditionFacts) -> Gain | None:
    """The largest gain of all, where the files named it beforehand and it is a repair but for the family-wise level."""
    proofs = [g for g in facts.gains if g.kind in PROOF_KINDS]
    best = proofs[0] if proofs else None
    if best is None or best.is_counted or best.tokens < VERDICT_MIN_TOKENS or not best.difference.is_above_zero:
        return None
    return best if best.id.startswith(suspects(facts.file_findings)) else None


def has_repairs(facts: ConditionFacts) -> bool:
    """Whether anything that could prove a cause was tried on enough prompts for its absence to mean something."""
    return any(g.kind in PROOF_KINDS and g.difference.num_prompts >= INTERVAL_MIN_PROMPTS for g in facts.gains)


def found(
    id: VerdictId, confidence: str, evidence: list[Evidence], remedy: str, tokens: float | None, *, is_proven: bool
) -> Found:
    verdict = Verdict(id=id, confidence=confidence, evidence=evidence, remedy=remedy)
    return Found(verdict, tokens or 0.0, is_proven)


def needs_interventions(id: VerdictId) -> NotJudged:
    return NotJudged(
        id=id,
        reason="needs_interventions",
        detail="none that could prove it was run on enough prompts: `driftscope diagnose RUN` runs them where target and "
        "drafters are at hand",
    )
