"""One whole measurement: every drafter x system prompt x template x context length x prompt, record by record.

The part of a condition that all prompts share (system prompt and document) is computed once, by the target and by each
drafter, and prompts are decoded in batches. Knows nothing of files of prompts or runs: inputs are given as text, records
go to `write_batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch

from probes.attention.slots import text_regions
from probes.chain import SlotCache, prefill
from probes.checkpoint.read import read_spec
from probes.checkpoint.spec import DrafterSpec
from probes.checkpoint.tensors import load_tensors
from probes.conditions import Cell, Job, Progress, PromptInput, SelfCheck, cells, prompts_of
from probes.drafter.model import Drafter
from probes.errors import InputError
from probes.interventions.base import DrafterIntervention, TargetFacts
from probes.interventions.registry import select
from probes.live import LiveRounds, can_batch, record_live, run_live_batch
from probes.lossless import compare_with_plain, judge
from probes.record import TEXT_REGIONS, PromptRecord, Record
from probes.rendering import Rendered, insert_context, render
from probes.replay import replay
from probes.target import Prefix, Sampler, Target, TargetTrace, target_config
from probes.target_attention import TargetMasses, target_masses

ONE_BY_ONE = "live: one request at a time; this target's windows, positions or cache do not let texts share a batch"


MAX_BATCH_TOKENS = 1 << 17
"""Tokens whose keys and values a batch of prompts holds at most (an 8B target in 16 bits: 17 GB), except for one prompt."""


@dataclass(frozen=True, kw_only=True)
class LoadedDrafter:
    name: str
    spec: DrafterSpec
    model: Drafter


@dataclass(frozen=True)
class Models:
    """A target with its drafters, loaded once. `reference`: another target that interventions compare with."""

    target: Target
    drafters: tuple[LoadedDrafter, ...]
    reference: Target | None = None


def load_models(job: Job) -> Models:
    """Loads the target and every drafter. Raises CheckpointError / InputError before anything heavy is computed."""
    dtype = getattr(torch, job.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"unknown dtype {job.dtype!r}", code="unknown_dtype", remedy="float32, bfloat16 or float16")
    _check_device(job.device)
    config = target_config(job.target, trust_remote_code=job.trust_remote_code)
    specs = {name: read_spec(path, target_config=config) for name, path in job.drafters.items()}
    ids = sorted({i for spec in specs.values() for i in spec.aux_layer_ids})
    target = Target.load(
        job.target,
        dtype=dtype,
        device=job.device,
        aux_layer_ids=ids,
        trust_remote_code=job.trust_remote_code,
    )
    drafters = []
    for name, spec in specs.items():
        drafters.append(
            LoadedDrafter(
                name=name,
                spec=spec,
                model=Drafter.load(
                    spec,
                    load_tensors(job.drafters[name], spec, dtype=dtype, device=job.device),
                    target_embedding=None if spec.has_own_embedding else target.embedding,
                    target_lm_head=None if spec.has_own_lm_head else target.lm_head,
                    dtype=dtype,
                    device=job.device,
                ),
            )
        )
    return for_interventions(job, Models(target, tuple(drafters)))


def _check_device(name: str) -> None:
    """Raises InputError for a device that torch does not know or cannot see."""
    try:
        is_cuda = torch.device(name).type == "cuda"
    except RuntimeError as error:
        raise InputError(
            f"torch knows no device {name!r}", code="no_such_device", where="--device", remedy="use cpu or cuda"
        ) from error
    if is_cuda and not torch.cuda.is_available():
        raise InputError(
            "no CUDA device is visible to torch", code="no_such_device", where="--device", remedy="use --device cpu"
        )


def for_interventions(job: Job, models: Models) -> Models:
    """The same models, ready for the job's interventions: further layers captured, the reference target loaded.

    Raises CheckpointError / InputError for a reference target that cannot be loaded or is of another shape.
    """
    selected = select(job.interventions)
    if not selected:
        return models
    target = models.target
    target.capture(ids_with_interventions(job, [d.spec for d in models.drafters], target.config.to_dict()))
    if job.reference_target is None:
        return models
    reference = Target.load(
        job.reference_target,
        dtype=getattr(torch, job.dtype),
        device=job.device,
        aux_layer_ids=sorted({i for d in models.drafters for i in d.spec.aux_layer_ids}),
        trust_remote_code=job.trust_remote_code,
    )
    _check_reference(target, reference, job.reference_target)
    return replace(models, reference=reference)


def ids_with_interventions(job: Job, specs: Collection[DrafterSpec], config: Mapping[str, Any]) -> list[int]:
    """The boundaries to capture: the drafters' own, and those that the interventions asked for will read."""
    facts = TargetFacts(
        num_layers=int(config["num_hidden_layers"]), hidden_size=int(config["hidden_size"]), config=config
    )
    ids = {i for spec in specs for i in spec.aux_layer_ids}
    for spec in specs:
        for intervention in select(job.interventions):
            if isinstance(intervention, DrafterIntervention) and intervention.applies(spec, facts):
                ids.update(intervention.spec(spec, facts).aux_layer_ids)
    return sorted(ids)


