"""What `driftscope check --json` prints. Plain data; knows no checkpoint."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Severity(StrEnum):
    """From `warning` on the exit code is 1."""

    info = "info"  # worth knowing, no fault by itself
    warning = "warning"  # costs acceptance somewhere, or probably does
    error = "error"  # cannot be right


SEVERITY_ORDER = (Severity.error, Severity.warning, Severity.info)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class Finding(_Model):
    """One thing that is wrong, or worth knowing. `id` is stable and has a page in docs/checks."""

    id: str  # "DS101"
    name: str  # snake_case, stable too
    severity: Severity
    what: str  # the check's title
    where: str  # file, key or tensor
    evidence: str  # what was seen
    remedy: str
    engines: tuple[str, ...] = ()  # the engines it concerns; empty = all


class Cell(_Model):
    """What one engine makes of one setting."""

    setting: str
    engine: str
    value: str | None  # null: not known
    source: str  # the key, tensor or default that the engine takes it from
    agrees: bool | None  # with the checkpoint; null: not known
    refuses: bool = False  # the engine stops at start, so nothing goes wrong in silence


class SettingRow(_Model):
    """One setting: what the checkpoint says, and each engine's reading."""

    setting: str
    value: str | None  # null: the checkpoint was refused before this could be read
    source: str
    is_certain: bool
    engines: tuple[Cell, ...]


class CoverageGroup(_Model):
    """How many tokens of one kind the draft vocabulary reaches."""

    part: str  # "prompt" | "response"
    by: str  # "all" | "script" | "language" | "category"
    name: str
    num_tokens: int
    num_covered: int
    share: float | None  # null without tokens


class UncoveredToken(_Model):
    token_id: int
    text: str
    num_prompt: int
    num_response: int


class Coverage(_Model):
    """Counts over the text of messages and responses; the chat template's own tokens are not part of it."""

    path: str
    format: str
    num_prompts: int
    num_responses: int  # answers in the file, those of earlier turns too
    draft_vocab_size: int
    vocab_size: int
    groups: tuple[CoverageGroup, ...]
    uncovered: tuple[UncoveredToken, ...]  # the most frequent first
    notes: tuple[str, ...] = ()


class TargetSummary(_Model):
    name: str
    model_type: str | None
    num_layers: int | None
    hidden_size: int | None
    vocab_size: int | None
    max_position_embeddings: int | None
    quantization: str | None


class DrafterSummary(_Model):
    """`kind` and what follows are null when the checkpoint was refused."""

    name: str
    producer: str | None
    kind: str | None
    family: str | None
    num_layers: int | None
    draft_vocab_size: int | None


class CheckReport(_Model):
    """One target and one drafter. `is_clean`: no finding of severity warning or above."""

    schema_version: int = 1
    target: TargetSummary
    drafter: DrafterSummary
    is_clean: bool
    findings: tuple[Finding, ...] = Field(description="worst first, then by id")
    settings: tuple[SettingRow, ...]
    coverage: Coverage | None
    not_checked: tuple[str, ...]  # what the files did not allow, one sentence each


class CheckItem(_Model):
    """One row of `driftscope check --list`."""

    id: str
    name: str
    severity: Severity  # as a rule; a finding may carry another
    title: str
    page: str  # in docs/checks


class CheckList(_Model):
    schema_version: int = 1
    checks: tuple[CheckItem, ...]
