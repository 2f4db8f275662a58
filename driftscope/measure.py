"""From a plan to a run on disk: loads the models, measures, writes. Shared by `probe`, `demo` and whoever else starts one.

Imports torch only when called. Knows nothing of consoles: progress goes to a callable.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import driftscope
from driftscope.plan import Plan
from driftscope.plan_files import read_job
from driftscope.runs import read_run
from driftscope.runs.info import Cost, DrafterInfo, Provenance, RunInfo, TargetInfo
from driftscope.runs.writer import RunWriter
from driftscope.summary import summarise, write_summary
from probes.checkpoint.spec import DrafterSpec
from probes.conditions import Job, Progress, SelfCheck
from probes.errors import InputError
from probes.interventions.registry import select
from probes.record import REGIONS, PromptRecord, Record
from probes.regular_file import open_regular

if TYPE_CHECKING:
    from probes.job.loaded import Models

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow")

REGION_DEFINITIONS = dict(
    zip(
        REGIONS,
        (
            "slots t+1 .. t+k-1: this chain's own",
            "slot t, the last verified pair",
            "the first {sink_slots} slot(s); slot 0 is the pair (token 1, state of token 0): the first token is visible "
            "to the drafter only through its state",
            "special tokens, role headers and the generation prompt",
            "the system prompt",
            "tool definitions",
            "the document inserted for the context length",
            "user turns",
            "earlier assistant turns",
            "this turn's verified tokens before slot t",
            "what could not be attributed",
            "probability given to a learned softmax sink",
        ),
        strict=True,
    )
)


def need_probe_extra() -> None:
    """Raises InputError when the packages that measuring needs are not installed."""
    for name in ("torch", "transformers", "safetensors"):
        try:
            version(name)
        except PackageNotFoundError as error:
            raise InputError(
                f"measuring needs {name}, which is not installed",
                code="probe_extra_missing",
                remedy="pip install 'driftscope[probe]'",
            ) from error


def package_versions() -> dict[str, str]:
    """Of what a run's figures depend on; Triton where it is installed."""
    from probes.attention.kernel import has_triton

    return {name: version(name) for name in (*PACKAGES, *(("triton",) if has_triton() else ()))}


