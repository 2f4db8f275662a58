"""DS7xx: what a prompt file says about the draft vocabulary and the drafter's positions, from the measured coverage."""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.check.check_report import Coverage, CoverageGroup, Finding, Severity
from driftscope.check.definition import Check
from driftscope.check.pair import Pair

MIN_COVERED_SHARE = 0.90  # of all tokens: published heads reach 93-98 % on text like their training's
MIN_GROUP_SHARE = 0.80  # of one script, language or category
MIN_PROXY_SHARE = 0.50  # of prompts that stand in for responses: users' words are rarer than a target's
MIN_GROUP_TOKENS = 100  # fewer tell nothing

LOW = Check(
    id="DS701",
    name="coverage_low",
    title="The draft vocabulary covers too little of this text",
    severity=Severity.warning,
    why="A target token outside the draft vocabulary can never be drafted: the covered share of the responses bounds "
    "acceptance at depth 1, and each deeper draft again.",
    evidence=f"The covered share of the responses' tokens below {MIN_COVERED_SHARE:.0%}. Where the file has no responses, "
    f"prompts stand in: a warning below {MIN_PROXY_SHARE:.0%}, else a note.",
    remedy="Use a head with a larger or other draft vocabulary, or cut one from text of this kind and train again",
)
LOW_GROUP = Check(
    id="DS702",
    name="coverage_low_in_group",
    title="The draft vocabulary covers too little of one script, language or category",
    severity=Severity.warning,
    why="Acceptance is good on average and near nothing on part of the traffic, usually text in another script than the "
    "head's training data.",
    evidence=f"The covered share of a script, language or category with at least {MIN_GROUP_TOKENS} tokens below "
    f"{MIN_GROUP_SHARE:.0%} (prompts that stand in for responses: {MIN_PROXY_SHARE:.0%}, else a note).",
    remedy="Route this traffic without speculation, or train with a draft vocabulary that covers it",
)
TOO_LONG = Check(
    id="DS703",
    name="prompts_beyond_positions",
    title="Some prompts are longer than the drafter's positions",
    severity=Severity.warning,
    why="Beyond max_position_embeddings the drafter works at positions that training never saw.",
    evidence="The longest prompt with its response in tokens, without the chat template's, against "
    "max_position_embeddings.",
    remedy="Measure acceptance at these lengths (--context-tokens)",
)


def find(pair: Pair, coverage: Coverage, longest_tokens: int) -> Iterator[Finding]:
    has_responses = any(group.part == "response" for group in coverage.groups)
    part = "response" if has_responses else "prompt"
    for group in coverage.groups:
        if group.part != part or group.share is None or group.num_tokens < MIN_GROUP_TOKENS:
            continue
        is_doubtful = not has_responses and group.share >= MIN_PROXY_SHARE
        severity = Severity.info if is_doubtful else Severity.warning
        if group.by == "all" and group.share < MIN_COVERED_SHARE:
            yield LOW.finding(_shown(group), where=coverage.path, severity=severity)
        elif group.by in ("script", "language", "category") and group.share < MIN_GROUP_SHARE:
            yield LOW_GROUP.finding(f"{group.by} {group.name}: {_shown(group)}", where=coverage.path, severity=severity)
    if pair.spec is not None and longest_tokens > pair.spec.max_position_embeddings:
        yield TOO_LONG.finding(
            f"{longest_tokens:,} tokens, the drafter has {pair.spec.max_position_embeddings:,} positions",
            where=coverage.path,
        )


def _shown(group: CoverageGroup) -> str:
    return f"{group.num_covered:,} of {group.num_tokens:,} {group.part} tokens ({group.share:.1%})"
