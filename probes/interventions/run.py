"""Runs interventions on finished texts: one target pass over each text serves all that keep the text.

Works right after measuring and on a stored run alike. Knows no files, no statistics and no kind of intervention: counts go
to `write_counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch

from probes.conditions import Job, Progress, PromptCondition, prompt_conditions, prompts_of
from probes.interventions.acceptance import Acceptance, Counts
from probes.interventions.base import Intervention
from probes.interventions.finished_text import DrafterVariants, FinishedText, Reader, Reading
from probes.interventions.loading import target_facts
from probes.interventions.reference import compare_states
from probes.interventions.registry import BASELINE, select
from probes.interventions.rewriting import Rewriting
from probes.job.loaded import Models
from probes.record import InterventionCounts, PromptConditionKey, PromptRecord, TargetStates

IsDone = Callable[[str, str, PromptConditionKey, str], bool]
"""(intervention id, drafter, condition key, prompt id) -> counted already."""


@dataclass
class Interventions:
    """One pass over a run's texts. `notes` says what could not be run and why."""

    job: Job
    models: Models
    texts: Mapping[PromptConditionKey, Sequence[PromptRecord]]  # the finished texts of each condition
    write_counts: Callable[[InterventionCounts], None]
    write_states: Callable[[TargetStates], None] = lambda states: None
    is_done: IsDone = lambda id, drafter, condition, prompt_id: False
    on_progress: Callable[[Progress], None] = lambda progress: None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        job, models = self.job, self.models
        has_reference = models.reference is not None
        self.selected = [i for i in select(job.interventions) if i.suits(job.engine, has_reference=has_reference)]
        facts = target_facts(models.target)
        self.drafters = [DrafterVariants(d, job, models, facts) for d in models.drafters]
        self.rewriting = Rewriting(job, models, self.texts)
        self._effective: dict[str, list[Intervention]] = {}
        self._num_done = 0

    @torch.inference_mode()
    def run(self) -> None:
        """Every selected intervention on every text, as far as it applies and is not counted already."""
        work = [
            (condition, self.texts[condition.key], self.rewriting.rewriters(condition, self.selected))
            for condition in prompt_conditions(self.job)
            if self.texts.get(condition.key)
        ]
        num_units = sum(len(records) * (1 + len(rewriters)) for _, records, rewriters in work)
        for condition, records, rewriters in work:

            def tell(num_done: int, condition: PromptCondition = condition) -> None:
                self._num_done += num_done
                self.on_progress(
                    Progress(num_done=self._num_done, num_units=num_units, condition=f"interventions: {condition}")
                )

            tell(0)
            baseline = self._on_texts(condition, records, tell)
            for rewriter in rewriters:
                self._rewrite(condition, records, rewriter, baseline)
                tell(len(records))

    def _on_texts(
        self, condition: PromptCondition, records: Sequence[PromptRecord], tell: Callable[[int], None]
    ) -> dict[tuple[str, str], Acceptance]:
        """Those that keep the text -> the unchanged drafter's counts, (drafter, prompt)."""
        todo = [r for r in records if any(self._left(d, condition, r) for d in self.drafters)]
        tell(len(records) - len(todo))
        baseline: dict[tuple[str, str], Acceptance] = {}
        if not todo:
            return baseline
        reader = Reader(self.models.target, todo, self.job.temperature)
        reference = None if self.models.reference is None else Reader(self.models.reference, todo, self.job.temperature)
        for record in todo:
            trace = reader.read(record)
            referred = None if reference is None else Reading(reference, reference.read(record))
            if referred is not None:
                for states in compare_states(record, trace, referred.trace):
                    self.write_states(states)
            for drafter in self.drafters:
                text = FinishedText(self.job, record, drafter, reader, trace, referred)
                self._on_text(condition, text)
                baseline[drafter.name, record.prompt_id] = text.baseline
            tell(1)
        return baseline

    def _on_text(self, condition: PromptCondition, text: FinishedText) -> None:
        name, record = text.drafter.name, text.record
        self._write(record, name, BASELINE, BASELINE, text.baseline.beside(text.baseline))
        left = [
            i for i in self._effect_on(text.drafter) if not self.is_done(i.id, name, condition.key, record.prompt_id)
        ]
        for kind, these in groupby(left, key=lambda i: type(i)):
            for intervention, counts in kind.count_each(list(these), text):
                self._write(record, name, intervention.id, intervention.kind, counts)

    def _left(self, drafter: DrafterVariants, condition: PromptCondition, record: PromptRecord) -> bool:
        """Whether anything that keeps the text is still to be counted."""
        if (record.num_response_tokens or 0) < 2:
            return False
        ids = (BASELINE, *(i.id for i in self._effect_on(drafter)))
        return any(not self.is_done(id, drafter.name, condition.key, record.prompt_id) for id in ids)

    def _effect_on(self, drafter: DrafterVariants) -> list[Intervention]:
        if drafter.name not in self._effective:
            self._effective[drafter.name] = [i for i in self.selected if i.has_effect(drafter)]
        return self._effective[drafter.name]

    def _rewrite(
        self,
        condition: PromptCondition,
        records: Sequence[PromptRecord],
        rewriter: Intervention,
        baseline: Mapping[tuple[str, str], Acceptance],
    ) -> None:
        """One that rewrites the text, beside the condition's own texts."""
        wanted = {
            r.prompt_id: r
            for r in records
            if any(not self.is_done(rewriter.id, d.name, condition.key, r.prompt_id) for d in self.drafters)
        }
        missing = wanted.keys() - {p.prompt_id for p in prompts_of(self.job, condition)}
        if missing:
            self.notes.append(
                f"{rewriter.id}: {len(missing)} prompts of {condition} are no longer in the plan's prompt file"
            )
        if missing == wanted.keys():  # there is nothing to rewrite
            return
        answers = self.rewriting.answers(condition, rewriter, wanted)
        if not all((d.name, id) in baseline for d in self.drafters for id in wanted):
            baseline = {pair: result for pair, (result, _) in self.rewriting.measured(condition.key).items()}
        for (name, prompt_id), (result, response) in answers.items():
            if prompt_id in wanted and (name, prompt_id) in baseline:
                counts = result.beside(baseline[name, prompt_id])
                self._write(wanted[prompt_id], name, rewriter.id, rewriter.kind, counts, response)

    def _write(
        self,
        record: PromptRecord,
        drafter: str,
        id: str,
        kind: str,
        counts: Counts,
        response: np.ndarray | None = None,
    ) -> None:
        if self.is_done(id, drafter, record.condition, record.prompt_id):
            return
        self.write_counts(
            InterventionCounts(
                id=id,
                kind=kind,
                drafter=drafter,
                system_prompt=record.system_prompt,
                template=record.template,
                context_tokens=record.context_tokens,
                prompt_id=record.prompt_id,
                response_token_ids=response,
                **counts._asdict(),
            )
        )
