"""vLLM's per-request metrics: OpenAI response bodies with `metrics.speculative_decoding` (vLLM >= 0.32, experimental).

Server option --per-request-spec-decode-metrics summary | detailed. Histograms count accepted drafts without the bonus
token; the list form and `acceptance_histogram_by_draft_length` are those of vLLM's documentation, the object form that of
its pull request 48915. `detailed` adds every round in order. AIPerf stores the same object (aiperf.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.import_export.request import Request, Taken, count, counts, histogram, optional_count, optional_tokens
from driftscope.import_export.rounds import BadCountsError, Rounds, from_histogram, from_steps
from driftscope.prompts.line import Line, text_label

NO_METRICS = "no metrics.speculative_decoding (several answers at once, or the server was not asked for them)"
FAILED = "a request that failed"
NO_ROUNDS = "a request without a round"


def matches(item: Mapping[str, Any]) -> bool:
    body = body_of(item)
    return isinstance(body.get("metrics"), dict) or isinstance(body.get("choices"), list)


def read(line: Line, depth: int | None) -> Taken:
    """One response body, alone, in a batch's output line or under `response`."""
    body = body_of(line.item)
    if body.get("error") is not None or line.item.get("error") is not None:
        return Taken(left_out=FAILED)
    metrics = body.get("metrics")
    found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if found is None:
        return Taken(left_out=NO_METRICS)
    if not isinstance(found, dict):
        raise BadCountsError("metrics.speculative_decoding is no object")
    rounds = rounds_of(found, depth)
    if not len(rounds.accepted_drafts):
        return Taken(left_out=NO_ROUNDS)
    usage = usage_of(body)
    request = Request(
        request_id=line.id_of("custom_id") if "custom_id" in line.item else id_of(body, line),
        model=text_label(body.get("model")),
        rounds=rounds,
        num_prompt_tokens=optional_tokens(usage, "prompt_tokens"),
        num_response_tokens=optional_tokens(usage, "completion_tokens"),
        finish_reason=finish_reason_of(body),
    )
    return Taken(requests=(request,))


def rounds_of(found: Mapping[str, Any], depth: int | None) -> Rounds:
    """The rounds of one `speculative_decoding` object. Raises BadCountsError where its numbers contradict each other."""
    stated = optional_count(found, "num_spec_tokens")
    if depth is not None and stated is not None and stated != depth:
        raise BadCountsError(f"it was drafted with num_spec_tokens {stated}, the depth asked for is {depth}")
    steps, accepted, drafted = (
        count(found, key) for key in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    )
    by_accepted = histogram(found.get("acceptance_histogram"), "acceptance_histogram")
    if sum(by_accepted.values()) != steps:
        raise BadCountsError(f"the histogram holds {sum(by_accepted.values())} rounds, num_spec_steps says {steps}")
    if sum(j * n for j, n in by_accepted.items()) != accepted:
        raise BadCountsError(f"the histogram does not hold the {accepted} accepted drafts of the total")
    step_accepted, step_drafted = counts(found, "per_step_accepted"), counts(found, "per_step_drafted")
    if step_accepted is not None and step_drafted is not None:
        if len(step_accepted) != steps or sum(step_accepted) != accepted or sum(step_drafted) != drafted:
            raise BadCountsError("per_step_accepted and per_step_drafted do not add up to the totals")
        return from_steps(step_accepted, step_drafted, depth=stated or depth or (1 if not steps else None))
    known = stated or depth or (drafted // steps if steps and drafted % steps == 0 else None)
    if known is None and steps:
        raise BadCountsError("it does not say how many drafts a round can have (num_spec_tokens): give --depth")
    by_length = found.get("acceptance_histogram_by_draft_length")
    return from_histogram(
        by_accepted,
        depth=known or 1,
        num_draft_tokens=drafted,
        by_num_drafts=None if by_length is None else _by_length(by_length),
    )


def _by_length(value: object) -> dict[int, dict[int, int]]:
    key = "acceptance_histogram_by_draft_length"
    if not isinstance(value, dict) or not all(isinstance(k, str) and k.isascii() and k.isdigit() for k in value):
        raise BadCountsError(f"{key} is no object of histograms")
    return {int(length): histogram(row, key) for length, row in value.items() if len(length) < 6}


def body_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The response body: the item itself, or what a batch or a log wraps."""
    inner = item.get("response")
    if isinstance(inner, dict):
        return inner["body"] if isinstance(inner.get("body"), dict) else inner
    return item["body"] if isinstance(item.get("body"), dict) else item


def usage_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    usage = body.get("usage")
    return usage if isinstance(usage, dict) else {}


def id_of(body: Mapping[str, Any], line: Line) -> str:
    return text_label(body.get("id")) or line.id_of("id", "request_id")


def finish_reason_of(body: Mapping[str, Any]) -> str | None:
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return text_label(first.get("finish_reason")) if isinstance(first, dict) else None
