"""A run made inside vLLM: `driftscope probe --engine vllm`. What the engine says of itself goes into run.json.

Imports vLLM only when called.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from driftscope.measure.describe import HEAD_MEANS, NULLS, TEMPERATURE, Loaded, add_engine_settings, add_note
from driftscope.measure.work import Work, is_done_in
from driftscope.runs.writer import RunWriter
from probes.conditions import SelfCheck

if TYPE_CHECKING:
    from probes.vllm.measure_job import EngineReport


def measure_vllm(work: Work) -> SelfCheck:
    """Make the run, or go on with it. Raises InputError before anything is written, SelfCheckError where vLLM's counts
    are not the recorder's."""
    from probes.vllm.measure_job import load, measure_through_vllm
    from probes.vllm.versions import vllm_version

    plan, job = work.plan, work.job
    found = vllm_version()
    models = load(job)
    loaded = Loaded(config=dict(models.config), tokenizer=models.tokenizer, specs=dict(models.specs))
    notes = [*work.notes, NULLS]
    notes += [HEAD_MEANS] if plan.level == "default" else []
    notes += [TEMPERATURE] if job.temperature > 0 else []
    writer = replace(work, notes=notes).open_writer(loaded)
    with writer:
        check = measure_through_vllm(
            job,
            models,
            writer.write_batch,
            level=plan.level,
            options=plan.vllm,
            is_done=is_done_in(writer),
            on_progress=work.on_progress,
            on_status=work.on_status,
            on_report=lambda report: _add_report(writer, report, found),
        )
    work.summarise()
    return check


def _add_report(writer: RunWriter, report: EngineReport, vllm_version: str) -> None:
    """Effective settings, what disagrees with the checkpoint, and what stayed null, of one drafter's engine."""
    info = writer.info.model_copy(deep=True)
    add_engine_settings(info, report.drafter, report.settings, report.findings, vllm_version)
    for note in report.notes:
        add_note(info.notes, note)
    if report.status is not None:
        for column, reason in report.status.unmeasured.items():
            add_note(info.notes, f"{column} is null: {reason}")
    writer.amend(info)
