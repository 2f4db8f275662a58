"""A target and its drafters, loaded once for everything that a job measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from probes.checkpoint.read import read_spec
from probes.checkpoint.spec import DrafterSpec
from probes.checkpoint.tensors import load_tensors
from probes.conditions import Job
from probes.drafter.algorithms import algorithm_of
from probes.drafter.model import Drafter
from probes.errors import InputError
from probes.interventions.base import DrafterIntervention, TargetFacts
from probes.interventions.registry import select
from probes.target.model import Target
from probes.target.source import target_config


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
    ids = sorted({i for spec in specs.values() for i in algorithm_of(spec).boundary_ids(spec)})
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
                model=algorithm_of(spec).load(
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
    read = list(specs)
    for spec in specs:
        for intervention in select(job.interventions):
            if isinstance(intervention, DrafterIntervention) and intervention.applies(spec, facts):
                read.append(intervention.spec(spec, facts))
    return sorted({i for spec in read for i in algorithm_of(spec).boundary_ids(spec)})


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
