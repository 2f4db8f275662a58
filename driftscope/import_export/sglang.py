"""SGLang's per-request metrics: `meta_info` of /generate, or of an OpenAI answer (`choices[].meta_info`, `sglext`).

`spec_correct_drafts_histogram` (before: `spec_accept_histogram`) counts rounds by accepted drafts without the bonus
token; `spec_verify_ct` is the number of rounds; proposals are `spec_num_proposed_drafts` (before: `spec_draft_token_num`).
SGLang does not say whether it drafted a chain or a tree: a tree proposes more drafts in a round than it is deep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.import_export.request import Request, Taken, count, histogram, optional_count, optional_tokens
from driftscope.import_export.rounds import BadCountsError, Rounds, from_histogram
from driftscope.import_export.vllm import FAILED, NO_ROUNDS, body_of, finish_reason_of, id_of, usage_of
from driftscope.prompts.line import Line, text_label

NO_METRICS = "no speculative decoding metrics (spec_verify_ct)"
ONLY_MEANS = "only means, no histogram of accepted drafts (an older SGLang)"
TREE_NOTE = "more drafts were proposed in a round than the depth given: a tree, whose acceptance is that of any branch"

_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")


def matches(item: Mapping[str, Any]) -> bool:
    body = body_of(item)
    if isinstance(body.get("meta_info"), dict) or isinstance(body.get("sglext"), dict):
        return True
    choices = body.get("choices")
    return isinstance(choices, list) and any(isinstance(c, dict) and "meta_info" in c for c in choices)


def read(line: Line, depth: int | None) -> Taken:
    """One answer; one request for each choice that has its own metrics."""
    body = body_of(line.item)
    if body.get("error") is not None or line.item.get("error") is not None:
        return Taken(left_out=FAILED)
    found = _metrics(body)
    requests, reason = [], NO_METRICS
    for index, meta in enumerate(found):
        verified = optional_count(meta, "spec_verify_ct")
        if verified is None:
            continue
        if not verified:
            reason = NO_ROUNDS
            continue
        if all(not meta.get(key) for key in _HISTOGRAMS):
            reason = ONLY_MEANS
            continue
        rounds, notes = _rounds(meta, depth)
        name = line.id_of("custom_id") if "custom_id" in line.item else text_label(meta.get("id")) or id_of(body, line)
        requests.append(
            Request(
                request_id=f"{name}#{index}" if len(found) > 1 else name,
                model=text_label(body.get("model")),
                rounds=rounds,
                num_prompt_tokens=optional_tokens({**usage_of(body), **meta}, "prompt_tokens"),
                num_response_tokens=optional_tokens({**usage_of(body), **meta}, "completion_tokens"),
                finish_reason=_finish_reason(meta) or finish_reason_of(body),
                notes=notes,
            )
        )
    return Taken(requests=tuple(requests)) if requests else Taken(left_out=reason)


def _metrics(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The metrics of each answer, from the first place that has any."""
    choices, extension = body.get("choices"), body.get("sglext")
    places: tuple[list[object], ...] = (
        [body.get("meta_info")],
        [choice.get("meta_info") for choice in choices if isinstance(choice, dict)]
        if isinstance(choices, list)
        else [],
        [extension.get("spec_tokens_details")] if isinstance(extension, dict) else [],
    )
    found: list[list[Mapping[str, Any]]] = [[meta for meta in place if isinstance(meta, dict)] for place in places]
    return next((metas for metas in found if metas), [])


def _rounds(meta: Mapping[str, Any], depth: int | None) -> tuple[Rounds, tuple[str, ...]]:
    key = next(key for key in _HISTOGRAMS if meta.get(key))
    by_accepted, verified = histogram(meta[key], key), count(meta, "spec_verify_ct")
    if sum(by_accepted.values()) != verified:
        raise BadCountsError(f"{key} holds {sum(by_accepted.values())} rounds, spec_verify_ct says {verified}")
    accepted, proposed = optional_count(meta, *_ACCEPTED), optional_count(meta, *_PROPOSED)
    if accepted is not None and sum(j * n for j, n in by_accepted.items()) != accepted:
        raise BadCountsError(f"{key} does not hold the {accepted} accepted drafts of the total")
    if proposed is None and depth is None:
        raise BadCountsError("it does not say how many drafts a round had: give --depth (speculative_num_steps)")
    each = None if proposed is None or proposed % verified else proposed // verified
    if depth is not None and each is not None and each > depth:
        return from_histogram(by_accepted, depth=depth, num_draft_tokens=None), (TREE_NOTE,)
    if depth is None and each is None:
        raise BadCountsError(f"{proposed} drafts in {verified} rounds are no whole number each: give --depth")
    return from_histogram(by_accepted, depth=depth or each or 0, num_draft_tokens=proposed), ()


def _finish_reason(meta: Mapping[str, Any]) -> str | None:
    reason = meta.get("finish_reason")
    return text_label(reason.get("type") if isinstance(reason, dict) else reason)
