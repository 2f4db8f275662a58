"""A whole measurement through vLLM: for each drafter one engine, in it every condition; records as from the other engines.

The texts are the engine's own. All drafters of a prompt share one stored text, the first drafter's: another's may differ
where two tokens tie (float32), by rounding (lower precision) or by chance (temperature > 0), which is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from probes.checkpoint.read import read_spec
from probes.checkpoint.spec import DrafterSpec, Finding
from probes.checkpoint.tensors import load_tensors
from probes.conditions import Job, Progress, PromptCondition, PromptInput, SelfCheck, prompt_conditions, prompts_of
from probes.errors import InputError, SelfCheckError
from probes.prompt.rendering import Rendered, insert_context
from probes.prompt.under_condition import prompt_record, render_or_take
from probes.record import ConditionKey, PromptConditionKey, PromptRecord, Record, RoundBatch
from probes.target.source import target_config, target_tokenizer
from probes.vllm.engine import Counters, Engine, Text, TextRequest, engine
from probes.vllm.recorder import RecorderStatus
from probes.vllm.settings import disagreements
from probes.vllm.to_record import round_batch, vocabulary


@dataclass(frozen=True)
class VllmModels:
    """What is known without an engine: the target's config and tokenizer, each drafter's spec and vocabulary map."""

    config: Mapping[str, Any]
    tokenizer: Any
    specs: Mapping[str, DrafterSpec]
    d2t: Mapping[str, torch.Tensor | None]


@dataclass(kw_only=True)
class EngineReport:
    """What one engine says of itself, for run.json."""

    drafter: str
    settings: dict[str, object]
    findings: list[Finding]
    status: RecorderStatus | None = None
    notes: list[str] = field(default_factory=list)


def load(job: Job) -> VllmModels:
    """Raises CheckpointError / InputError before an engine is started."""
    refuse_unsupported(job)
    config = target_config(job.target, trust_remote_code=job.trust_remote_code)
    specs = {name: read_spec(path, target_config=config) for name, path in job.drafters.items()}
    d2t = {name: load_tensors(job.drafters[name], spec, names=("d2t",)).get("d2t") for name, spec in specs.items()}
    tokenizer = target_tokenizer(job.target, trust_remote_code=job.trust_remote_code)
    return VllmModels(config, tokenizer, specs, d2t)


def refuse_unsupported(job: Job) -> None:
    """Raises InputError for what an engine's own texts cannot give."""
    asked = {
        "--target-attention": job.target_attention,
        "--last-tokens": job.last_tokens is not None,
        "--interventions": tuple(job.interventions) != ("none",),
        "prompts with a response": any(p.is_forced for p in job.prompts),
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise InputError(
                f"engine vllm cannot do this: {name}",
                code="not_with_vllm",
                where=name,
                remedy="use --engine replay for it, on the same prompts",
            )


def measure_through_vllm(
    job: Job,
    models: VllmModels,
    write_batch: Callable[[Record], None],
    *,
    level: str,
    options: Mapping[str, Any],
    is_done: Callable[[str, PromptConditionKey, str], bool] = lambda drafter, condition, prompt_id: False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_status: Callable[[str], None] = lambda text: None,
    on_report: Callable[[EngineReport], None] = lambda report: None,
) -> SelfCheck:
    """Measures everything that is not done yet. Raises SelfCheckError when the engine's counts are not the recorder's."""
    work = _Work(job, models, write_batch, is_done, on_progress)
    for name, path in job.drafters.items():
        if all(not work.prompts_left(name, condition) for condition in prompt_conditions(job)):
            work.skip(name)
            continue
        on_status(f"starting vLLM with {name}")
        with engine(
            job.target,
            path,
            depth=job.depth,
            dtype=job.dtype,
            level=level,
            num_sink_slots=job.sink_slots,
            max_num_seqs=job.batch_size,
            seed=job.seed,
            trust_remote_code=job.trust_remote_code,
            options=options,
        ) as running:
            settings = running.settings()
            report = EngineReport(
                drafter=name,
                settings=settings,
                findings=list(disagreements(settings, models.specs[name], models.d2t[name])),
            )
            work.measure(name, running)
            report.notes += work.notes_on(settings)
            report.status = running.status()
            on_report(report)
    work.say_texts()
    return work.check


class _Work:
    """The conditions of one job, drafter by drafter."""

    def __init__(
        self,
        job: Job,
        models: VllmModels,
        write_batch: Callable[[Record], None],
        is_done: Callable[[str, PromptConditionKey, str], bool],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.job, self.models, self.check = job, models, SelfCheck()
        self._write, self._is_done, self._on_progress = write_batch, is_done, on_progress
        self._num_units = sum(len(prompts_of(job, condition)) for condition in prompt_conditions(job)) * len(
            job.drafters
        )
        self._num_done = self._num_compared = self._num_equal = 0
        self._most_prompt_tokens = 0  # given to the engine at once
        self._texts: dict[tuple[PromptConditionKey, str], np.ndarray] = {}  # (condition, prompt) -> the stored tokens
        self._documents: dict[int, str | None] = {0: None}

    def prompts_left(self, drafter: str, condition: PromptCondition) -> list[PromptInput]:
        return [p for p in prompts_of(self.job, condition) if not self._is_done(drafter, condition.key, p.prompt_id)]

    def skip(self, drafter: str) -> None:
        self._num_done += sum(len(prompts_of(self.job, condition)) for condition in prompt_conditions(self.job))

    def say_texts(self) -> None:
        if self._num_compared:
            self.check.notes.append(
                f"{self._num_equal} of {self._num_compared} texts of later drafters equal the first drafter's (stored)"
            )

    def notes_on(self, settings: Mapping[str, object]) -> list[str]:
        """What a reader must know of how this engine computed the prompts."""
        budget = settings["chunked_prefill_tokens"]
        if settings["runner"] != "V1" or not isinstance(budget, int) or self._most_prompt_tokens <= budget:
            return []
        return [
            f"prompts were computed in chunks of at most {budget} tokens: in vLLM's V1 runner the drafter's key at the end "
            "of each chunk is that of another pair (docs/vllm.md), so masses differ from a replay's there"
        ]

    def measure(self, drafter: str, running: Engine) -> None:
        counted = running.counters()
        batches: list[RoundBatch] = []
        for condition in prompt_conditions(self.job):
            self._on_progress(
                Progress(num_done=self._num_done, num_units=self._num_units, condition=f"{drafter}: {condition}")
            )
            batches += self._measure_condition(drafter, condition, running)
            self._num_done += len(prompts_of(self.job, condition))
        cross_check(batches, running.counters() - counted, running, drafter)

    def _measure_condition(self, drafter: str, condition: PromptCondition, running: Engine) -> list[RoundBatch]:
        job = self.job
        prompts = self.prompts_left(drafter, condition)
        rendered = [self._render(p, condition) for p in prompts]
        requests = [
            TextRequest(key=f"{condition.key} {p.prompt_id}", token_ids=r.token_ids.tolist(), region=r.region)
            for p, r in zip(prompts, rendered, strict=True)
        ]
        if not requests:
            return []
        self._check_lengths(requests, running, str(condition))
        at_once = sorted((len(r.token_ids) for r in requests), reverse=True)[: job.batch_size]
        self._most_prompt_tokens = max(self._most_prompt_tokens, sum(at_once))
        texts = running.generate(
            requests,
            max_tokens=job.max_new_tokens,
            temperature=job.temperature,
        )
        batches = []
        for prompt, given, text in zip(prompts, rendered, texts, strict=True):
            batch = self._record(drafter, condition, prompt, given, text)
            if batch is not None:
                batches.append(batch)
        return batches

    def _record(
        self, drafter: str, condition: PromptCondition, prompt: PromptInput, rendered: Rendered, text: Text
    ) -> RoundBatch | None:
        record = prompt_record(
            prompt,
            condition,
            rendered,
            np.concatenate([rendered.token_ids, np.asarray(text.token_ids, np.int32)]),
            num_response_tokens=len(text.token_ids),
            finish_reason=text.finish_reason,
        )
        is_stored = self._store(record, condition)
        if text.rounds is None:
            raise SelfCheckError(
                "the recorder has nothing of this request",
                code="not_recorded",
                where=f"drafter {drafter}, {condition}, prompt {prompt.prompt_id}",
                remedy="see what the recorder says in the log; run with --engine live to do without vLLM",
            )
        if len(text.token_ids) < 2:
            self.check.num_too_short += 1
            return None
        spec, d2t = self.models.specs[drafter], self.models.d2t[drafter]
        batch = round_batch(
            text.rounds,
            ConditionKey(drafter, *condition.key),
            prompt.prompt_id,
            num_tokens=len(record.token_ids),
            in_draft_vocab=vocabulary(
                None if d2t is None else d2t.numpy(), vocab_size=spec.vocab_size, draft_vocab_size=spec.draft_vocab_size
            ),
            norm_output=spec.norm_output,
        )
        _compare_steps(batch, text, f"drafter {drafter}, {condition}, prompt {prompt.prompt_id}")
        # the identity of a walk and its response holds only beside the stored text
        self._write(batch if is_stored else replace(batch, num_trimmed_tokens=None))
        return batch

    def _store(self, record: PromptRecord, condition: PromptCondition) -> bool:
        """Stores the first drafter's text -> whether this text is the stored one, for all that is known."""
        key = (condition.key, record.prompt_id)
        if any(self._is_done(drafter, *key) for drafter in self.job.drafters):
            return False  # stored before this process began
        if key not in self._texts:
            self._texts[key] = record.token_ids
            self._write(record)
            return True
        is_same = np.array_equal(self._texts[key], record.token_ids)
        self._num_compared += 1
        self._num_equal += is_same
        return is_same

    def _render(self, prompt: PromptInput, condition: PromptCondition) -> Rendered:
        length = condition.context_tokens
        if length not in self._documents:
            self._documents[length] = insert_context(self.job.documents, length, self.models.tokenizer)
        return render_or_take(self.models.tokenizer, prompt, condition, self._documents[length])

    def _check_lengths(self, requests: Sequence[TextRequest], running: Engine, where: str) -> None:
        limit = int(running.llm.model_config.max_model_len)
        longest = max(len(r.token_ids) for r in requests) + self.job.max_new_tokens
        if longest > limit:
            raise InputError(
                f"a prompt with its response has up to {longest} tokens, the engine's max_model_len is {limit}",
                code="text_too_long",
                where=where,
                remedy="lower --context-tokens or --max-new-tokens, or raise max_model_len in [vllm]",
            )


def _compare_steps(batch: RoundBatch, text: Text, where: str) -> None:
    """Against vLLM's own metrics of this request, where the version has them. Raises SelfCheckError."""
    ours = batch.accepted_drafts[batch.on_walk].tolist()
    if text.per_step_accepted is not None and text.per_step_accepted != ours:
        raise SelfCheckError(
            f"vLLM counted {text.per_step_accepted} accepted drafts by round, the recorder {ours}",
            code="counts_differ",
            where=where,
            remedy="these numbers must not be used: please report this with the vLLM version",
        )


def cross_check(batches: Sequence[RoundBatch], counted: Counters, running: Engine, drafter: str) -> None:
    """The recorder's rounds and accepted drafts against vLLM's counters. Raises SelfCheckError.

    A response of one token has no round and one that ended with its first round is in both counts.
    """
    status = running.status()
    if status is not None and status.failure is not None:
        raise SelfCheckError(
            f"the recorder failed: {status.failure}",
            code="recorder_failed",
            where=f"drafter {drafter}",
            remedy="please report this with the vLLM version and the [vllm] options",
        )
    if status is not None and status.num_dropped_steps:
        raise SelfCheckError(
            f"{status.num_dropped_steps} of {status.num_steps} steps were not recorded: the recorder was behind",
            code="steps_dropped",
            where=f"drafter {drafter}",
            remedy="use a lower --level or a smaller --batch-size",
        )
    num_rounds = sum(int(b.on_walk.sum()) for b in batches)
    by_depth = (
        [sum(int((b.accepted_drafts[b.on_walk] > k).sum()) for b in batches) for k in range(batches[0].depth)]
        if batches
        else []
    )
    ours = Counters(num_drafts=num_rounds, num_accepted=sum(by_depth), accepted_by_depth=by_depth)
    if num_rounds == 0 and counted.num_drafts == 0:
        raise SelfCheckError(
            "no round was made: vLLM drafted nothing",
            code="no_rounds",
            where=f"drafter {drafter}",
            remedy="raise --max-new-tokens, or see whether vLLM's log says that speculation is off",
        )
    if ours != counted:
        raise SelfCheckError(
            f"vLLM counted {counted.num_drafts} rounds and {counted.accepted_by_depth} accepted drafts by depth, "
            f"the recorder {ours.num_drafts} and {ours.accepted_by_depth}",
            code="counts_differ",
            where=f"drafter {drafter}",
            remedy="these numbers must not be used: please report this with the vLLM version",
        )
