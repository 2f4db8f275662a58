"""The texts of one condition, batch by batch: written by the target or the loop, or read where the answer came along.

The part that all prompts share (system prompt and document) is computed once, by the target and by each drafter, and
prompts are decoded in batches. A finished text that is the beginning of a longer one, as the turns of a conversation are,
is read in that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import torch

from probes.chain.live import LiveOptions, LiveRounds, run_live_batch
from probes.chain.step import SlotCache, prefill
from probes.checkpoint.rope import LENGTH_DEPENDENT_ROPE
from probes.conditions import Job, PromptCondition, PromptInput, prompts_of
from probes.job.loaded import LoadedDrafter, Models
from probes.prompt.rendering import Rendered
from probes.prompt.under_condition import (
    prompt_record,
    read_together,
    render_or_take,
    response_ids,
    shared_prefix_tokens,
)
from probes.record import PromptRecord
from probes.target.model import Target
from probes.target.prefix import Prefix
from probes.target.sampler import Sampler
from probes.target.trace import TargetTrace
from probes.target.write import write

MAX_BATCH_TOKENS = 1 << 17
"""Tokens whose keys and values a batch of prompts holds at most (an 8B target in 16 bits: 17 GB), except for one prompt."""


@dataclass(frozen=True)
class Shared:
    """What the prompts of a condition have in common, computed once."""

    prefix: Prefix
    slots: Mapping[str, SlotCache]  # drafter name -> its part
    rounds: Mapping[str, LiveRounds] = field(default_factory=dict)  # by prompt, where the loop itself wrote the text
    whole: TargetTrace | None = None  # the text that was read for several, each a beginning of it

    def slots_of(self, drafter: LoadedDrafter) -> SlotCache | None:
        """Slots known before a text of the batch is measured: those of the prefix, or of the longest (`slots_within`)."""
        slots = self.slots.get(drafter.name)
        return (
            slots if self.whole is None else prefill(drafter.model, self.whole.token_ids, self.whole.aux, cache=slots)
        )


def texts_of(
    job: Job, models: Models, condition: PromptCondition, document: str | None, is_measured: Callable[[str], bool]
) -> Iterator[tuple[list[tuple[PromptRecord, TargetTrace]], Shared]]:
    """Each batch of texts under this condition, with the prefix that all prompts share.

    Batches do not depend on what is measured already: a resumed run decodes the same batches, hence the same texts.
    """
    target, prompts = models.target, prompts_of(job, condition)
    rendered = {p.prompt_id: render_or_take(target.tokenizer, p, condition, document) for p in prompts}
    num_shared = shared_prefix_tokens([r.token_ids for r in rendered.values()])
    some = next(iter(rendered.values())).token_ids
    prefix = target.prefill(some[:num_shared])
    slots = {
        d.name: prefill(d.model, torch.as_tensor(some[:num_shared], dtype=torch.int64, device=job.device), prefix.aux)
        for d in models.drafters
        if num_shared > 1
    }
    shared = Shared(prefix, slots)
    sampler = sampler_of(job)
    for batch in _batches(job, target, [p for p in prompts if not p.is_forced], rendered):
        if all(is_measured(p.prompt_id) for p in batch):
            continue
        heads, ids = [rendered[p.prompt_id].token_ids for p in batch], [p.prompt_id for p in batch]
        if job.draws_drafts:  # the text depends on the drafter
            lived = run_loop(job, target, models.drafters[0], heads, ids, shared)
            traces = [trace for trace, _ in lived]
            rounds = {name: rounds for name, (_, rounds) in zip(ids, lived, strict=True)}
        else:
            traces, rounds = (
                write(
                    target,
                    heads,
                    ids,
                    max_new_tokens=job.max_new_tokens,
                    num_continuation_tokens=job.depth,
                    sampler=sampler,
                    prefix=prefix,
                ),
                {},
            )
        pairs = zip(batch, traces, strict=True)
        yield (
            [(_prompt_record(p, condition, rendered[p.prompt_id], trace), trace) for p, trace in pairs],
            replace(shared, rounds=rounds),
        )
    forced = [p for p in prompts if p.is_forced]
    for texts, whole in _finished_texts(target, forced, condition, rendered, prefix, is_measured):
        yield texts, replace(shared, whole=whole)


def _finished_texts(
    target: Target,
    prompts: Sequence[PromptInput],
    condition: PromptCondition,
    rendered: Mapping[str, Rendered],
    prefix: Prefix,
    is_measured: Callable[[str], bool],
) -> Iterator[tuple[list[tuple[PromptRecord, TargetTrace]], TargetTrace | None]]:
    """Prompts with their responses, those together that one reading serves, and what was read where they are several."""
    texts = [
        np.concatenate([rendered[p.prompt_id].token_ids, np.asarray(response_ids(target.tokenizer, p), np.int32)])
        for p in prompts
    ]
    groups = [[i] for i in range(len(prompts))] if _has_length_dependent_rope(target) else read_together(texts)
    for group in groups:
        if all(is_measured(prompts[i].prompt_id) for i in group):
            continue
        heads = [rendered[prompts[i].prompt_id] for i in group]
        longest = max((texts[i] for i in group), key=len)
        whole = target.read(longest, min(len(head.token_ids) for head in heads), prefix=prefix)
        read = []
        for i, head in zip(group, heads, strict=True):
            trace = whole.beginning(len(head.token_ids), len(texts[i]))
            read.append((_prompt_record(prompts[i], condition, head, trace), trace))
        yield read, whole if len(group) > 1 else None


def _has_length_dependent_rope(target: Target) -> bool:
    """Whether what is computed at a position also depends on how long the text is."""
    rope = getattr(target.config, "rope_parameters", None) or {}
    by_layer_type = [r for r in rope.values() if isinstance(r, Mapping)]
    return any(r.get("rope_type") in LENGTH_DEPENDENT_ROPE for r in (rope, *by_layer_type))


def slots_within(slots: SlotCache | None, num_tokens: int) -> SlotCache | None:
    """The slots of a text of `num_tokens`, from those of a text that begins with it. Nothing is copied."""
    if slots is None or slots.num_slots < num_tokens:
        return slots
    last = num_tokens - 1
    return SlotCache(tuple(k[:last] for k in slots.k), tuple(v[:last] for v in slots.v))


def _batches(
    job: Job, target: Target, prompts: Sequence[PromptInput], rendered: Mapping[str, Rendered]
) -> Iterator[list[PromptInput]]:
    """Batches of prompts, fewer where they are long; of equal length where the target cannot pad."""

    def length(prompt: PromptInput) -> int:
        return len(rendered[prompt.prompt_id].token_ids)

    longest = max(map(length, prompts), default=0) + job.max_new_tokens + job.depth
    if target.can_pad(longest):
        groups = [list(prompts)]
    else:
        groups = [list(g) for _, g in groupby(sorted(prompts, key=length), key=length)]
    size = max(1, min(job.batch_size, MAX_BATCH_TOKENS // longest))
    for group in groups:
        for begin in range(0, len(group), size):
            yield group[begin : begin + size]


def _prompt_record(prompt: PromptInput, condition: PromptCondition, head: Rendered, trace: TargetTrace) -> PromptRecord:
    agreement, mean_logprob = float("nan"), float("nan")
    if trace.is_forced and trace.num_response_tokens:
        text = trace.token_ids[trace.num_prompt_tokens :]
        agreement = float((trace.choices.best == text).float().mean())
        mean_logprob = float(trace.choices.text_logprob.mean())
    return prompt_record(
        prompt,
        condition,
        head,
        trace.token_ids.cpu().numpy(),
        num_response_tokens=trace.num_response_tokens,
        finish_reason=trace.finish_reason,
        is_forced=trace.is_forced,
        text_agreement=agreement,
        mean_logprob=mean_logprob,
    )


def sampler_of(job: Job) -> Sampler:
    return Sampler(job.temperature, job.seed, top_k=job.top_k, top_p=job.top_p)


def run_loop(
    job: Job,
    target: Target,
    drafter: LoadedDrafter,
    prompts: Sequence[np.ndarray],
    prompt_ids: Sequence[str],
    shared: Shared,
) -> list[tuple[TargetTrace, LiveRounds]]:
    return run_live_batch(
        drafter.model,
        target,
        prompts,
        prompt_ids,
        LiveOptions(
            depth=job.depth,
            max_new_tokens=job.max_new_tokens,
            sampler=sampler_of(job),
            draft_sample_method=job.draft_sample_method,
            prefix=shared.prefix,
            slots=shared.slots.get(drafter.name),
        ),
    )
