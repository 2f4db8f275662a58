"""Replay: from a finished text, every position of the response starts a chain, all computed together.

Exact for deterministic drafts: slot t holds (embed(x[t+1]), fused g[t]); the chain that starts at t sees the true slots up
to t and its own, which is the key/value layout an engine has when a round starts at t. Knows nothing of how
the text was made.
"""

from __future__ import annotations

import torch

from probes.attention.slots import slot_regions
from probes.chain import SlotCache, prefill, step
from probes.drafter.model import Drafter
from probes.errors import InputError
from probes.record import PromptRecord, RoundBatch
from probes.rounds import Drafted, fresh_pass, record_rounds
from probes.target import TargetTrace
from probes.target_attention import TargetMasses


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

    `last_tokens` starts chains only at the last so many response tokens (the walk then begins there);
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
    device = trace.token_ids.device
    cache = prefill(drafter, trace.token_ids, trace.aux, cache=cache)
    one_hot = slot_regions(prompt.region[: cache.num_slots], sink_slots=sink_slots, device=device)
    last_fresh = min(last + depth - 1, cache.num_slots - 1)
    fresh = fresh_pass(drafter, trace, cache, one_hot, first=first, last=last_fresh, depth=depth)

    starts = torch.arange(first, last + 1, device=device)
    here = slice(0, len(starts))
    drafts = [fresh.drafted.take(here)]
    feedback, own = fresh.output.feedback[here], ()
    for _ in range(2, depth + 1):
        output = step(drafter, cache, one_hot, drafts[-1].token, feedback, start=first, own=own)
        drafts.append(Drafted.from_step(drafter, output))
        feedback, own = output.feedback, output.own
    return record_rounds(
        drafter,
        trace,
        prompt,
        starts,
        drafts,
        fresh,
        name=name,
        engine="replay",
        target_attention=target_attention,
    )
