"""What run.json says of a measurement: models, packages, regions, and what an engine says of itself."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from driftscope.plan import Plan
from driftscope.runs.info import DrafterInfo, Provenance, RunInfo, TargetInfo
from probes.checkpoint.spec import DrafterSpec, Finding
from probes.conditions import Job
from probes.record import region_definitions
from probes.regular_file import open_regular

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow")

NULLS = (
    "vLLM shows no probabilities, ranks or true-feature pass: draft_prob, target_prob_of_draft, overlap, fresh_right, "
    "own_excess, sink_deficit and chain_gap are null (docs/vllm.md)"
)
HEAD_MEANS = (
    "level default: masses are means over heads, and `unknown` is the whole prompt but the sink; --level heads "
    "records the prompt's regions one by one"
)
SOME_TIMES = "draft_us and verify_us are of two steps in 16 on a GPU, null in the others"
TEMPERATURE = "at temperature > 0 rejections by chance (sampled_out) cannot be told from disagreements here"


def package_versions() -> dict[str, str]:
    """Versions of what a run's numbers depend on; Triton where it is installed."""
    from probes.attention.kernel import has_triton

    return {name: version(name) for name in (*PACKAGES, *(("triton",) if has_triton() else ()))}


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Target and drafters as run.json needs them, whichever engine loads them."""

    config: dict[str, Any]  # the target's text config
    tokenizer: Any
    specs: dict[str, DrafterSpec]


def run_info(plan: Plan, job: Job, loaded: Loaded, notes: list[str]) -> RunInfo:
    """run.json as a new run begins. Hashes the models' files."""
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
        provenance=Provenance.here(
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
        ),
        region_definitions=region_definitions(job.sink_slots),
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
        add_note(info.notes, "eager mode (no compilation, no CUDA graphs): acceptance can differ from production's")
    if provenance.gpu_name is not None:
        add_note(info.notes, SOME_TIMES)


def add_note(notes: list[str], note: str) -> None:
    if note not in notes:
        notes.append(note)
