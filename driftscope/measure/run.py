"""Measures what a plan says with driftscope's own engines, or hands it to vLLM's. Torch is imported only when called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from driftscope.extras import need_probe_extra
from driftscope.measure.describe import Loaded
from driftscope.measure.work import Work, is_done_in
from driftscope.plan import Plan
from driftscope.plan_files import read_job
from driftscope.runs.info import Cost
from driftscope.runs.writer import RunWriter
from probes.conditions import Progress, SelfCheck
from probes.errors import InputError
from probes.interventions.registry import select
from probes.record import PromptConditionKey, PromptRecord, Record

if TYPE_CHECKING:
    from probes.job.loaded import Models

Texts = dict[PromptConditionKey, list[PromptRecord]]


def measure(
    plan: Plan,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    on_status: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> SelfCheck:
    """Makes (or goes on with) the run `out`. Raises InputError before anything is written, SelfCheckError at the end."""
    need_probe_extra()
    on_status("reading prompts")
    job, notes = read_job(plan)
    work = Work(
        plan=plan,
        job=job,
        out=out,
        notes=notes,
        resume=resume,
        overwrite=overwrite,
        on_status=on_status,
        on_progress=on_progress,
    )
    if job.engine == "vllm":
        from driftscope.measure.vllm import measure_vllm

        return measure_vllm(work)
    return _measure_here(work)


def _measure_here(work: Work) -> SelfCheck:
    """Live or replay, then the costs and interventions that the plan asks for."""
    from transformers.utils import logging as transformers_logging

    from probes.job.loaded import load_models
    from probes.job.measure_job import check_job

    transformers_logging.disable_progress_bar()  # progress is told by the caller

    plan, job = work.plan, work.job
    work.on_status("loading target and drafters")
    models = load_models(job)
    check_job(job, models)
    if plan.costs:
        models.target.check_length(max(plan.costs_context_tokens) + plan.depth + 1, "measuring costs")
    loaded = Loaded(
        config=models.target.config.to_dict(),
        tokenizer=models.target.tokenizer,
        specs={d.name: d.spec for d in models.drafters},
    )
    check, texts = _write_run(work, models, loaded)
    work.summarise()
    if select(plan.interventions):
        from driftscope.diagnosis.intervene import intervene

        check.notes += intervene(
            work.out,
            plan.interventions,
            job,
            texts=None if plan.text else texts,
            models=models,
            on_status=work.on_status,
            on_progress=work.on_progress,
        )
    return check


def _write_run(work: Work, models: Models, loaded: Loaded) -> tuple[SelfCheck, Texts]:
    """Measure what is not on disk yet -> (self-check, the texts that interventions need and the run does not keep)."""
    from probes.job.measure_job import measure_conditions

    plan = work.plan
    writer = work.open_writer(loaded)
    texts: Texts = {}

    def write(record: Record) -> None:
        writer.write_batch(record)
        if isinstance(record, PromptRecord) and not plan.text:  # interventions come last, the run forgets the text
            texts.setdefault(record.condition, []).append(record)

    with writer:
        if plan.costs and not writer.info.costs:
            _measure_costs(plan, models, writer, work.on_status)
        check = measure_conditions(work.job, models, write, is_done=is_done_in(writer), on_progress=work.on_progress)
    return check, texts


def _measure_costs(plan: Plan, models: Models, writer: RunWriter, on_status: Callable[[str], None]) -> None:
    from probes.chain.costs import measure_costs

    try:
        found, notes = measure_costs(
            models.target,
            [(d.name, d.model) for d in models.drafters],
            depth=plan.depth,
            batch_sizes=plan.costs,
            context_tokens=plan.costs_context_tokens,
            on_status=on_status,
        )
    except (RuntimeError, MemoryError) as error:  # torch's allocators: a CPU's raises a bare RuntimeError
        if isinstance(error, RuntimeError) and "allocate" not in str(error):
            raise
        raise InputError(
            f"{max(plan.costs)} requests of {max(plan.costs_context_tokens)} tokens do not fit into memory",
            code="out_of_memory",
            where="--costs",
            remedy="Leave the largest batch sizes or contexts out.",
        ) from error
    info = writer.info.model_copy(deep=True)
    info.costs = [Cost(**asdict(cost)) for cost in found]
    info.notes += notes
    writer.amend(info)
