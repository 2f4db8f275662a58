"""Runs the interventions that a run lacks, on its stored texts, and stores what they counted in the run.

Imports torch only when called. What it finds already counted it leaves alone, so a stopped pass goes on where it ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from driftscope.plan import Plan
from driftscope.runs import BatchKey, Run, read_run
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
from probes.interventions.registry import ALL, ENGINE, TARGET, select
from probes.record import InterventionCounts, PromptRecord, TargetStates

STORE_SECONDS = 30.0
"""Counts are on disk after at most so long."""

Texts = Mapping[tuple[str, str, int], Sequence[PromptRecord]]


def missing_interventions(run: Run, *, reference_target: str | None = None) -> list[str]:
    """Ids that were not run to the end on this run; `reference_target` only where one is asked for."""
    is_replay = run.info.engine == "replay"
    wanted = [i.id for i in ALL if i not in TARGET and not (is_replay and i in ENGINE)]
    missing = [id for id in wanted if id not in run.info.interventions]
    if reference_target is not None and reference_target != run.info.reference_target:
        missing += [i.id for i in TARGET]
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
        Plan.model_validate(run.info.plan)
    except ValidationError:
        return "run.json holds no plan that this driftscope understands"
    return None


def intervene(
    path: Path,
    names: Sequence[str],
    *,
    reference_target: str | None = None,
    texts: Texts | None = None,
    models: Any = None,
    on_status: Callable[[str], None] = lambda text: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[str]:
    """Run `names` ("all" or ids) on the run's texts -> notes on what could not be run.

    `texts` in place of the stored ones (a run with --no-text has none); `models` where they are loaded already. Raises
    InputError where target, drafters or
    prompt files of the plan are no longer there, or `[probe]` is not installed.
    """
    from driftscope.measure import need_probe_extra

    need_probe_extra()
    run = read_run(path)
    try:
        plan = Plan.model_validate(run.info.plan)
    except ValidationError as error:
        raise InputError(
            "its plan cannot be read, so target and drafters are unknown",
            code="no_plan",
            where=str(path),
            remedy="interventions need a run that `driftscope probe` made",
        ) from error
    on_status("reading prompts")
    job, _ = plan.job()
    job = replace(job, interventions=tuple(names), reference_target=reference_target)
    known = stored_texts(run) if texts is None else texts
    num_missing = run.prompts().num_rows - sum(len(records) for records in known.values())
    notes = [f"{num_missing} prompts have no text: no intervention was run on them"] if num_missing else []
    with RunLock(path):
        notes += _run(path, run, job, known, models, on_status, on_progress)
        ids = [i.id for i in select(names) if i not in TARGET or reference_target is not None]
        mark_interventions(path, ids, reference_target)
    return notes


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

    from probes.interventions.run import Interventions
    from probes.models import for_interventions, load_models

    transformers_logging.disable_progress_bar()  # progress is told by the caller
    if models is None:
        on_status("loading target and drafters")
        models = load_models(job)
    else:
        models = for_interventions(job, models)
    if job.reference_target is not None and job.reference_target != run.info.reference_target:
        remove_interventions(path, [i.id for i in TARGET])  # they are against another reference
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

    def is_done(id: str, drafter: str, cell: tuple[str, str, int], prompt_id: str) -> bool:
        return InterventionKey(id, BatchKey(drafter, *cell, prompt_id)) in done

    work = Interventions(job, models, texts, take, take_states, is_done, on_progress)
    try:
        work.run()
    finally:
        store()
    return work.notes
