"""Replay: from a finished text, every position of the response starts a chain, all computed together.

Exact for deterministic drafts: slot t holds (embed(x[t+1]), fused g[t]); the chain that starts at t sees the true slots up
to t and its own, which is the key/value layout an engine has when a round starts at t. Knows nothing of how
the text was made.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from probes.attention.masses import OwnChain
from probes.attention.slots import slot_regions
from probes.chain.drafted import Drafted, Fresh, fresh_pass
from probes.chain.rounds import measure_rounds, record_rounds
from probes.chain.step import SlotCache, prefill, step
from probes.drafter.model import Drafter
from probes.errors import InputError
from probes.record import PromptRecord, RoundBatch
from probes.target.attention import TargetMasses
from probes.target.trace import TargetTrace

MAX_BLOCK_LOGITS = 1 << 30
"""The draft logits of every depth that a block of starts holds (2 GiB in 16 bits)."""
MIN_BLOCK_STARTS, MAX_BLOCK_STARTS, CPU_BLOCK_STARTS = 256, 8192, 512


def starts_of(trace: TargetTrace, last_tokens: int | None = None) -> tuple[int, int]:
    """The first and the last slot at which a chain starts: P-1 .. L-3, or only the last `last_tokens` of them."""
    last = trace.num_prompt_tokens + trace.num_response_tokens - 3
    first = trace.num_prompt_tokens - 1
    return (first if last_tokens is None else max(first, last - last_tokens + 1)), last


@torch.inference_mode()
def replay(
    drafter: Drafter,
    trace: TargetTrace,
    prompt: PromptRecord,
    *,
    name: str,
    depth: int,
    sink_slots: int = 1,
    cache: SlotCache | None = None,
    last_tokens: int | None = None,
    target_attention: TargetMasses | None = None,
) -> RoundBatch:
    """All chains of one prompt. `cache` may hold the slots of a prefix shared with other prompts.

    `last_tokens` starts chains only at the last n response tokens (the walk then begins there);
    `target_attention` adds `target_divergence`.

    Raises InputError when the response is too short for one round (L - P < 2) or the drafter's rope depends on length.
    """
    first, last = starts_of(trace, last_tokens)
    if last < first:
        raise InputError(
            f"a response of {trace.num_response_tokens} tokens has no round: the first needs 2",
            code="response_too_short",
            where=f"prompt {prompt.prompt_id}",
            remedy="raise --max-new-tokens, or leave the prompt out",
        )
    cache = prefill(drafter, trace.token_ids, trace.aux, cache=cache)
    regions = slot_regions(prompt.region[: cache.num_slots], sink_slots=sink_slots, device=trace.token_ids.device)
    spans = blocks_of_starts(drafter, first, last, depth)
    measured = (
        measure_rounds(
            drafter,
            trace,
            torch.arange(span[0], span[1] + 1, device=trace.token_ids.device),
            span,
            *draft_chains(drafter, trace, cache, regions, span, depth),
            target_attention=target_attention,
        )
        for span in spans
    )
    return record_rounds(
        fetched(measured, last - first + 1),
        np.arange(first, last + 1),
        trace,
        prompt,
        name=name,
        engine="replay",
    )


def draft_chains(
    drafter: Drafter,
    trace: TargetTrace,
    cache: SlotCache,
    regions: UInt8[Tensor, "token"],
    span: tuple[int, int],
    depth: int,
    *,
    given: tuple[Int[Tensor, "round"], Int[Tensor, "round depth"]] | None = None,
) -> tuple[list[Drafted], Fresh]:
    """The chains that start at span[0] .. span[1], and depth 1 at all slots that they come to. Waits for nothing.

    `given`: chains by their place in the span, and what they draft in place of the most probable, rows of the draft
    vocabulary.
    """
    first, last = span
    last_fresh = min(last + depth - 1, cache.num_slots - 1)
    rotation = drafter.rotation(torch.arange(first, last + depth, device=trace.token_ids.device))
    fresh = fresh_pass(drafter, trace, cache, regions, first=first, last=last_fresh, depth=depth, rotation=rotation)
    here = slice(0, last - first + 1)
    drafted, feedback = fresh.drafted.take(here), fresh.output.feedback[here]
    own: tuple[OwnChain, ...] = ()
    drafts: list[Drafted] = []
    for k in range(depth):
        if k > 0:
            output = step(drafter, cache, regions, drafts[-1].token, feedback, start=first, own=own, rotation=rotation)
            drafted = Drafted.from_step(drafter, output, temperature=trace.temperature)
            feedback, own = output.feedback, output.own
        if given is not None:
            place, rows = given
            row = drafted.row.index_copy(0, place, rows[:, k])
            drafted = drafted.with_drafts(drafter, row, temperature=trace.temperature)
        drafts.append(drafted)
    return drafts, fresh


def blocks_of_starts(drafter: Drafter, first: int, last: int, depth: int) -> list[tuple[int, int]]:
    """The starts first .. last in spans whose draft distributions of every depth are held together."""
    most = MAX_BLOCK_STARTS if drafter.norm.weight.is_cuda else CPU_BLOCK_STARTS
    block = max(MIN_BLOCK_STARTS, min(most, MAX_BLOCK_LOGITS // (depth * drafter.spec.draft_vocab_size)))
    return [(begin, min(begin + block - 1, last)) for begin in range(first, last + 1, block)]


def fetched(measured: Iterable[dict[str, Tensor]], num_rounds: int) -> dict[str, np.ndarray]:
    """The blocks' columns, one block behind the other, on the host.

    On CUDA a block is copied, on a stream of its own, while the next one is computed, and the host waits once, at the end.
    The arrays are the pinned memory that was copied to; torch hands it out again when they are gone.
    """
    whole: dict[str, Tensor] = {}
    stream: torch.cuda.Stream | None = None
    begin = 0
    for columns in measured:
        device, num_here = columns["draft_token"].device, len(columns["draft_token"])
        is_cuda = device.type == "cuda"
        if num_here == num_rounds and not is_cuda:
            whole = columns
            break
        if is_cuda:
            stream = stream or torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for name, value in columns.items():
                if name not in whole:
                    shape = (num_rounds, *value.shape[1:])
                    whole[name] = torch.empty(shape, dtype=value.dtype, pin_memory=is_cuda)
                whole[name][begin : begin + num_here].copy_(value, non_blocking=True)
                if stream is not None:
                    value.record_stream(stream)
        begin += num_here
    if stream is not None:
        stream.synchronize()
    return {name: value.numpy() for name, value in whole.items()}
