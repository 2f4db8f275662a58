"""Live: the real draft-verify loop. Draft K tokens, verify them with the target in one pass, accept, repeat.

Deterministic (greedy) drafts under standard rejection sampling. At temperature 0 a draft is accepted when it is the
target's argmax; at T > 0 the target's token is drawn from p and the draft accepted when it is that token, which is the
same as accepting with probability p(draft) and else drawing from the rest. Knows nothing of conditions or files.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from probes.attention.slots import slot_regions, text_regions
from probes.chain import SlotCache, concat_aux, prefill, step
from probes.drafter.model import Drafter
from probes.record import PromptRecord, RoundBatch
from probes.replay import fetched
from probes.rounds import Drafted, fresh_pass, measure_rounds, record_rounds
from probes.target import Prefix, Sampler, Target, TargetTrace
from probes.target_attention import TargetMasses

BLOCK_ROUNDS = 256
"""Rounds that are recorded together: the target's rows of all their positions are held (memory, nothing else)."""


@dataclass
class LiveRounds:
    """What the loop drafted: starts, the drafts of each round by depth, and device times."""

    starts: list[int] = field(default_factory=list)
    drafts: list[list[Drafted]] = field(default_factory=list)  # round -> depth
    draft_us: list[float] = field(default_factory=list)
    verify_us: list[float] = field(default_factory=list)


class Stopwatch:
    """Microseconds between marks: device events on CUDA, a monotonic clock elsewhere (where the work is synchronous)."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self.marks: list[torch.cuda.Event | int] = []

    def mark(self) -> None:
        if self.is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter_ns())

    def laps_us(self) -> list[float]:
        """Time between consecutive marks; waits for the device."""
        if self.is_cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) * 1e3 for a, b in zip(self.marks, self.marks[1:], strict=False)]
        return [(b - a) / 1e3 for a, b in zip(self.marks, self.marks[1:], strict=False)]


@torch.inference_mode()
def run_live(
    drafter: Drafter,
    target: Target,
    prompt_ids: np.ndarray,
    region: np.ndarray,
    *,
    prompt_id: str,
    depth: int,
    max_new_tokens: int,
    sampler: Sampler,
    sink_slots: int = 1,
    prefix: Prefix | None = None,
    slots: SlotCache | None = None,
) -> tuple[TargetTrace, LiveRounds]:
    """Runs rounds until the response is complete. The last round may run past the end: its tokens are continuation.

    `region` holds the prompt tokens' regions; `prefix` and `slots` the target's and the drafter's part of the prompt that
    was computed before.
    """
    num_prompt, device = len(prompt_ids), target.device
    target.check_length(num_prompt + max_new_tokens + depth + 1, "a prompt with its response")
    whole = text_regions(region, num_prompt + max_new_tokens + depth + 1)
    regions = slot_regions(whole, sink_slots=sink_slots, device=device)

    prompt = torch.as_tensor(prompt_ids, dtype=torch.int64, device=device)
    head = target.prefill(prompt_ids[:-1], prefix=prefix)
    cache = head.fork()
    logits, states = target.forward(prompt[None, -1:], cache)
    aux = {i: torch.cat([head.aux[i], s[0]]) if i in head.aux else s[0] for i, s in states.items()}
    tokens = torch.cat([prompt, sampler(logits[0], [(prompt_id, num_prompt)])])
    kept_logits = [logits[0]]
    rounds, clock = LiveRounds(), Stopwatch(device)
    is_stopped = int(tokens[-1]) in target.stop_ids
    end = num_prompt + (1 if is_stopped else max_new_tokens)  # L: the text's length once it is complete
    t = num_prompt - 1
    while t < end - 2:
        clock.mark()
        slots = prefill(drafter, tokens, aux, cache=slots)
        token, hidden, own = tokens[t + 1 :], drafter.fuse(concat_aux(drafter, aux, t, t + 1)), None
        drafts: list[Drafted] = []
        for _ in range(depth):
            output = step(drafter, slots, regions, token, hidden, start=t, own=own)
            drafts.append(Drafted.from_step(drafter, output))
            token, hidden, own = drafts[-1].token, output.feedback, output.own
        clock.mark()
        draft_ids = torch.cat([d.token for d in drafts])
        logits, states = target.forward(torch.cat([tokens[-1:], draft_ids])[None], cache, num_logits=depth + 1)
        chosen = sampler(logits[0], [(prompt_id, t + 2 + k) for k in range(depth + 1)])
        accepted = int((chosen[:-1] == draft_ids).long().cumprod(dim=0).sum())
        if accepted < depth:  # crop(0) empties the cache before transformers 5.17
            cache.crop(accepted - depth)
        clock.mark()
        emitted = chosen[: accepted + 1]
        kept_logits.append(logits[0, : accepted + 1])
        aux = {i: torch.cat([aux[i], s[0, : accepted + 1]]) for i, s in states.items()}
        tokens = torch.cat([tokens, emitted])
        rounds.starts.append(t)
        rounds.drafts.append(drafts)
        for place, value in enumerate(emitted.tolist(), start=t + 2):
            if value in target.stop_ids and place < end:
                is_stopped, end = True, place + 1
        t += accepted + 1
    laps = clock.laps_us()
    rounds.draft_us, rounds.verify_us = laps[0::3], laps[1::3]
    trace = TargetTrace(
        token_ids=tokens,
        num_prompt_tokens=num_prompt,
        num_response_tokens=end - num_prompt,
        finish_reason="stop" if is_stopped else "length",
        aux=aux,
        logits=torch.cat(kept_logits),
        temperature=sampler.temperature,
    )
    return trace, rounds


@torch.inference_mode()
def record_live(
    drafter: Drafter,
    trace: TargetTrace,
    rounds: LiveRounds,
    prompt: PromptRecord,
    *,
    name: str,
    sink_slots: int = 1,
    target_attention: TargetMasses | None = None,
) -> RoundBatch:
    """The rounds' record. What depth 1 would have predicted with true features is computed afterwards, on the text."""
    depth, device = len(rounds.drafts[0]), trace.token_ids.device
    region = text_regions(prompt.region[: trace.num_prompt_tokens], len(trace.token_ids))
    regions = slot_regions(region, sink_slots=sink_slots, device=device)
    cache = prefill(drafter, trace.token_ids, trace.aux)
    fresh = fresh_pass(drafter, trace, cache, regions, first=rounds.starts[0], last=cache.num_slots - 1, depth=depth)
    measured = (
        measure_rounds(
            drafter,
            trace,
            torch.tensor(starts, device=device),
            (starts[0], starts[-1]),
            [Drafted.concat([r[k] for r in rounds.drafts[begin : begin + BLOCK_ROUNDS]]) for k in range(depth)],
            fresh,
            target_attention=target_attention,
        )
        for begin in range(0, len(rounds.starts), BLOCK_ROUNDS)
        for starts in [rounds.starts[begin : begin + BLOCK_ROUNDS]]
    )
    pieces = list(fetched(measured))
    return record_rounds(
        {column: np.concatenate([p[column] for p in pieces]) for column in pieces[0]},
        np.asarray(rounds.starts),
        trace,
        prompt,
        name=name,
        engine="live",
        draft_us=np.asarray(rounds.draft_us, np.float32),
        verify_us=np.asarray(rounds.verify_us, np.float32),
    )