def _check_reference(target: Target, reference: Target, path: str) -> None:
    """Raises InputError when the two targets cannot read the same tokens into states of the same size."""
    for name in ("vocab_size", "hidden_size", "num_hidden_layers"):
        ours, theirs = getattr(target.config, name), getattr(reference.config, name)
        if ours != theirs:
            raise InputError(
                f"the reference target has {name} {theirs}, the target {ours}",
                code="reference_differs",
                where=path,
                remedy="give the target that the drafter was trained for: the same model before it was changed",
            )


def render_prompt(tokenizer: object, prompt: PromptInput, cell: Cell, document: str | None) -> Rendered:
    """The prompt under this condition, with regions. "none" means that no system text reaches the target: where the
    template would insert its own, an empty system turn is sent instead (and noted)."""
    messages = [dict(m) for m in prompt.messages]
    if cell.system_prompt.text is not None:
        messages = [{"role": "system", "content": cell.system_prompt.text}, *_without_system(messages)]
    elif not cell.system_prompt.is_own:
        messages = _without_system(messages)

    def rendered(turns: list[dict[str, object]]) -> Rendered:
        return render(
            tokenizer,
            turns,
            template=cell.template.source,
            context=document,
            tools=list(prompt.tools) or None,
            chat_template_kwargs=dict(prompt.chat_template_kwargs),
        )

    result = rendered(messages)
    if cell.system_prompt.name != "none" or cell.system_prompt.text is not None or not result.num_tokens("system"):
        return result
    without = rendered([{"role": "system", "content": ""}, *messages])
    if without.num_tokens("system"):
        note = f"the template always writes {result.num_tokens('system')} tokens of system text: none cannot be had"
        return replace(result, notes=(*result.notes, note))
    note = "the template inserts a default system prompt: an empty system turn was sent to have none"
    return replace(without, notes=(*without.notes, note))


