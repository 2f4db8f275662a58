"""What interventions count on: finished texts, read again from their tokens, and a drafter with its variants.

Knows no intervention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from probes.chain.step import SlotCache, prefill
from probes.checkpoint.tensors import load_tensors
from probes.conditions import Job
from probes.drafter.model import Drafter
from probes.interventions.acceptance import NO_CHANGE, Acceptance, ChainChange, Counts, accept
from probes.interventions.parts import Parts, TargetFacts, load
from probes.job.loaded import LoadedDrafter, Models
from probes.prompt.under_condition import shared_prefix_tokens
from probes.record import PromptRecord
from probes.target.model import Target
from probes.target.sampler import Sampling
from probes.target.trace import TargetTrace


class Reader:
    """Reads finished texts of one condition; their common beginning is computed once, by the target and each drafter."""

    def __init__(self, target: Target, records: Sequence[PromptRecord], temperature: float) -> None:
        prompts = [r.token_ids[: r.num_prompt_tokens] for r in records]
        self.target, self.temperature = target, temperature
        self.prefix = target.prefill(prompts[0][: shared_prefix_tokens(prompts)])
        self._slots: dict[Drafter, SlotCache] = {}

    def read(self, record: PromptRecord) -> TargetTrace:
        """The trace that the text had when it was written (forced texts stay forced)."""
        assert record.num_prompt_tokens is not None  # only an imported run does not know, and it has no texts
        assert record.num_response_tokens is not None
        trace = self.target.read(record.token_ids, record.num_prompt_tokens, prefix=self.prefix)
        return replace(
            trace,
            num_response_tokens=record.num_response_tokens,
            finish_reason=record.finish_reason,
            is_forced=record.is_forced,
            sampling=Sampling(0.0 if record.is_forced else self.temperature),
        )

    def prefix_slots(self, drafter: Drafter) -> SlotCache | None:
        """The drafter's slots of the common beginning; None where that is too short for one."""
        if len(self.prefix.token_ids) < 2:
            return None
        if drafter not in self._slots:
            ids = torch.as_tensor(self.prefix.token_ids, dtype=torch.int64, device=self.target.device)
            self._slots[drafter] = prefill(drafter, ids, self.prefix.aux)
        return self._slots[drafter]


@dataclass(frozen=True)
class Reading:
    """A text as a target reads it."""

    reader: Reader
    trace: TargetTrace


class DrafterVariants:
    """One drafter of the job and the variants of it that interventions ask for, each built once."""

    def __init__(self, drafter: LoadedDrafter, job: Job, models: Models, facts: TargetFacts) -> None:
        self.name, self.spec, self.model = drafter.name, drafter.spec, drafter.model
        self.facts = facts
        self._path, self._device, self._reference = job.drafters[drafter.name], job.device, models.reference
        self._changed: dict[str, Drafter | None] = {}

    def changed(self, id: str, build: Callable[[Parts, TargetFacts], Drafter | None]) -> Drafter | None:
        """The drafter that the intervention of this id builds; None where there is nothing to change."""
        if id not in self._changed:
            self._changed[id] = build(self._parts, self.facts)
        return self._changed[id]

    @cached_property
    def beside_reference(self) -> Drafter:
        """The drafter beside the reference target: what it borrows comes from there."""
        assert self._reference is not None
        tensors = dict(self._parts.tensors)
        if not self.spec.has_own_embedding:
            tensors["embed_tokens.weight"] = self._reference.embedding
        if not self.spec.has_own_lm_head:
            tensors["lm_head.weight"] = self._reference.lm_head
        return load(type(self.model), self.spec, tensors)

    @cached_property
    def _parts(self) -> Parts:
        tensors = {k: v for k, v in self.model.state_dict().items() if not k.startswith("rotary.")}
        stored = load_tensors(self._path, self.spec, device=self._device)
        if "t2d" in stored:
            tensors["t2d"] = stored["t2d"]
        return Parts(spec=self.spec, tensors=tensors)


@dataclass
class FinishedText:
    """One finished text with one drafter."""

    job: Job
    record: PromptRecord
    drafter: DrafterVariants
    reader: Reader
    trace: TargetTrace
    reference: Reading | None  # the same text, read by the reference target

    @cached_property
    def slots(self) -> SlotCache:
        """The unchanged drafter's slots of the whole text."""
        model = self.drafter.model
        return prefill(model, self.trace.token_ids, self.trace.aux, cache=self.reader.prefix_slots(model))

    @cached_property
    def baseline(self) -> Acceptance:
        """The unchanged drafter's counts."""
        return self._accept(self.drafter.model, self.trace, self.slots, NO_CHANGE)

    def count(
        self, drafter: Drafter, trace: TargetTrace, cache: SlotCache | None, change: ChainChange = NO_CHANGE
    ) -> Counts:
        """Counts of a drafter, or of another chain of it, beside the baseline. `cache`: what is known of its slots."""
        return self._accept(drafter, trace, cache, change).beside(self.baseline)

    def _accept(self, drafter: Drafter, trace: TargetTrace, cache: SlotCache | None, change: ChainChange) -> Acceptance:
        job = self.job
        return accept(drafter, trace, depth=job.depth, cache=cache, last_tokens=job.last_tokens, change=change)


def response_of(trace: TargetTrace) -> np.ndarray:
    """Token ids of the response, without what was run past its end."""
    begin = trace.num_prompt_tokens
    return trace.token_ids[begin : begin + trace.num_response_tokens].cpu().numpy()
