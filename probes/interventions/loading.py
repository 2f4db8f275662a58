"""Models that measured, made ready for interventions: further layers captured, the reference target loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from probes.checkpoint.spec import DrafterSpec
from probes.conditions import Job
from probes.drafter.algorithms import algorithm_of
from probes.errors import InputError
from probes.interventions.parts import TargetFacts
from probes.interventions.registry import select
from probes.job.loaded import Models
from probes.target.model import Target


def for_interventions(job: Job, models: Models) -> Models:
    """The same models, ready for the job's interventions.

    Raises CheckpointError / InputError for a reference target that cannot be loaded or is of another shape.
    """
    if not select(job.interventions):
        return models
    target = models.target
    target.capture(ids_with_interventions(job, [d.spec for d in models.drafters], target.config.to_dict()))
    if job.reference_target is None:
        return models
    reference = Target.load(
        job.reference_target,
        dtype=getattr(torch, job.dtype),
        device=job.device,
        aux_layer_ids=sorted({i for d in models.drafters for i in d.model.boundary_ids(d.spec)}),
        trust_remote_code=job.trust_remote_code,
    )
    _check_reference(target, reference, job.reference_target)
    return replace(models, reference=reference)


def ids_with_interventions(job: Job, specs: Collection[DrafterSpec], config: Mapping[str, Any]) -> list[int]:
    """The boundaries to capture: the drafters' own, and those that the interventions asked for will read."""
    facts = TargetFacts(
        num_layers=int(config["num_hidden_layers"]), hidden_size=int(config["hidden_size"]), config=config
    )
    changed = [i.spec(s, facts) for s in specs for i in select(job.interventions) if i.applies(s, facts)]
    return sorted({i for spec in (*specs, *changed) for i in algorithm_of(spec).boundary_ids(spec)})


def target_facts(target: Target) -> TargetFacts:
    """What interventions may know of a loaded target."""
    return TargetFacts(
        num_layers=target.num_layers,
        hidden_size=int(target.config.hidden_size),
        config=target.config.to_dict(),
        embedding=target.embedding,
        lm_head=target.lm_head,
    )


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
