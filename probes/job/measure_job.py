"""One whole measurement: every drafter x system prompt x template x context length x prompt, record by record.

Knows nothing of files of prompts or runs: inputs are given as text, records go to `write_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from probes.attention.slots import text_regions
from probes.chain.live import can_batch, record_live
from probes.chain.lossless import compare_with_plain, judge
from probes.chain.replay import replay
from probes.conditions import Job, Progress, PromptInput, SelfCheck, prompt_conditions, prompts_of
from probes.errors import InputError
from probes.job.condition_texts import Shared, run_loop, sampler_of, slots_within, texts_of
from probes.job.loaded import LoadedDrafter, Models
from probes.prompt.rendering import insert_context
from probes.prompt.under_condition import render_or_take, response_ids
from probes.record import PromptConditionKey, PromptRecord, Record
from probes.target.attention import TargetMasses, target_masses
from probes.target.model import Target
from probes.target.trace import TargetTrace

ONE_BY_ONE = "live: one request at a time; this target's windows, positions or cache do not let texts share a batch"


def measure_conditions(
    job: Job,
    models: Models,
    write_batch: Callable[[Record], None],
    *,
    is_done: Callable[[str, PromptConditionKey, str], bool] = lambda drafter, condition, prompt_id: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> SelfCheck:
    """Measures everything that is not done yet. Raises SelfCheckError when the numbers contradict themselves."""
    check = SelfCheck()
    measurement = _Measurement(job, models.target, write_batch, check)
    num_units = sum(len(prompts_of(job, condition)) for condition in prompt_conditions(job)) * len(models.drafters)
    num_done = 0
    documents: dict[int, str | None] = {}
    for condition in prompt_conditions(job):
        if condition.context_tokens not in documents:
            documents[condition.context_tokens] = (
                insert_context(job.documents, condition.context_tokens, models.target.tokenizer)
                if condition.context_tokens
                else None
            )

        def is_measured(prompt_id: str, key: PromptConditionKey = condition.key) -> bool:
            return all(is_done(d.name, key, prompt_id) for d in models.drafters)

        on_progress(Progress(num_done=num_done, num_units=num_units, condition=str(condition)))
        prompts = prompts_of(job, condition)
        if all(is_measured(p.prompt_id) for p in prompts):
            num_done += len(prompts) * len(models.drafters)
            continue
        for batch, shared in texts_of(job, models, condition, documents[condition.context_tokens], is_measured):
            for prompt, _ in batch:
                write_batch(prompt)
            attention = {
                p.prompt_id: _attention(job, models.target, p, trace, shared)
                for p, trace in batch
                if job.engine == "replay" or trace.is_forced or shared.rounds  # else the loop's own text is looked at
            }
            for drafter in models.drafters:
                todo = [(p, trace) for p, trace in batch if not is_done(drafter.name, condition.key, p.prompt_id)]
                num_done += len(batch) - len(todo)
                for _ in measurement.measure(drafter, todo, shared, attention):
                    num_done += 1
                    on_progress(Progress(num_done=num_done, num_units=num_units, condition=str(condition)))
                on_progress(Progress(num_done=num_done, num_units=num_units, condition=str(condition)))
    for drafter in models.drafters:
        check.notes += [f"{drafter.name}: {column} is null: {why}" for column, why in drafter.model.nulls.items()]
    judge(job, check)
    return check


def check_job(job: Job, models: Models) -> None:
    """Raises InputError when a text cannot fit: of each condition the longest prompt, at the longest context, and the
    longest answer to be replayed; and for token ids that the target has not."""
    target = models.target
    for prompt in job.prompts:
        for token_ids in (prompt.token_ids or (), prompt.response_token_ids or ()):
            _check_token_ids(target, token_ids, prompt.prompt_id)
    num_context = max(job.context_tokens)
    document = insert_context(job.documents, num_context, target.tokenizer) if num_context else None
    for condition in prompt_conditions(job):
        if condition.context_tokens == num_context:
            prompts = prompts_of(job, condition)
            if job.draws_drafts and any(p.is_forced for p in prompts):
                raise InputError(
                    "some prompts come with a response: which probabilistic drafts it would accept cannot be told",
                    code="forced_with_probabilistic_drafts",
                    where="--draft-sample-method",
                    remedy="take greedy drafts, or leave the responses out",
                )
            lengths = [(_num_characters(p), len(p.response or p.response_token_ids or ())) for p in prompts]
            longest = max(range(len(prompts)), key=lambda i: lengths[i][0])
            longest_text = max(range(len(prompts)), key=lambda i: sum(lengths[i]))
            for prompt in (prompts[i] for i in {longest, longest_text}):
                head = len(render_or_take(target.tokenizer, prompt, condition, document).token_ids)
                rest = (
                    len(response_ids(target.tokenizer, prompt))
                    if prompt.is_forced
                    else job.max_new_tokens + job.depth + 1
                )
                target.check_length(head + rest, f"condition {condition}, prompt {prompt.prompt_id}")


def _check_token_ids(target: Target, token_ids: Sequence[int], prompt_id: str) -> None:
    if max(token_ids, default=0) >= target.config.vocab_size:
        raise InputError(
            f"token id {max(token_ids)} is outside the target's vocabulary of {target.config.vocab_size}",
            code="bad_token_id",
            where=f"prompt {prompt_id}",
            remedy="give token ids of this target's tokenizer",
        )


def _num_characters(prompt: PromptInput) -> int:
    """The length of what the prompt brings, in characters or token ids: only to find the longest of several."""
    return len(prompt.token_ids or prompt.text or ()) + sum(len(str(m.get("content"))) for m in prompt.messages)


@dataclass(frozen=True)
class _Measurement:
    """One job while it runs: what every batch of texts is measured with."""

    job: Job
    target: Target
    write_batch: Callable[[Record], None]
    check: SelfCheck

    def measure(
        self,
        drafter: LoadedDrafter,
        texts: Sequence[tuple[PromptRecord, TargetTrace]],
        shared: Shared,
        attention: Mapping[str, TargetMasses | None],
    ) -> Iterator[None]:
        """A batch of prompts with one drafter, by the job's engine; yields after each prompt."""
        job, check = self.job, self.check
        replayed = [(p, trace) for p, trace in texts if job.engine == "replay" or trace.is_forced]
        slots = shared.slots_of(drafter) if replayed else None
        for prompt, trace in replayed:
            if trace.num_response_tokens < 2:
                check.num_too_short += 1
            else:
                batch = replay(
                    drafter.model,
                    trace,
                    prompt,
                    name=drafter.name,
                    depth=job.depth,
                    sink_slots=job.sink_slots,
                    cache=slots_within(slots, len(trace.token_ids)),
                    last_tokens=job.last_tokens,
                    target_attention=attention[prompt.prompt_id],
                )
                check.num_ties += batch.num_ties
                self.write_batch(batch)
            yield
        looped = [(p, trace) for p, trace in texts if job.engine != "replay" and not trace.is_forced]
        yield from self._measure_live(drafter, looped, shared, attention)

    def _measure_live(
        self,
        drafter: LoadedDrafter,
        texts: Sequence[tuple[PromptRecord, TargetTrace]],
        shared: Shared,
        attention: Mapping[str, TargetMasses | None],
    ) -> Iterator[None]:
        """The texts are plain decoding's and checked to be the loop's too, or the loop's own where drafts are drawn."""
        job, target, check = self.job, self.target, self.check
        long_enough = [(p, trace) for p, trace in texts if trace.num_response_tokens >= 2]
        for _ in range(len(texts) - len(long_enough)):
            check.num_too_short += 1
            yield
        if not long_enough:
            return
        if shared.rounds:
            lived = [(trace, shared.rounds[p.prompt_id]) for p, trace in long_enough]
        else:
            heads = [p.token_ids[: p.num_prompt_tokens] for p, _ in long_enough]
            lived = run_loop(job, target, drafter, heads, [p.prompt_id for p, _ in long_enough], shared)
            most = max(map(len, heads)) + job.max_new_tokens + job.depth + 1
            if len(heads) > 1 and not can_batch(target, most, shared.prefix) and ONE_BY_ONE not in check.notes:
                check.notes.append(ONE_BY_ONE)
        for (prompt, plain), (trace, rounds) in zip(long_enough, lived, strict=True):
            is_same = bool(shared.rounds) or compare_with_plain(
                plain, trace, sampler_of(job), check, is_float32=job.dtype == "float32", prompt_id=prompt.prompt_id
            )
            if not rounds.starts:
                check.num_too_short += 1
                yield
                continue
            batch = record_live(
                drafter.model,
                trace,
                rounds,
                prompt,
                name=drafter.name,
                sink_slots=job.sink_slots,
                cache=shared.slots.get(drafter.name),
                target_attention=attention[prompt.prompt_id]
                if trace is plain
                else _attention(job, target, prompt, trace, shared),
            )
            check.num_ties += batch.num_ties
            # a text that differs after a tie has its own length: the plain text's identity does not hold for it
            self.write_batch(batch if is_same else replace(batch, num_trimmed_tokens=None))
            yield


def _attention(
    job: Job, target: Target, prompt: PromptRecord, trace: TargetTrace, shared: Shared
) -> TargetMasses | None:
    """Where the target looks on this text, when that is asked for. A live text may be longer than the plain one."""
    if not job.target_attention or trace.num_response_tokens < 2:
        return None
    region = text_regions(prompt.region[: trace.num_prompt_tokens], len(trace.token_ids))
    return target_masses(target, trace, region, sink_slots=job.sink_slots, prefix=shared.prefix)
