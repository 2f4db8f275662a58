"""What `driftscope diagnose --json` prints. Field names are a contract."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel

from probes.record import ConditionKey


class VerdictId(StrEnum):
    """docs/verdicts.md has the rule of each."""

    healthy = "healthy"
    wiring_fault = "wiring_fault"
    vocabulary_gap = "vocabulary_gap"
    template_shift = "template_shift"
    context_limit = "context_limit"
    target_changed = "target_changed"
    feedback_fault = "feedback_fault"
    attention_drift = "attention_drift"
    state_drift = "state_drift"
    degenerate_text = "degenerate_text"
    not_enough_data = "not_enough_data"


class Evidence(BaseModel):
    """One number that a verdict rests on."""

    name: str  # a metric, or an intervention's id
    statement: str
    value: float | None = None
    low: float | None = None  # 95 % interval over prompts
    high: float | None = None
    threshold: float | None = None  # what the rule compares with (driftscope/stats/thresholds.py)


class Verdict(BaseModel):
    """One cause. confidence: high = changed one thing and measured; medium = measured, not repaired; low = a sign only."""

    id: VerdictId
    confidence: str
    evidence: list[Evidence]
    remedy: str


class NotJudged(BaseModel):
    """A verdict that could be neither given nor ruled out."""

    id: VerdictId
    reason: str  # needs_interventions | needs_reference | needs_fresh_pass | not_enough_data
    detail: str


class InterventionResult(BaseModel):
    """Mean gain of one intervention; in dense tokens_per_round, or drafts per start at one step for kind path."""

    id: str
    kind: str
    gain: float | None
    low: float | None
    high: float | None
    num_prompts: int
    p_value: float | None = None  # one-sided, over its family (docs/verdicts.md); null for kinds that prove nothing
    is_counted: bool  # of a kind that proves, at least 0.05, interval above 0, p_value within its family's level


class FileFinding(BaseModel):
    """What `driftscope check` says of the drafter's files: a warning or an error."""

    id: str  # "DS302"; docs/checks has its page
    severity: str
    what: str  # the check's title
    statement: str  # with what was seen


class ConditionDiagnosis(BaseModel):
    """One drafter under one system prompt, template and context length."""

    drafter: str
    system_prompt: str
    template: str
    context_tokens: int
    verdicts: list[Verdict]  # the first is the likeliest first cause
    not_judged: list[NotJudged]
    waterfall: dict[str, float]  # part -> tokens lost to it per walk round (docs/verdicts.md); empty for forced text
    interventions: list[InterventionResult]  # by gain, all that were tried
    file_findings: list[FileFinding] = []  # none where the files are not at hand

    @property
    def key(self) -> ConditionKey:
        """The condition."""
        return ConditionKey(self.drafter, self.system_prompt, self.template, self.context_tokens)


class Diagnosis(BaseModel):
    """`driftscope diagnose --json`."""

    schema_version: int = 1
    conditions: list[ConditionDiagnosis]

    @property
    def is_healthy(self) -> bool:
        """Every condition's only verdict is healthy."""
        return all([v.id for v in c.verdicts] == [VerdictId.healthy] for c in self.conditions)
