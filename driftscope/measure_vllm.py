"""A run made inside vLLM: `driftscope probe --engine vllm`. What the engine says of itself goes into run.json.

Imports vLLM only when called. Knows nothing of consoles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from driftscope.measure import Loaded, done_batches, open_writer
from driftscope.plan import Plan
from driftscope.runs import read_run
from driftscope.runs.info import RunInfo
from driftscope.runs.writer import RunWriter
from driftscope.summary import summarise, write_summary
from probes.checkpoint.spec import Finding
from probes.conditions import Job, Progress, SelfCheck
from probes.record import Record

if TYPE_CHECKING:
    from probes.vllm.measure_job import EngineReport

NULLS = (
    "vLLM shows no probabilities, ranks or true-feature pass: draft_prob, target_prob_of_draft, overlap, fresh_right, "
    "own_excess, sink_deficit and chain_gap are null (docs/vllm.md)"
)
HEAD_MEANS = (
    "level default: masses are means over heads, and `unknown` is the whole prompt but the sink; --level heads tells "
    "the prompt's regions apart"
)
SOME_TIMES = "draft_us and verify_us are of two steps in 16 on a GPU, null in the others"
TEMPERATURE = "at temperature > 0 rejections by chance (sampled_out) cannot be told from disagreements here"


def measure_vllm(
    plan: Plan,
    job: Job,
    out: Path,
    *,
    notes: list[str],
    argv: list[str],
    resume: bool,
    overwrite: bool,
    on_status: Callable[[str], None],
    on_progress: Callable[[Progress], None],
) -> SelfCheck:
    """Makes (or goes on with) the run `out`. Raises InputError before anything is written, SelfCheckError where vLLM's
    counts are not the recorder's."""
    from probes.vllm.measure_job import load, measure_through_vllm
    from probes.vllm.versions import vllm_version

    found = vllm_version()
    models = load(job)
    loaded = Loaded(config=dict(models.config), tokenizer=models.tokenizer, specs=dict(models.specs))
    notes = [*notes, NULLS]
    notes += [HEAD_MEANS] if plan.level == "default" else []
    notes += [TEMPERATURE] if job.temperature > 0 else []
    writer = open_writer(plan, job, loaded, out, notes=notes, argv=argv, resume=resume, overwrite=overwrite)
    done = done_batches(writer)

    def write(record: Record) -> None:
        writer.write_batch(record)

    with writer:
        check = measure_through_vllm(
            job,
            models,
            write,
            level=plan.level,
            options=plan.vllm,
            is_done=lambda drafter, cell, prompt_id: (drafter, cell, prompt_id) in done,
            on_progress=on_progress,
            on_status=on_status,
            on_report=lambda report: _add_report(writer, report, found),
        )
    run = read_run(out)
    write_summary(run, summarise(run))
    return check


def _add_report(writer: RunWriter, report: EngineReport, vllm_version: str) -> None:
    """Effective settings, what disagrees with the checkpoint, and what stayed null, of one drafter's engine."""
    info = writer.info.model_copy(deep=True)
    add_engine_settings(info, report.drafter, report.settings, report.findings, vllm_version)
    for note in report.notes:
        _add_note(info.notes, note)
    if report.status is not None:
        for column, reason in report.status.unmeasured.items():
            _add_note(info.notes, f"{column} is null: {reason}")
    writer.amend(info)


def add_engine_settings(
    info: RunInfo, drafter: str, settings: Mapping[str, object], findings: Sequence[Finding], vllm_version: str
) -> None:
    """What an engine says of itself (`probes.vllm.settings`), and where that is not what the drafter's checkpoint says."""
    its = info.drafter(drafter)
    assert its is not None
    its.findings += [asdict(finding) for finding in findings]
    its.engine_settings = dict(settings)  # type: ignore[attr-defined]  # an extra field, kept by every reader
    provenance = info.provenance
    provenance.packages["vllm"] = vllm_version
    provenance.device = str(settings["device"])
    provenance.gpu_name = None if settings["gpu_name"] is None else str(settings["gpu_name"])
    provenance.attention_backend = str(settings["attention_backend"])
    provenance.cuda_graph_mode = f"{settings['cuda_graph_mode']}, compilation {settings['compilation_mode']}"
    info.notes += [f"{drafter}: {finding.message}. {finding.remedy}" for finding in findings]
    if settings["compilation_mode"] == "NONE":
        _add_note(info.notes, "eager mode (no compilation, no CUDA graphs): acceptance can differ from production's")
    if provenance.gpu_name is not None:
        _add_note(info.notes, SOME_TIMES)


def _add_note(notes: list[str], note: str) -> None:
    if note not in notes:
        notes.append(note)
