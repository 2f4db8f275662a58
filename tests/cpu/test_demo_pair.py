"""The shipped drafters on the built-in target: replay's walk is live's rounds, and they are what their cards say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from driftscope.builtin import DEMO_DRAFTERS, resolve_drafter
from driftscope.cli.demo import demo_plan
from driftscope.plan_files import read_job
from probes.conditions import Job
from probes.job.loaded import Models, load_models
from probes.job.measure_job import measure_conditions
from probes.record import PromptRecord, RoundBatch

MAX_BYTES = 36_000_000


@pytest.fixture(scope="module")
def job() -> Job:
    job, _ = read_job(demo_plan())
    kept = [s for s in job.system_prompts if s.name in ("default", "persona")]
    return replace(job, prompts=job.prompts[:3], system_prompts=kept, context_tokens=(0, 128), max_new_tokens=32)


@pytest.fixture(scope="module")
def models(job: Job) -> Models:
    return load_models(job)


def measured(job: Job, models: Models) -> dict[tuple[str, str, int, str], RoundBatch]:
    records: list[object] = []
    check = measure_conditions(job, models, records.append)
    if job.engine == "live":
        assert check.num_texts == check.num_identical + check.num_first_differences_tied
        assert check.num_texts > 0
    assert all(r.num_continuation_tokens == job.depth for r in records if isinstance(r, PromptRecord))
    return {
        (r.drafter, r.system_prompt, r.context_tokens, r.prompt_id): r for r in records if isinstance(r, RoundBatch)
    }


def test_replays_walk_is_lives_rounds(job: Job, models: Models) -> None:
    replayed = measured(job, models)
    looped = measured(replace(job, engine="live"), models)
    assert replayed.keys() == looped.keys()
    assert len(replayed) == 2 * 2 * 2 * 3
    num_compared = 0
    for key, batch in replayed.items():
        live = looped[key]
        if batch.num_ties or live.num_ties:
            continue  # a tie may be resolved either way
        num_compared += 1
        assert live.start.tolist() == batch.start[batch.on_walk].tolist(), key
        assert live.accepted_drafts.tolist() == batch.accepted_drafts[batch.on_walk].tolist(), key
        reached = live.rejection_reason != 1
        assert (live.draft_token == batch.draft_token[batch.on_walk])[reached].all(), key
        np.testing.assert_allclose(live.mass["sink"], batch.mass["sink"][batch.on_walk], atol=1e-4)
        norm = batch.hidden_out_norm[batch.on_walk]
        np.testing.assert_allclose(live.hidden_out_norm, norm, rtol=2e-3)
    assert num_compared >= len(replayed) - 2


def test_the_state_grows_in_eagle3_and_not_in_eagle3_1(job: Job, models: Models) -> None:
    for key, batch in measured(replace(job, context_tokens=(0,)), models).items():
        fed_back = batch.hidden_feedback_norm.mean(axis=0)  # [depth]
        if key[0] == "eagle3":
            assert (np.diff(fed_back) > 0).all(), key
        else:
            assert fed_back.max() < 1.25 * fed_back.min(), key


@pytest.mark.parametrize("name", DEMO_DRAFTERS)
def test_shipped_files(name: str) -> None:
    folder = Path(resolve_drafter(f"demo:{name}"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "Apache-2.0" in card
    assert {p.name for p in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}


def test_both_stay_small() -> None:
    folders = [Path(resolve_drafter(f"demo:{name}")) for name in DEMO_DRAFTERS]
    assert sum(p.stat().st_size for folder in folders for p in folder.iterdir()) <= MAX_BYTES


def test_specs(models: Models) -> None:
    specs = {d.name: d.spec for d in models.drafters}
    assert {name: spec.kind for name, spec in specs.items()} == {"eagle3": "eagle3", "eagle3.1": "eagle3.1"}
    for spec in specs.values():
        assert spec.aux_layer_ids == (2, 15, 27)
        assert not spec.has_own_embedding
        assert all(f.severity == "info" for f in spec.findings), spec.findings