def measure(
    plan: Plan,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    argv: list[str] | None = None,
    on_status: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> SelfCheck:
    """Makes (or goes on with) the run `out`. Raises InputError before anything is written, SelfCheckError at the end."""
    need_probe_extra()
    on_status("reading prompts")
    job, notes = read_job(plan)
    if job.engine == "vllm":
        from driftscope.measure_vllm import measure_vllm

        return measure_vllm(
            plan,
            job,
            out,
            notes=notes,
            argv=sys.argv if argv is None else argv,
            resume=resume,
            overwrite=overwrite,
            on_status=on_status,
            on_progress=on_progress,
        )
    from transformers.utils import logging as transformers_logging

    from probes.job.loaded import load_models
    from probes.job.measure_job import check_job, run_job

    transformers_logging.disable_progress_bar()  # progress is told by the caller

    on_status("loading target and drafters")
    models = load_models(replace(job, interventions=("none",)))  # what interventions need more is captured after
    check_job(job, models)
    if plan.costs:
        models.target.check_length(max(plan.costs_context_tokens) + plan.depth + 1, "measuring costs")
    loaded = Loaded(
        config=models.target.config.to_dict(),
        tokenizer=models.target.tokenizer,
        specs={d.name: d.spec for d in models.drafters},
    )
    writer = open_writer(
        plan, job, loaded, out, notes=notes, argv=sys.argv if argv is None else argv, resume=resume, overwrite=overwrite
    )
    done = done_batches(writer)
    texts: dict[tuple[str, str, int], list[PromptRecord]] = {}

    def write(record: Record) -> None:
        writer.write_batch(record)
        if isinstance(record, PromptRecord) and not plan.text:  # interventions come last, the run forgets the text
            texts.setdefault((record.system_prompt, record.template, record.context_tokens), []).append(record)

    with writer:
        if plan.costs and not writer.info.costs:
            _measure_costs(plan, models, writer, on_status)
        check: SelfCheck = run_job(
            job,
            models,
            write,
            is_done=lambda drafter, cell, prompt_id: (drafter, cell, prompt_id) in done,
            on_progress=on_progress,
        )
    run = read_run(out)
    write_summary(run, summarise(run))
    if select(plan.interventions):
        from driftscope.diagnosis.intervene import intervene

        check.notes += intervene(
            out,
            plan.interventions,
            job,
            texts=None if plan.text else texts,
            models=models,
            on_status=on_status,
            on_progress=on_progress,
        )
    return check


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


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What run.json says of target and drafters, whichever engine loads them."""

    config: dict[str, Any]  # the target's text config
    tokenizer: Any
    specs: dict[str, DrafterSpec]


def open_writer(
    plan: Plan,
    job: Job,
    loaded: Loaded,
    out: Path,
    *,
    notes: list[str],
    argv: list[str],
    resume: bool,
    overwrite: bool,
) -> RunWriter:
    if resume:
        return RunWriter.resume(out, plan=plan.stored())
    return RunWriter(out, _run_info(plan, job, loaded, notes, argv), overwrite=overwrite)


def done_batches(writer: RunWriter) -> set[tuple[str, tuple[str, str, int], str]]:
    """(drafter, cell, prompt id) of what is on disk."""
    return {
        (b.drafter, (b.prompt.system_prompt, b.prompt.template, b.prompt.context_tokens), b.prompt.prompt_id)
        for b in writer.complete_batches
    }


def _run_info(plan: Plan, job: Job, loaded: Loaded, notes: list[str], argv: list[str]) -> RunInfo:
    import torch

    from driftscope.diagnosis.files import check_files
    from probes.attention.kernel import kernel_name
    from probes.checkpoint.files import file_hashes

    config = loaded.config
    drafters = [
        DrafterInfo.from_spec(name, job.drafters[name], spec, files_sha256=file_hashes(job.drafters[name]))
        for name, spec in loaded.specs.items()
    ]
    for drafter in drafters:
        drafter.file_findings = check_files(job.target, drafter.path)
    is_cuda = job.device.startswith("cuda")
    return RunInfo(
        engine=job.engine,
        level=plan.level,
        depth=job.depth,
        temperature=job.temperature,
        top_k=job.top_k,
        top_p=job.top_p,
        draft_sample_method="probabilistic" if job.draws_drafts else "greedy",
        acceptance_rule=job.acceptance_rule,
        sink_slots=job.sink_slots,
        has_text=plan.text,
        plan=plan.stored(),
        target=TargetInfo(
            name=plan.target,
            path=job.target,
            model_type=config["model_type"],
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            vocab_size=config["vocab_size"],
            files_sha256=_target_hashes(Path(job.target)),
        ),
        drafters=drafters,
        provenance=Provenance(
            driftscope_version=driftscope.__version__,
            python_version=platform.python_version(),
            platform=platform.platform(),
            packages=package_versions(),
            device=job.device,
            gpu_name=torch.cuda.get_device_name(job.device) if is_cuda else None,
            dtype=job.dtype,
            attention_backend=kernel_name(job.device, job.dtype),
            template_sha256={
                t.name: hashlib.sha256(_template_text(loaded.tokenizer, t.source).encode()).hexdigest()
                for t in job.templates
            },
            seed=job.seed,
            argv=argv,
        ),
        region_definitions={name: text.format(sink_slots=job.sink_slots) for name, text in REGION_DEFINITIONS.items()},
        notes=notes,
    )


def _template_text(tokenizer: Any, source: str) -> str:
    return str(tokenizer.chat_template or "") if source == "default" else source


def _target_hashes(folder: Path) -> dict[str, str]:
    """sha256 of a local target's config, tokenizer and weights; empty for a Hub id, whose name has the revision."""
    hashes: dict[str, str] = {}
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        if path.suffix in (".json", ".jinja", ".model", ".safetensors") and path.is_file():
            with open_regular(path) as file:
                hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes
