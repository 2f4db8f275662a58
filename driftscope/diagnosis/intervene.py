"""Runs the interventions that a run lacks, on its stored texts, and stores what they counted in the run.

What it loads its caller says, never the run (`driftscope.diagnosis.named`). Imports torch only when called. What it finds
already counted it leaves alone, so a stopped pass goes on where it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from driftscope.diagnosis.files import changed_files, check_files
from driftscope.diagnosis.named import stored_plan
from driftscope.extras import need_probe_extra
from driftscope.runs import BatchKey, Run, read_run
from driftscope.runs.info import read_info, write_info
from driftscope.runs.interventions import (
    InterventionKey,
    add_interventions,
    intervention_keys,
    mark_interventions,
    remove_interventions,
    stored_texts,
)
from driftscope.runs.lock import RunLock
from probes.conditions import Job, Progress
from probes.errors import InputError
from probes.interventions.registry import ALL, select
from probes.record import InterventionCounts, PromptConditionKey, PromptRecord, TargetStates

STORE_SECONDS = 30.0
"""The longest time until counts are on disk, in seconds."""

Texts = Mapping[PromptConditionKey, Sequence[PromptRecord]]


def missing_interventions(run: Run, *, reference_target: str | None = None) -> list[str]:
    """Ids that were not run to the end on this run; `reference_target` only where one is asked for."""
    wanted = [i.id for i in ALL if i.suits(run.info.engine, has_reference=False)]
    missing = [id for id in wanted if id not in run.info.interventions]
    if reference_target is not None and reference_target != run.info.reference_target:
        missing += [i.id for i in ALL if i.needs_reference]
    return missing


def why_not(run: Run) -> str | None:
    """Why no intervention can be run on this run; None where nothing speaks against it. Looks at no model."""
    if run.info.engine == "import":
        return "the run was imported: it has no texts and names no checkpoints"
    if not run.info.has_text:
        return "the run holds no text (--no-text)"
    if run.info.draft_sample_method == "probabilistic":
        return "its drafts were drawn from the drafter's distribution, and interventions count greedy drafts"
    try:
        stored_plan(run)
    except InputError as error:
        return error.message
    return None


def intervene(
    path: Path,
    names: Sequence[str],
    job: Job,
    *,
    texts: Texts | None = None,
    models: Any = None,
    on_status: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[str]:
    """Run `names` ("all" or ids) on the run's texts -> notes on what could not be run, and on what was not as measured.

    `job` says from which target, drafters and prompts, on which device: of the run's own plan only what its user has
    seen. `texts` in place of the stored ones (a run with --no-text has none); `models` where they are loaded already:
    those that measured. Raises InputError where a model cannot be loaded, or `[probe]` is not installed.
    """

    need_probe_extra()
    run = read_run(path)
    job = replace(job, interventions=tuple(names))
    known = stored_texts(run) if texts is None else texts
    num_missing = run.prompts().num_rows - sum(len(records) for records in known.values())
    notes = [f"{num_missing} prompts have no text: no intervention was run on them"] if num_missing else []
    lasting = [] if models is not None else differences(run, job)
    with RunLock(path):
        notes += lasting + _run(path, run, job, known, models, on_status, on_progress)
        ids = [i.id for i in select(names) if not i.needs_reference or job.reference_target is not None]
        mark_interventions(path, ids, job.reference_target)
        look_at_files(path, job, lasting)
    return notes


def differences(run: Run, job: Job) -> list[str]:
    """Where the job is not what the run was measured with: files, device, dtype. One sentence each, for run.json.

    Every intervention is counted beside its own baseline, so gains hold; they are those of other files, or rounding.
    """
    models = [("the target", job.target, run.info.target.files_sha256)]
    for name, path in job.drafters.items():
        drafter = run.info.drafter(name)
        models.append((f"drafter {name}", path, {} if drafter is None else drafter.files_sha256))
    notes = []
    for what, path, recorded in models:
        if changed := changed_files(path, recorded):
            notes.append(
                f"interventions: {what} in {path} is not what the run was measured with: {', '.join(changed[:5])} "
                + ("differs" if len(changed) == 1 else "differ")
            )
    measured = run.info.provenance
    ours = (torch_device(job.device), job.dtype)
    theirs = (torch_device(measured.device), measured.dtype)
    if all(theirs) and ours != theirs:
        notes.append(f"interventions were counted on {' in '.join(ours)}, the run measured on {' in '.join(theirs)}")
    return notes


def torch_device(name: str) -> str:
    """Without a number: which of several equal GPUs it was makes no difference."""
    return name.partition(":")[0]


def look_at_files(path: Path, job: Job, notes: Sequence[str] = ()) -> None:
    """Keep in run.json what `driftscope check` finds where it had not looked, and `notes` that a reader must know. Who
    calls it holds the run's lock."""
    stored = read_info(path)
    info = stored.model_copy(deep=True)
    info.notes += [note for note in notes if note not in info.notes]
    for drafter in info.drafters:
        if drafter.file_findings is None and drafter.name in job.drafters:
            drafter.file_findings = check_files(job.target, job.drafters[drafter.name])
    if info != stored:
        write_info(path, info)


