"""Prompts that come rendered, with answers as token ids, or with the name of their own system prompt: measured as such."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from driftscope.plan import make_plan
from probes.conditions import Job, PromptCondition, PromptInput, SystemPrompt, Template, prompt_conditions
from probes.errors import InputError
from probes.job.loaded import Models, load_models
from probes.job.measure_job import check_job, measure_conditions
from probes.prompt.under_condition import render_or_take
from probes.record import TEXT_REGIONS, PromptRecord, Record
from tests.tiny_models import VOCAB_SIZE, matched_drafter, tiny_target
from training.write_checkpoint import write_checkpoint

RAW = PromptCondition(SystemPrompt(name="prompt"), Template(name="raw", source="raw"), 0)
UNKNOWN = TEXT_REGIONS.index("unknown")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    from probes.drafter.algorithms.eagle3 import Eagle3

    root = tmp_path_factory.mktemp("pair")
    model = tiny_target(seed=0, num_layers=7, folder=root / "target")
    spec, tensors = matched_drafter(model, seed=0, has_own_embedding=False, aux_layer_ids=(2, 3, 4))
    write_checkpoint(Eagle3.load(spec, tensors, target_embedding=model.model.embed_tokens.weight), root / "drafter")
    return Job(
        target=str(root / "target"),
        drafters={"d": str(root / "drafter")},
        prompts=[],
        system_prompts=[RAW.system_prompt],
        templates=[RAW.template],
        depth=3,
        max_new_tokens=8,
    )


@pytest.fixture(scope="module")
def models(job: Job) -> Models:
    return load_models(job)


def prompts_of(job: Job, models: Models) -> dict[tuple[str, str], PromptRecord]:
    """By system prompt and id. The job is checked first, as `probe` does."""
    records: list[Record] = []
    check_job(job, models)
    measure_conditions(job, models, records.append)
    return {(r.system_prompt, r.prompt_id): r for r in records if isinstance(r, PromptRecord)}


def test_templated_text_is_not_templated_again(job: Job, models: Models) -> None:
    """Its role markers become the special tokens that they are; nothing is added."""
    text = "<|im_start|>user\nwhere is the river<|im_end|>\n<|im_start|>assistant\n"
    ids = models.target.tokenizer(text, add_special_tokens=False)["input_ids"]
    taken = render_or_take(models.target.tokenizer, PromptInput(prompt_id="a", messages=(), text=text), RAW, None)
    assert taken.token_ids.tolist() == ids
    template = TEXT_REGIONS.index("template")
    specials = np.isin(ids, models.target.tokenizer.all_special_ids)
    assert specials.any()
    assert taken.region.tolist() == np.where(specials, template, UNKNOWN).tolist()
    assert any("came rendered" in note for note in taken.notes)


def test_an_answer_as_token_ids_is_replayed_token_by_token(job: Job, models: Models) -> None:
    prompt = PromptInput(prompt_id="q", messages=(), token_ids=(5, 6, 7), response_token_ids=(8, 9, 8, 9, 10))
    record = prompts_of(replace(job, prompts=[prompt]), models)["prompt", "q"]
    assert record.token_ids.tolist() == [5, 6, 7, 8, 9, 8, 9, 10]
    assert (record.num_prompt_tokens, record.num_response_tokens, record.is_forced) == (3, 5, True)
    assert record.region[:3].tolist() == [UNKNOWN] * 3


@pytest.mark.parametrize("ids", [{"token_ids": (5, VOCAB_SIZE)}, {"token_ids": (5,), "response_token_ids": (1 << 30,)}])
def test_token_ids_of_another_vocabulary_are_refused_before_anything_is_measured(
    ids: dict[str, tuple[int, ...]], job: Job, models: Models
) -> None:
    prompts = [
        PromptInput(prompt_id="good", messages=(), token_ids=(5,)),
        PromptInput(prompt_id="q", messages=(), **ids),
    ]
    with pytest.raises(InputError) as caught:
        check_job(replace(job, prompts=prompts), models)
    assert caught.value.code == "bad_token_id"
    assert caught.value.where == "prompt q"


def test_an_answer_that_cannot_fit_is_refused_before_anything_is_measured(job: Job, models: Models) -> None:
    short = PromptInput(prompt_id="s", messages=({"role": "user", "content": "a longer question than the other"},))
    long = PromptInput(prompt_id="l", messages=({"role": "user", "content": "hi"},), response="river " * 600)
    with pytest.raises(InputError, match="prompt l"):
        check_job(replace(job, prompts=[short, long]), models)


def test_prompts_are_measured_under_the_name_of_their_own_system_prompt(job: Job, models: Models) -> None:
    def prompt(name: str, version: int | None) -> PromptInput:
        system = {"role": "system", "content": f"version {version}"}
        return PromptInput(
            prompt_id=name,
            messages=(system, {"role": "user", "content": "where is the river"}),
            system_prompt_name=None if version is None else f"support@{version}",
        )

    named = replace(
        job,
        prompts=[prompt("a", 7), prompt("b", 8), prompt("c", 7), prompt("d", None)],
        system_prompts=[SystemPrompt(name=name) for name in ("none", "support@7", "support@8", "prompt")],
        templates=[Template(name="default", source="default")],
    )
    records = prompts_of(named, models)
    assert set(records) == {
        ("none", "a"), ("none", "b"), ("none", "c"), ("none", "d"),
        ("support@7", "a"), ("support@7", "c"), ("support@8", "b"), ("prompt", "d"),
    }  # fmt: skip
    system = TEXT_REGIONS.index("system")
    assert {key: bool((r.region == system).any()) for key, r in records.items()} == {
        key: key[0] != "none" for key in records
    }
    assert len(prompt_conditions(named)) == 4


def test_a_log_becomes_a_run_with_a_condition_for_each_release(job: Job, tmp_path: Path) -> None:
    """From a Langfuse export to stored conditions, redacted on the way: nothing of the address is in any file."""
    from driftscope.measure.run import measure
    from driftscope.runs import read_run

    path = tmp_path / "log.jsonl"
    rows = [
        {
            "id": f"o{version}{i}",
            "type": "GENERATION",
            "prompt_name": "support",
            "prompt_version": version,
            "input": json.dumps([{"role": "user", "content": f"ask joe@example.org about river {i}"}]),
            "output": "the river is in the north",
        }
        for version in (7, 8)
        for i in range(2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + json.dumps({"type": "SPAN", "id": "s"}) + "\n")
    plan = make_plan(
        {
            "target": job.target,
            "drafter": dict(job.drafters),
            "prompts": str(path),
            "redact": True,
            "depth": 3,
            "max_new_tokens": 8,
        },
        where="test",
    )
    measure(plan, tmp_path / "log.drift")
    run = read_run(tmp_path / "log.drift")
    prompts = run.prompts().to_pylist()
    assert {(p["system_prompt"], p["prompt_id"]) for p in prompts} == {
        ("support@7", "o70"), ("support@7", "o71"), ("support@8", "o80"), ("support@8", "o81"),
    }  # fmt: skip
    assert all(p["is_forced"] for p in prompts)
    assert all("[EMAIL]" in p["messages"] for p in prompts)
    assert not any("joe@" in json.dumps(p, default=str) for p in prompts)
    assert "joe@" not in (tmp_path / "log.drift" / "run.json").read_text()
    assert run.info.notes[0] == "log.jsonl: 4 prompts read as langfuse, 4 with an answer that is replayed"
    assert "log.jsonl: left out: an observation that is not a generation (1 lines)" in run.info.notes
    assert "redacted before rendering: 4 of email (4 of 4 prompts changed)" in run.info.notes
