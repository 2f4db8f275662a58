"""AIPerf's per-request records, `profile_export.jsonl`: `spec_decode_acceptance` beside `metadata` and `metrics`.

The object is engine-neutral and has the names of vLLM's. A request is known by its conversation and turn, so that the
same input can be found again in another run; a repeated one gets a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from driftscope.import_export.request import Request, Taken, optional_tokens
from driftscope.import_export.rounds import BadCountsError
from driftscope.import_export.vllm import FAILED, NO_ROUNDS, rounds_of
from driftscope.prompts.line import Line, label, text_label

NO_METRICS = "no spec_decode_acceptance (the engine reported none, or --export-level was below records)"
OTHER_PHASE = "a request of another phase than profiling"


def matches(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("metadata"), dict) and ("metrics" in item or "spec_decode_acceptance" in item)


def read(line: Line, depth: int | None) -> Taken:
    metadata = line.item.get("metadata")
    if not isinstance(metadata, dict):
        raise BadCountsError("no metadata: it is no AIPerf record")
    if line.item.get("error") is not None or metadata.get("was_cancelled") is True:
        return Taken(left_out=FAILED)
    if metadata.get("benchmark_phase", "profiling") != "profiling":
        return Taken(left_out=OTHER_PHASE)
    found = line.item.get("spec_decode_acceptance")
    if found is None:
        return Taken(left_out=NO_METRICS)
    if not isinstance(found, dict):
        raise BadCountsError("spec_decode_acceptance is no object")
    rounds = rounds_of(found, depth)
    if not len(rounds.accepted_drafts):
        return Taken(left_out=NO_ROUNDS)
    metrics = line.item.get("metrics")
    values = {
        name: metric.get("value")
        for name, metric in (metrics.items() if isinstance(metrics, dict) else ())
        if isinstance(metric, dict)
    }
    completion = optional_tokens(found, "completion_tokens")
    request = Request(
        request_id=_id(metadata, line),
        model=None,
        rounds=rounds,
        num_prompt_tokens=optional_tokens(values, "usage_prompt_tokens", "input_sequence_length"),
        num_response_tokens=(
            completion if completion is not None else optional_tokens(values, "output_sequence_length")
        ),
    )
    return Taken(requests=(request,))


def _id(metadata: Mapping[str, Any], line: Line) -> str:
    conversation, turn = metadata.get("conversation_id"), metadata.get("turn_index")
    if isinstance(conversation, str) and conversation.strip():
        return label(f"{conversation}/{turn}" if isinstance(turn, int) else conversation)
    return text_label(metadata.get("x_request_id")) or line.id_of("id")
