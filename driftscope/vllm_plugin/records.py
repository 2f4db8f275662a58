"""A finished request -> a prompt and its rounds, as every engine gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import chain

import numpy as np

from driftscope.vllm_plugin.sampling import UNLABELLED
from probes.attention.slots import text_regions
from probes.record import TEXT_REGIONS, ConditionKey, PromptRecord, RoundBatch
from probes.vllm.requests import RequestRounds
from probes.vllm.to_record import round_batch

TEMPLATE = "request"
"""The template's name in the run: prompts came rendered."""


def response_end(rounds: RequestRounds) -> tuple[int, str]:
    """-> (L: prompt and response in tokens, finish reason). A stop string is not seen here: such a response keeps what
    the engine emitted in its last round after it, and ends as `unknown`, as does one that was aborted."""
    num_prompt = len(rounds.request.prompt_token_ids)
    response = rounds.token_ids[num_prompt:]
    limit = rounds.request.max_tokens
    emitted = set(response.tolist())
    given = chain(rounds.request.stop_token_ids, (rounds.request.eos_token_id,))  # as many as the client liked
    is_stop = np.isin(response[:limit], [token for token in given if token is not None and token in emitted])
    if is_stop.any():
        return num_prompt + int(is_stop.argmax()) + 1, "stop"
    if limit is not None and len(response) >= limit:
        return num_prompt + limit, "length"
    return len(rounds.token_ids), "unknown"


def prompt_name(rounds: RequestRounds) -> str:
    """The same for the same prompt tokens, so that two servers that were given the same prompts are paired."""
    ids = rounds.token_ids[: len(rounds.request.prompt_token_ids)].astype("<i4")
    return hashlib.sha256(ids.tobytes()).hexdigest()[:16]


def records_of(
    rounds: RequestRounds,
    *,
    prompt_id: str,
    drafter: str,
    in_draft_vocab: np.ndarray,
    norm_output: bool,
    regions: Callable[[np.ndarray], np.ndarray] | None = None,
) -> tuple[PromptRecord, RoundBatch | None]:
    """The label is the condition's name. No rounds for a response of fewer than two tokens.

    `in_draft_vocab` bool [vocab]; `regions`: int [token] -> uint8 [token], of a prompt whose regions the device did not
    need. Raises ValueError when the record contradicts itself.
    """
    num_tokens, finish_reason = response_end(rounds)
    num_prompt = len(rounds.request.prompt_token_ids)
    region = rounds.sampled.region
    if region is None and regions is not None:
        region = regions(rounds.token_ids[:num_prompt])
    elif region is None:
        region = np.full(num_prompt, TEXT_REGIONS.index("unknown"), np.uint8)
    name = rounds.sampled.label or UNLABELLED
    prompt = PromptRecord(
        prompt_id=prompt_id,
        system_prompt=name,
        template=TEMPLATE,
        context_tokens=0,
        token_ids=rounds.token_ids[:num_tokens],
        region=text_regions(region, num_tokens),
        num_prompt_tokens=num_prompt,
        num_response_tokens=num_tokens - num_prompt,
        num_continuation_tokens=0,
        finish_reason=finish_reason,
    )
    if num_tokens - num_prompt < 2:
        return prompt, None
    batch = round_batch(
        rounds,
        ConditionKey(drafter, name, TEMPLATE, 0),
        prompt_id,
        num_tokens=num_tokens,
        in_draft_vocab=in_draft_vocab,
        norm_output=norm_output,
    )
    return prompt, batch
