"""Runs interventions on finished texts: one target pass over each text serves all of them.

Texts are read again from their tokens, so this works right after measuring and on a stored run alike. Knows no files and
no statistics: counts go to `write_counts`. Interventions on the text let the target answer anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from probes.chain.step import SlotCache, prefill
from probes.checkpoint.tensors import load_tensors
from probes.conditions import Cell, Job, Progress, PromptInput, cells, prompts_of
from probes.drafter.model import Drafter
from probes.interventions.acceptance import NO_CHANGE, Acceptance, ChainChange, accept
from probes.interventions.base import (
    ChainIntervention,
    DrafterIntervention,
    EngineIntervention,
    Intervention,
    Parts,
    PathIntervention,
    TargetFacts,
    TargetIntervention,
    TextIntervention,
    load,
)
from probes.interventions.finished_texts import Reader, response_of, swap_suffix
from probes.interventions.paths import patch_paths
from probes.interventions.reference import compare_states
from probes.interventions.registry import BASELINE, select
from probes.job.condition_texts import texts_of
from probes.job.loaded import LoadedDrafter, Models
from probes.prompt.rendering import insert_context
from probes.record import InterventionCounts, PromptRecord, TargetStates
from probes.target.model import Target
from probes.target.prefix import Prefix
from probes.target.trace import TargetTrace

CellKey = tuple[str, str, int]
IsDone = Callable[[str, str, CellKey, str], bool]
"""(intervention id, drafter, cell key, prompt id) -> counted already."""


@dataclass
class Interventions:
    """One pass over a run's texts. `notes` says what could not be run and why."""

    job: Job
    models: Models
    texts: Mapping[CellKey, Sequence[PromptRecord]]  # the finished texts of each condition
    write_counts: Callable[[InterventionCounts], None]
    write_states: Callable[[TargetStates], None] = lambda states: None
    is_done: IsDone = lambda id, drafter, cell, prompt_id: False
    on_progress: Callable[[Progress], None] = lambda progress: None
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.selected = select(self.job.interventions)
        target = self.models.target
        self.facts = target_facts(target)
        self._changed: dict[tuple[str, str], Drafter | None] = {}
        self._parts: dict[str, Parts] = {}
        self._stored: dict[CellKey, dict[tuple[str, str], tuple[Acceptance, np.ndarray]]] = {}
        self._num_done = 0

    # ---- the pass

    @torch.inference_mode()
    def run(self) -> None:
        """Every selected intervention on every text, as far as it applies and is not counted already."""
        work = [(cell, self.texts[cell.key]) for cell in cells(self.job) if self.texts.get(cell.key)]
        num_units = sum(len(records) * (1 + len(self._rewriters(cell))) for cell, records in work)
        for cell, records in work:

            def tell(cell: Cell = cell) -> None:
                self.on_progress(
                    Progress(num_done=self._num_done, num_units=num_units, condition=f"interventions: {cell}")
                )

            tell()
            baseline = self._on_text(cell, records, tell)
            for rewriter in self._rewriters(cell):
                self._rewrite(cell, records, rewriter, baseline)
                self._num_done += len(records)
                tell()

    def _on_text(
        self, cell: Cell, records: Sequence[PromptRecord], tell: Callable[[], None]
    ) -> dict[tuple[str, str], Acceptance]:
        """Those that keep the text -> the unchanged drafter's counts, (drafter, prompt)."""
        todo = [r for r in records if self._missing(cell, r)]
        self._num_done += len(records) - len(todo)
        tell()
        baseline: dict[tuple[str, str], Acceptance] = {}
        if not todo:
            return baseline
        reader = Reader(self.models.target, todo, self.job.temperature)
        reference = None if self.models.reference is None else Reader(self.models.reference, todo, self.job.temperature)
        prefixes: dict[tuple[str, str], SlotCache] = {}
        for record in todo:
            trace = reader.read(record)
            reference_trace = None if reference is None else reference.read(record)
            if reference_trace is not None:
                for states in compare_states(record, trace, reference_trace):
                    self.write_states(states)
            for drafter in self.models.drafters:
                counts = self._one_text(drafter, record, trace, reference_trace, reader, reference, prefixes)
                baseline[drafter.name, record.prompt_id] = counts
            self._num_done += 1
            tell()
        return baseline

    def _one_text(
        self,
        drafter: LoadedDrafter,
        record: PromptRecord,
        trace: TargetTrace,
        reference_trace: TargetTrace | None,
        reader: Reader,
        reference: Reader | None,
        prefixes: dict[tuple[str, str], SlotCache],
    ) -> Acceptance:
        options = {"depth": self.job.depth, "last_tokens": self.job.last_tokens}

        def cached(model: Drafter, id: str, prefix: Prefix) -> SlotCache | None:
            """The shared prefix's slots of this drafter."""
            if len(prefix.token_ids) < 2:
                return None
            key = (drafter.name, id)
            if key not in prefixes:
                ids = torch.as_tensor(prefix.token_ids, dtype=torch.int64, device=trace.token_ids.device)
                prefixes[key] = prefill(model, ids, prefix.aux)
            return prefixes[key]

        slots = prefill(drafter.model, trace.token_ids, trace.aux, cache=cached(drafter.model, BASELINE, reader.prefix))
        baseline = accept(drafter.model, trace, cache=slots, **options)
        self._write(record, drafter, BASELINE, BASELINE, baseline, baseline)
        key = (record.system_prompt, record.template, record.context_tokens)
        patches = []
        for intervention in self.selected:
            if not self._applies(intervention, drafter) or self.is_done(
                intervention.id, drafter.name, key, record.prompt_id
            ):
                continue
            if isinstance(intervention, PathIntervention):
                patches.append(intervention)
            elif isinstance(intervention, ChainIntervention):
                change = ChainChange(intervention.rescales_feedback, intervention.hides_own_keys)
                result = accept(drafter.model, trace, cache=slots, change=change, **options)
                self._write(record, drafter, intervention.id, intervention.kind, result, baseline)
            elif isinstance(intervention, EngineIntervention):
                if not self._is_idle(intervention, drafter) and not record.is_forced:
                    self._write(record, drafter, intervention.id, intervention.kind, baseline.walk(), baseline)
            elif isinstance(intervention, TargetIntervention):
                if reference is not None and reference_trace is not None:
                    changed = self._with_reference(drafter)
                    cache = cached(changed, intervention.id, reference.prefix)
                    moved = replace(trace, aux=reference_trace.aux)
                    result = accept(changed, moved, cache=cache, **options)
                    self._write(record, drafter, intervention.id, intervention.kind, result, baseline)
            elif isinstance(intervention, DrafterIntervention):
                changed = self._build(drafter, intervention)
                if changed is None:
                    continue
                if intervention.window is not None and slots.num_slots <= intervention.window:
                    result = baseline
                elif intervention.keeps_slots:
                    result = accept(changed, trace, cache=slots, change=NO_CHANGE, **options)
                else:
                    result = accept(changed, trace, cache=cached(changed, intervention.id, reader.prefix), **options)
                self._write(record, drafter, intervention.id, intervention.kind, result, baseline)
        if patches:
            counts = patch_paths(drafter.model, trace, patches, cache=slots, **options)
            for patch in patches:
                self._write_counts(
                    record,
                    drafter,
                    patch.id,
                    patch.kind,
                    counts.num_starts,
                    counts.accepted[patch.id],
                    counts.baseline_accepted,
                )
        return baseline

    # ---- texts that change

    def _rewriters(self, cell: Cell) -> list[TextIntervention]:
        template = cell.template.source
        if template == "default":
            template = str(self.models.target.tokenizer.chat_template or "")
        return [
            i
            for i in self.selected
            if isinstance(i, TextIntervention)
            and i.applies(cell, prompts_of(self.job, cell), "" if template == "raw" else template)
        ]

    def _rewrite(
        self,
        cell: Cell,
        records: Sequence[PromptRecord],
        rewriter: TextIntervention,
        baseline: dict[tuple[str, str], Acceptance],
    ) -> None:
        wanted = {
            r.prompt_id: r
            for r in records
            if any(not self.is_done(rewriter.id, d.name, cell.key, r.prompt_id) for d in self.models.drafters)
        }
        if not wanted:
            return
        pairs = [rewriter.rewrite(cell, p) for p in prompts_of(self.job, cell) if p.prompt_id in wanted]
        missing = len(wanted) - len(pairs)
        if missing:
            self.notes.append(f"{rewriter.id}: {missing} prompts of {cell} are no longer in the plan's prompt file")
        if not pairs:
            return
        new_cell, prompts = pairs[0][0], [p for _, p in pairs]
        is_stored = new_cell in cells(self.job) and prompts == [
            p for p in prompts_of(self.job, new_cell) if p.prompt_id in wanted
        ]
        if is_stored and not rewriter.keeps_head and self.texts.get(new_cell.key):
            answers = self._accept_stored(new_cell.key)
        else:
            answers = self._accept_new(cell, new_cell, prompts, keeps_head=rewriter.keeps_head)
        is_whole = all((d.name, id) in baseline for d in self.models.drafters for id in wanted)
        before = baseline if is_whole else self._baselines(cell.key)
        for (name, prompt_id), (result, response) in answers.items():
            if prompt_id in wanted and (name, prompt_id) in before:
                drafter = next(d for d in self.models.drafters if d.name == name)
                if not self.is_done(rewriter.id, name, cell.key, prompt_id):
                    self._write(
                        wanted[prompt_id],
                        drafter,
                        rewriter.id,
                        rewriter.kind,
                        result,
                        before[name, prompt_id],
                        response=response,
                    )

    def _baselines(self, key: CellKey) -> dict[tuple[str, str], Acceptance]:
        return {pair: result for pair, (result, _) in self._accept_stored(key).items()}

    def _accept_stored(self, key: CellKey) -> dict[tuple[str, str], tuple[Acceptance, np.ndarray]]:
        """The unchanged drafters on a condition's own texts; kept, since several conditions refer to one."""
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

    def _accept_new(
        self, cell: Cell, new_cell: Cell, prompts: Sequence[PromptInput], *, keeps_head: bool
    ) -> dict[tuple[str, str], tuple[Acceptance, np.ndarray]]:
        """Lets the target answer the rewritten prompts. `keeps_head`: only the last template tokens are new."""
        num_context = cell.context_tokens
        target = self.models.target
        document = insert_context(self.job.documents, num_context, target.tokenizer) if num_context else None
        if keeps_head:
            prompts = [
                replace(p, messages=(), token_ids=swap_suffix(target, p, cell, new_cell, document)) for p in prompts
            ]
        job = replace(self.job, prompts=prompts)
        answers = {}
        for batch, shared in texts_of(job, self.models, new_cell, document, lambda prompt_id: False):
            for prompt, trace in batch:
                for d in self.models.drafters:
                    result = accept(
                        d.model,
                        trace,
                        depth=job.depth,
                        cache=shared.slots.get(d.name),
                        last_tokens=job.last_tokens,
                    )
                    answers[d.name, prompt.prompt_id] = (result, response_of(trace))
        return answers

    # ---- parts

    def _applies(self, intervention: Intervention, drafter: LoadedDrafter) -> bool:
        return not isinstance(intervention, TextIntervention) and intervention.applies(drafter.spec, self.facts)  # type: ignore[attr-defined]

    def _missing(self, cell: Cell, record: PromptRecord) -> bool:
        """Whether anything that keeps the text is still to be counted."""
        return record.num_response_tokens >= 2 and any(
            not self.is_done(id, d.name, cell.key, record.prompt_id)
            for d in self.models.drafters
            for id in (
                BASELINE,
                *(i.id for i in self.selected if self._applies(i, d) and not self._is_idle(i, d)),
            )
        )

    def _is_idle(self, intervention: Intervention, drafter: LoadedDrafter) -> bool:
        """Applies by the spec, but nothing comes of it: no reference target, a replay already, or tensors that leave
        nothing to change."""
        if isinstance(intervention, EngineIntervention):
            return self.job.engine == "replay"
        if isinstance(intervention, TargetIntervention):
            return self.models.reference is None
        return isinstance(intervention, DrafterIntervention) and self._build(drafter, intervention) is None

    def _drafter_parts(self, drafter: LoadedDrafter) -> Parts:
        if drafter.name not in self._parts:
            tensors = {k: v for k, v in drafter.model.state_dict().items() if not k.startswith("rotary.")}
            stored = load_tensors(self.job.drafters[drafter.name], drafter.spec, device=self.job.device)
            if "t2d" in stored:
                tensors["t2d"] = stored["t2d"]
            self._parts[drafter.name] = Parts(spec=drafter.spec, tensors=tensors)
        return self._parts[drafter.name]

    def _build(self, drafter: LoadedDrafter, intervention: DrafterIntervention) -> Drafter | None:
        key = (drafter.name, intervention.id)
        if key not in self._changed:
            self._changed[key] = intervention.build(self._drafter_parts(drafter), self.facts)
        return self._changed[key]

    def _with_reference(self, drafter: LoadedDrafter) -> Drafter:
        """The drafter beside the reference target: what it borrows comes from there."""
        key = (drafter.name, "reference_target")
        if key not in self._changed:
            assert self.models.reference is not None
            parts, reference = self._drafter_parts(drafter), self.models.reference
            borrowed = {
                name: weight
                for name, weight, is_own in (
                    ("embed_tokens.weight", reference.embedding, drafter.spec.has_own_embedding),
                    ("lm_head.weight", reference.lm_head, drafter.spec.has_own_lm_head),
                )
                if not is_own
            }
            self._changed[key] = load(type(drafter.model), drafter.spec, {**parts.tensors, **borrowed})
        changed = self._changed[key]
        assert changed is not None
        return changed

    def _write(
        self,
        record: PromptRecord,
        drafter: LoadedDrafter,
        id: str,
        kind: str,
        result: Acceptance,
        baseline: Acceptance,
        response: np.ndarray | None = None,
    ) -> None:
        num_starts = np.full(self.job.depth, result.num_starts, np.int64)
        self._write_counts(record, drafter, id, kind, num_starts, result.accepted, baseline.accepted, response)

    def _write_counts(
        self,
        record: PromptRecord,
        drafter: LoadedDrafter,
        id: str,
        kind: str,
        num_starts: np.ndarray,
        accepted: np.ndarray,
        baseline_accepted: np.ndarray,
        response: np.ndarray | None = None,
    ) -> None:
        if self.is_done(
            id, drafter.name, (record.system_prompt, record.template, record.context_tokens), record.prompt_id
        ):
            return
        self.write_counts(
            InterventionCounts(
                id=id,
                kind=kind,
                drafter=drafter.name,
                system_prompt=record.system_prompt,
                template=record.template,
                context_tokens=record.context_tokens,
                prompt_id=record.prompt_id,
                num_starts=num_starts,
                accepted=accepted,
                baseline_accepted=baseline_accepted,
                response_token_ids=response,
            )
        )


def target_facts(target: Target) -> TargetFacts:
    """What interventions may know of a loaded target."""
    return TargetFacts(
        num_layers=target.num_layers,
        hidden_size=int(target.config.hidden_size),
        config=target.config.to_dict(),
        embedding=target.embedding,
        lm_head=target.lm_head,
    )