def _without_system(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    return [m for m in messages if m.get("role") not in ("system", "developer")]


def shared_prefix_tokens(prompts: Sequence[np.ndarray]) -> int:
    """Leading tokens that all prompts share, at most one less than the shortest has."""
    limit = min(len(p) for p in prompts) - 1
    stacked = np.stack([p[:limit] for p in prompts])
    differs = (stacked != stacked[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else limit


def check_job(job: Job, models: Models) -> None:
    """Raises InputError when a text cannot fit: of each condition the longest prompt, at the longest context, and the
    longest answer to be replayed; and for token ids that the target has not."""
    target = models.target
    for prompt in job.prompts:
        for token_ids in (prompt.token_ids or (), prompt.response_token_ids or ()):
            _check_token_ids(target, token_ids, prompt.prompt_id)
    num_context = max(job.context_tokens)
    document = insert_context(job.documents, num_context, target.tokenizer) if num_context else None
    for cell in cells(job):
        if cell.context_tokens == num_context:
            prompts = prompts_of(job, cell)
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
                head = len(render_or_take(target, prompt, cell, document).token_ids)
                rest = len(_response_ids(target, prompt)) if prompt.is_forced else job.max_new_tokens + job.depth + 1
                target.check_length(head + rest, f"condition {cell}, prompt {prompt.prompt_id}")


def _num_characters(prompt: PromptInput) -> int:
    """Of what the prompt brings, or its token ids: only to find the longest of several."""
    return len(prompt.token_ids or prompt.text or ()) + sum(len(str(m.get("content"))) for m in prompt.messages)


def run_job(
    job: Job,
    models: Models,
    write_batch: Callable[[Record], None],
    *,
    is_done: Callable[[str, tuple[str, str, int], str], bool] = lambda drafter, cell, prompt_id: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> SelfCheck:
    """Measures everything that is not done yet. Raises SelfCheckError when the numbers contradict themselves."""
    check = SelfCheck()
    num_units = sum(len(prompts_of(job, cell)) for cell in cells(job)) * len(models.drafters)
    num_done = 0
    documents: dict[int, str | None] = {}
    for cell in cells(job):
        if cell.context_tokens not in documents:
            documents[cell.context_tokens] = (
                insert_context(job.documents, cell.context_tokens, models.target.tokenizer)
                if cell.context_tokens
                else None
            )

        def is_measured(prompt_id: str, key: tuple[str, str, int] = cell.key) -> bool:
            return all(is_done(d.name, key, prompt_id) for d in models.drafters)

        on_progress(Progress(num_done=num_done, num_units=num_units, condition=str(cell)))
        prompts = prompts_of(job, cell)
        if all(is_measured(p.prompt_id) for p in prompts):
            num_done += len(prompts) * len(models.drafters)
            continue
        for batch, shared in texts_of(job, models, cell, documents[cell.context_tokens], is_measured):
            for prompt, _ in batch:
                write_batch(prompt)
            attention = {p.prompt_id: _attention(job, models.target, p, trace, shared) for p, trace in batch}
            for drafter in models.drafters:
                todo = [(p, trace) for p, trace in batch if not is_done(drafter.name, cell.key, p.prompt_id)]
                num_done += len(batch) - len(todo)
                for _ in _measure(job, models.target, drafter, todo, shared, attention, write_batch, check):
                    num_done += 1
                    on_progress(Progress(num_done=num_done, num_units=num_units, condition=str(cell)))
                on_progress(Progress(num_done=num_done, num_units=num_units, condition=str(cell)))
    judge(job, check)
    return check


@dataclass(frozen=True)
class Shared:
    """What the prompts of a condition have in common, computed once."""

    prefix: Prefix
    slots: Mapping[str, SlotCache]  # drafter name -> its part
    rounds: Mapping[str, LiveRounds] = field(default_factory=dict)  # by prompt, where the loop itself wrote the text


def texts_of(
    job: Job, models: Models, cell: Cell, document: str | None, is_measured: Callable[[str], bool]
) -> Iterator[tuple[list[tuple[PromptRecord, TargetTrace]], Shared]]:
    """Each batch of texts under this condition, with the prefix that all prompts share.

    Batches do not depend on what is measured already: a resumed run decodes the same batches, hence the same texts.
    """
    target, prompts = models.target, prompts_of(job, cell)
    rendered = {p.prompt_id: render_or_take(target, p, cell, document) for p in prompts}
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
            lived = _run_loop(job, target, models.drafters[0], heads, ids, shared)
            traces = [trace for trace, _ in lived]
            rounds = {name: rounds for name, (_, rounds) in zip(ids, lived, strict=True)}
        else:
            traces, rounds = (
                target.write(
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
            [(_prompt_record(p, cell, rendered[p.prompt_id], trace), trace) for p, trace in pairs],
            replace(shared, rounds=rounds),
        )
    for prompt in prompts:
        if prompt.is_forced and not is_measured(prompt.prompt_id):
            head = rendered[prompt.prompt_id]
            text = np.concatenate([head.token_ids, np.asarray(_response_ids(target, prompt), np.int32)])
            trace = target.read(text, len(head.token_ids), prefix=prefix)
            yield [(_prompt_record(prompt, cell, head, trace), trace)], shared


def render_or_take(target: Target, prompt: PromptInput, cell: Cell, document: str | None) -> Rendered:
    """The prompt rendered, or what came rendered already."""
    if prompt.text is not None:
        taken = render(target.tokenizer, [{"role": "user", "content": prompt.text}], template="raw")
        user, unknown = TEXT_REGIONS.index("user"), TEXT_REGIONS.index("unknown")
        note = "the prompt came rendered: no template was applied, its regions are unknown"
        region = np.where(taken.region == user, np.uint8(unknown), taken.region)
        return replace(taken, region=region, notes=(note, *(n for n in taken.notes if not n.startswith("messages[0]"))))
    if prompt.token_ids is None:
        return render_prompt(target.tokenizer, prompt, cell, document)
    ids = np.asarray(prompt.token_ids, np.int32)
    return Rendered(
        token_ids=ids,
        region=np.full(len(ids), TEXT_REGIONS.index("unknown"), np.uint8),
        text=target.tokenizer.decode(ids),
        notes=("the prompt came as token ids: its regions are unknown",),
    )


def _response_ids(target: Target, prompt: PromptInput) -> Sequence[int]:
    """The answer that came with the prompt, as token ids."""
    if prompt.response_token_ids is not None:
        return prompt.response_token_ids
    ids: list[int] = target.tokenizer(prompt.response, add_special_tokens=False)["input_ids"]
    return ids


def _check_token_ids(target: Target, token_ids: Sequence[int], prompt_id: str) -> None:
    if max(token_ids, default=0) >= target.config.vocab_size:
        raise InputError(
            f"token id {max(token_ids)} is outside the target's vocabulary of {target.config.vocab_size}",
            code="bad_token_id",
            where=f"prompt {prompt_id}",
            remedy="give token ids of this target's tokenizer",
        )


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


def _prompt_record(prompt: PromptInput, cell: Cell, head: Rendered, trace: TargetTrace) -> PromptRecord:
    num_tokens = len(trace.token_ids)
    agreement, mean_logprob = float("nan"), float("nan")
    if trace.is_forced and trace.num_response_tokens:
        text = trace.token_ids[trace.num_prompt_tokens :]
        agreement = float((trace.choices.best == text).float().mean())
        mean_logprob = float(trace.choices.text_logprob.mean())
    return PromptRecord(
        prompt_id=prompt.prompt_id,
        system_prompt=cell.system_prompt.name,
        template=cell.template.name,
        context_tokens=cell.context_tokens,
        category=prompt.category,
        messages=tuple(dict(m) for m in prompt.messages),
        token_ids=trace.token_ids.cpu().numpy().astype(np.int32),
        region=text_regions(head.region, num_tokens),
        num_prompt_tokens=trace.num_prompt_tokens,
        num_response_tokens=trace.num_response_tokens,
        num_continuation_tokens=num_tokens - trace.num_prompt_tokens - trace.num_response_tokens,
        finish_reason=trace.finish_reason,
        is_forced=trace.is_forced,
        text_agreement=agreement,
        mean_logprob=mean_logprob,
        notes=head.notes,
    )


def sampler_of(job: Job) -> Sampler:
    return Sampler(job.temperature, job.seed, top_k=job.top_k, top_p=job.top_p)


def _run_loop(
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
        prompt_ids=prompt_ids,
        depth=job.depth,
        max_new_tokens=job.max_new_tokens,
        sampler=sampler_of(job),
        draft_sample_method=job.draft_sample_method,
        prefix=shared.prefix,
        slots=shared.slots.get(drafter.name),
    )


def _measure(
    job: Job,
    target: Target,
    drafter: LoadedDrafter,
    texts: Sequence[tuple[PromptRecord, TargetTrace]],
    shared: Shared,
    attention: Mapping[str, TargetMasses | None],
    write_batch: Callable[[Record], None],
    check: SelfCheck,
) -> Iterator[None]:
    """A batch of prompts with one drafter, by the job's engine; yields after each prompt."""
    replayed = [(p, trace) for p, trace in texts if job.engine == "replay" or trace.is_forced]
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
                cache=shared.slots.get(drafter.name),
                last_tokens=job.last_tokens,
                target_attention=attention[prompt.prompt_id],
            )
            check.num_ties += batch.num_ties
            write_batch(batch)
        yield
    looped = [(p, trace) for p, trace in texts if job.engine != "replay" and not trace.is_forced]
    yield from _measure_live(job, target, drafter, looped, shared, attention, write_batch, check)


def _measure_live(
    job: Job,
    target: Target,
    drafter: LoadedDrafter,
    texts: Sequence[tuple[PromptRecord, TargetTrace]],
    shared: Shared,
    attention: Mapping[str, TargetMasses | None],
    write_batch: Callable[[Record], None],
    check: SelfCheck,
) -> Iterator[None]:
    """The texts are plain decoding's and checked to be the loop's too, or the loop's own where drafts are drawn."""
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
        lived = _run_loop(job, target, drafter, heads, [p.prompt_id for p, _ in long_enough], shared)
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
            target_attention=attention[prompt.prompt_id]
            if trace is plain
            else _attention(job, target, prompt, trace, shared),
        )
        check.num_ties += batch.num_ties
        # a text that differs after a tie has its own length: the plain text's identity does not hold for it
        write_batch(batch if is_same else replace(batch, num_trimmed_tokens=None))
        yield


def _attention(
    job: Job, target: Target, prompt: PromptRecord, trace: TargetTrace, shared: Shared
) -> TargetMasses | None:
    """Where the target looks on this text, when that is asked for. A live text may be longer than the plain one."""
    if not job.target_attention or trace.num_response_tokens < 2:
        return None
    region = text_regions(prompt.region[: trace.num_prompt_tokens], len(trace.token_ids))
    return target_masses(target, trace, region, sink_slots=job.sink_slots, prefix=shared.prefix)