def _check_texts(texts: Texts, vocab_size: int, *, where: str) -> None:
    """Raises InputError for a text that this target cannot read: a run is anybody's, its target may be another's."""
    for records in texts.values():
        for record in records:
            ids, head, response = record.token_ids, record.num_prompt_tokens, record.num_response_tokens
            is_whole = (
                head is not None
                and response is not None
                and 0 < head <= head + max(response, 0) <= len(ids) == len(record.region)
            )
            if not is_whole or ids.min() < 0 or ids.max() >= vocab_size:
                raise InputError(
                    f"the text of prompt {record.prompt_id!r} has token ids outside 0..{vocab_size - 1}"
                    if is_whole
                    else f"the text of prompt {record.prompt_id!r} is not whole",
                    code="bad_text",
                    where=where,
                    remedy="Name the target that the run was measured with; `driftscope runs verify` checks the run.",
                )


def _run(
    path: Path,
    run: Run,
    job: Job,
    texts: Texts,
    models: Any,
    on_status: Callable[[str], None],
    on_progress: Callable[[Progress], None],
) -> list[str]:
    from transformers.utils import logging as transformers_logging

    from probes.interventions.loading import for_interventions
    from probes.interventions.run import Interventions
    from probes.job.loaded import load_models

    transformers_logging.disable_progress_bar()  # progress is told by the caller
    if models is None:
        on_status("loading target and drafters")
        models = load_models(job)
    models = for_interventions(job, models)
    _check_texts(texts, models.target.config.vocab_size, where=str(path))
    if job.reference_target is not None and job.reference_target != run.info.reference_target:
        remove_interventions(path, [i.id for i in ALL if i.needs_reference])  # they are against another reference
        run = read_run(path)
    done = intervention_keys(run)
    counts: list[InterventionCounts] = []
    states: dict[tuple[str, str, int, str, int], TargetStates] = {}
    last_stored = time.monotonic()

    def take(count: InterventionCounts) -> None:
        nonlocal last_stored
        counts.append(count)
        if time.monotonic() - last_stored > STORE_SECONDS:
            store()
            last_stored = time.monotonic()

    def take_states(s: TargetStates) -> None:
        states[s.system_prompt, s.template, s.context_tokens, s.prompt_id, s.aux_layer_id] = s

    def store() -> None:
        add_interventions(path, counts, list(states.values()))
        counts.clear()
        states.clear()

    def is_done(id: str, drafter: str, condition: PromptConditionKey, prompt_id: str) -> bool:
        return InterventionKey(id, BatchKey(drafter, *condition, prompt_id)) in done

    work = Interventions(job, models, texts, take, take_states, is_done, on_progress)
    try:
        work.run()
    finally:
        store()
    return work.notes
