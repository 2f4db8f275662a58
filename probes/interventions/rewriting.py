"""Texts that an intervention rewrites: the target answers anew, the unchanged drafters draft the new text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from probes.conditions import Job, PromptCondition, PromptInput, prompt_conditions, prompts_of
from probes.interventions.acceptance import Acceptance, accept
from probes.interventions.base import Intervention
from probes.interventions.finished_text import Reader, response_of
from probes.job.condition_texts import texts_of
from probes.job.loaded import Models
from probes.prompt.rendering import insert_context
from probes.prompt.under_condition import render_or_take
from probes.record import TEXT_REGIONS, PromptConditionKey, PromptRecord
from probes.target.model import Target

Answers = dict[tuple[str, str], tuple[Acceptance, np.ndarray]]
"""(drafter, prompt id) -> counts of the unchanged drafter, token ids of the response."""


@dataclass
class Rewriting:
    """The texts of a job under rewritten prompts."""

    job: Job
    models: Models
    texts: Mapping[PromptConditionKey, Sequence[PromptRecord]]  # the finished texts of each condition
    _stored: dict[PromptConditionKey, Answers] = field(default_factory=dict)

    def rewriters(self, condition: PromptCondition, selected: Sequence[Intervention]) -> list[Intervention]:
        """Those that change a prompt of the condition."""
        template = condition.template.source
        if template == "default":
            template = str(self.models.target.tokenizer.chat_template or "")
        elif template == "raw":
            template = ""
        prompts = prompts_of(self.job, condition)
        return [i for i in selected if i.rewrites(condition, prompts, template)]

    def answers(self, condition: PromptCondition, rewriter: Intervention, prompt_ids: Collection[str]) -> Answers:
        """Counts on those rewritten prompts that the job still has. What it measured itself is not written again."""
        pairs = [rewriter.rewrite(condition, p) for p in prompts_of(self.job, condition) if p.prompt_id in prompt_ids]
        if not pairs:
            return {}
        new_condition, prompts = pairs[0][0], [p for _, p in pairs]
        is_measured = new_condition in prompt_conditions(self.job) and prompts == [
            p for p in prompts_of(self.job, new_condition) if p.prompt_id in prompt_ids
        ]
        if is_measured and not rewriter.swaps_suffix and self.texts.get(new_condition.key):
            return self.measured(new_condition.key)
        return self._written(condition, new_condition, prompts, swaps_suffix=rewriter.swaps_suffix)

    def measured(self, key: PromptConditionKey) -> Answers:
        """Counts on a condition's own texts; kept, since several conditions refer to one."""
        if key not in self._stored:
            records = self.texts[key]
            reader = Reader(self.models.target, records, self.job.temperature)
            self._stored[key] = {
                (d.name, r.prompt_id): (
                    accept(d.model, trace, depth=self.job.depth, last_tokens=self.job.last_tokens),
                    response_of(trace),
                )
                for r in records
                for trace in [reader.read(r)]
                for d in self.models.drafters
            }
        return self._stored[key]

    def _written(
        self,
        condition: PromptCondition,
        new_condition: PromptCondition,
        prompts: Sequence[PromptInput],
        *,
        swaps_suffix: bool,
    ) -> Answers:
        """Lets the target answer the rewritten prompts. `swaps_suffix`: only the last template tokens are new."""
        num_context = condition.context_tokens
        target = self.models.target
        document = insert_context(self.job.documents, num_context, target.tokenizer) if num_context else None
        if swaps_suffix:
            prompts = [
                replace(p, messages=(), token_ids=swap_suffix(target, p, condition, new_condition, document))
                for p in prompts
            ]
        job = replace(self.job, prompts=prompts)
        answers: Answers = {}
        for batch, shared in texts_of(job, self.models, new_condition, document, lambda prompt_id: False):
            for prompt, trace in batch:
                for d in self.models.drafters:
                    cache = shared.slots.get(d.name)
                    result = accept(d.model, trace, depth=job.depth, cache=cache, last_tokens=job.last_tokens)
                    answers[d.name, prompt.prompt_id] = (result, response_of(trace))
        return answers


def swap_suffix(
    target: Target, prompt: PromptInput, condition: PromptCondition, reference: PromptCondition, document: str | None
) -> tuple[int, ...]:
    """The condition's prompt with the reference template's tokens behind the last turn."""
    own, theirs = (render_or_take(target.tokenizer, prompt, c, document) for c in (condition, reference))
    begin = own.token_ids[: len(own.token_ids) - num_suffix_tokens(own.region)]
    tail = theirs.token_ids[len(theirs.token_ids) - num_suffix_tokens(theirs.region) :]
    return tuple(int(i) for i in np.concatenate([begin, tail]))


def num_suffix_tokens(region: np.ndarray) -> int:
    """How many template tokens end the prompt."""
    is_other = region != TEXT_REGIONS.index("template")
    return len(region) if not is_other.any() else int(is_other[::-1].argmax())
