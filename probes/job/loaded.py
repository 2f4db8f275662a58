"""A target and its drafters, loaded once for everything that a job measures."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from probes.checkpoint.read import read_spec
from probes.checkpoint.spec import DrafterSpec
from probes.checkpoint.tensors import load_tensors
from probes.conditions import Job
from probes.drafter.algorithms import algorithm_of
from probes.drafter.model import Drafter
from probes.errors import InputError
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
    return Models(target, tuple(drafters))


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
