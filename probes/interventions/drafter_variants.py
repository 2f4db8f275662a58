"""One drafter of the job and the variants of it that interventions ask for, each built once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from probes.checkpoint.tensors import load_tensors
from probes.conditions import Job
from probes.drafter.model import Drafter
from probes.interventions.parts import Parts, TargetFacts, load
from probes.job.loaded import LoadedDrafter, Models


class DrafterVariants:
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
        return load(Drafter, self.spec, tensors)

    @cached_property
    def _parts(self) -> Parts:
        tensors = {k: v for k, v in self.model.state_dict().items() if not k.startswith("rotary.")}
        stored = load_tensors(self._path, self.spec, device=self._device)
        if "t2d" in stored:
            tensors["t2d"] = stored["t2d"]
        return Parts(spec=self.spec, tensors=tensors)
