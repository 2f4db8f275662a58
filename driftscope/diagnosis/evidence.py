"""How verdicts are put into words: one number and one sentence for each piece of evidence. Knows no rule."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.check.check_report import Severity
from driftscope.diagnosis.diagnosis import Evidence
from driftscope.diagnosis.facts import ConditionFacts
from driftscope.diagnosis.files import suspects
from driftscope.diagnosis.gains import Gain
from driftscope.stats.paired import Difference
from driftscope.stats.thresholds import VERDICT_MIN_TOKENS
from probes.interventions.registry import BY_ID, REPLAYED


def difference_evidence(
    name: str, statement: str, difference: Difference, threshold: float = VERDICT_MIN_TOKENS
) -> Evidence:
    """A difference with its interval, and what it was compared with."""
    return Evidence(
        name=name,
        statement=statement,
        value=difference.estimate,
        low=difference.low,
        high=difference.high,
        threshold=threshold,
    )


def vocabulary_evidence(facts: ConditionFacts, gain: Difference) -> Evidence:
    """The estimated gain of a full draft vocabulary. Not what the waterfall calls lost to vocabulary: that is every draft
    after the first such token."""
    return difference_evidence(
        "vocabulary_loss",
        f"estimated gain of a full draft vocabulary: {gain.estimate or 0.0:+.2f} {facts.basis} tokens per round, if the "
        "tokens that it lacks are as easy as the others",
        gain,
    )


def gain_evidence(gain: Gain) -> Evidence:
    difference = gain.difference
    basis = "walk" if gain.id == REPLAYED else "dense"  # an engine's own rounds are compared with themselves
    return difference_evidence(
        gain.id,
        f"{how(gain.id)}: {difference.estimate or 0.0:+.2f} {basis} tokens per round over {difference.num_prompts} prompts",
        difference,
    )


def file_evidence(facts: ConditionFacts, repairs: Sequence[Gain] = ()) -> list[Evidence]:
    """The files' errors, and the findings of any severity that name one of these repairs."""
    named = [
        f
        for f in facts.file_findings
        if f.severity is Severity.error or any(gain.id.startswith(suspects([f])) for gain in repairs)
    ]
    reader = [message for message in facts.checkpoint_errors if not any(message in f.evidence for f in named)]
    return [
        *(Evidence(name=f.id, statement=f"driftscope check: {f.what} ({f.evidence})") for f in named),
        *(Evidence(name="checkpoint", statement=message) for message in reader),
    ]


def how(id: str) -> str:
    """What the intervention does, in the registry's words."""
    return BY_ID[id].changes if id in BY_ID else id
