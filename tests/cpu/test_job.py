"""Whole jobs on a tiny target with real checkpoint folders: conditions, batches, resuming, engines, self-check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from probes.chain.lossless import compare_with_plain
from probes.conditions import Job, Progress, PromptInput, SelfCheck, SystemPrompt, Template
from probes.errors import CheckpointError, InputError, SelfCheckError
from probes.job import condition_texts as texts
from probes.job.loaded import Models, load_models
from probes.job.measure_job import measure_conditions
from probes.prompt.under_condition import render_prompt, shared_prefix_tokens
from probes.record import TEXT_REGIONS, PromptRecord, Record, RoundBatch
from probes.target.sampler import Sampler
from probes.target.trace import TargetTrace
from tests.chat_templates import SMOLLM2
from tests.tiny_models import matched_drafter, tiny_target
from training.write_checkpoint import write_checkpoint

DOCUMENT = " ".join(f"the bell rang {i} times and then the lamp was lit again" for i in range(200))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny target and two drafters for it on disk."""
    from probes.drafter.algorithms.eagle3 import Eagle3

    root = tmp_path_factory.mktemp("pair")
    model = tiny_target(seed=0, num_layers=7, folder=root / "target")
    paths = {"target": str(root / "target")}
    for name, flags in (("eagle3", {}), ("eagle3.1", {"has_fc_norm": True, "norm_output": True})):
        spec, tensors = matched_drafter(model, seed=0, has_own_embedding=False, aux_layer_ids=(2, 3, 4), **flags)
        drafter = Eagle3.load(spec, tensors, target_embedding=model.model.embed_tokens.weight)
        write_checkpoint(drafter, root / name)
        paths[name] = str(root / name)
    return paths


@pytest.fixture(scope="module")
def job(folders: dict[str, str]) -> Job:
    return Job(
        target=folders["target"],
        drafters={name: folders[name] for name in ("eagle3", "eagle3.1")},
        prompts=[
            PromptInput(prompt_id=str(i), messages=({"role": "user", "content": text},))
            for i, text in enumerate(("where is the river", "sum two and three", "name a tree, please, and a bird"))
        ],
        system_prompts=[SystemPrompt(name="none"), SystemPrompt(name="short", text="Be brief.")],
        context_tokens=(0, 40),
        documents=[DOCUMENT],
        depth=4,
        max_new_tokens=16,
        batch_size=2,
    )


@pytest.fixture(scope="module")
def models(job: Job) -> Models:
    return load_models(job)


def run(job: Job, models: Models, **options: object) -> tuple[list[Record], SelfCheck]:
    records: list[Record] = []
    return records, measure_conditions(job, models, records.append, **options)  # type: ignore[arg-type]


def batches(records: list[Record]) -> dict[tuple[str, str, int, str], RoundBatch]:
    return {
        (r.drafter, r.system_prompt, r.context_tokens, r.prompt_id): r for r in records if isinstance(r, RoundBatch)
    }


def test_every_condition_is_measured_and_progress_counts_it(job: Job, models: Models) -> None:
    seen: list[Progress] = []
    records, check = run(job, models, on_progress=seen.append)
    prompts = [r for r in records if isinstance(r, PromptRecord)]
    assert len(prompts) == 2 * 2 * 3
    assert len(batches(records)) == 2 * 2 * 3 * 2
    assert (seen[-1].num_done, seen[-1].num_units) == (24, 24)
    assert check.num_too_short == 0
    assert any(b.accepted_drafts.max() > 0 for b in batches(records).values())  # something to compare in this file
    for p in prompts:
        count = np.bincount(p.region, minlength=len(TEXT_REGIONS))
        # the blank line behind the document belongs to it
        assert count[TEXT_REGIONS.index("context")] == pytest.approx(p.context_tokens, abs=3)
        assert (count[TEXT_REGIONS.index("system")] > 0) == (p.system_prompt == "short")
        assert count[TEXT_REGIONS.index("response")] == p.num_response_tokens + p.num_continuation_tokens
        assert p.num_continuation_tokens == job.depth


def test_live_rounds_are_replays_walk(job: Job, models: Models) -> None:
    replayed = batches(run(job, models)[0])
    records, check = run(replace(job, engine="live"), models)
    looped = batches(records)
    assert check.num_texts == check.num_identical + check.num_first_differences_tied == 24
    assert replayed.keys() == looped.keys()
    for key, batch in replayed.items():
        assert batch.start[batch.on_walk].tolist() == looped[key].start.tolist()
        assert batch.accepted_drafts[batch.on_walk].tolist() == looped[key].accepted_drafts.tolist()
        assert batch.num_trimmed_tokens == looped[key].num_trimmed_tokens


def test_batch_size_and_resuming_change_no_number(job: Job, models: Models) -> None:
    whole = batches(run(job, models)[0])
    single = batches(run(replace(job, batch_size=1), models)[0])
    done = {key for i, key in enumerate(whole) if i % 3 == 0}
    records, _ = run(
        job, models, is_done=lambda drafter, condition, prompt: (drafter, condition[0], condition[2], prompt) in done
    )
    rest = batches(records)
    assert rest.keys() == whole.keys() - done
    for key, batch in whole.items():
        for other in (single, rest):
            if key in other:
                assert other[key].draft_token.tolist() == batch.draft_token.tolist()
                np.testing.assert_allclose(other[key].mass["own"], batch.mass["own"], atol=1e-5)


def test_a_response_in_the_prompt_is_forced(job: Job, models: Models) -> None:
    prompt = replace(job.prompts[0], response="the river is in the north")
    records, _ = run(replace(job, prompts=[prompt], context_tokens=(0,)), models)
    text = next(r for r in records if isinstance(r, PromptRecord))
    assert text.is_forced
    assert text.finish_reason == "forced"
    assert 0 <= text.text_agreement <= 1
    assert text.mean_logprob < 0
    for batch in batches(records).values():
        assert batch.num_trimmed_tokens is None
        assert not batch.on_walk.any()


def test_none_sends_an_empty_system_turn_where_the_template_has_a_default(job: Job, models: Models) -> None:
    from probes.conditions import PromptCondition

    def regions(name: str) -> tuple[int, tuple[str, ...]]:
        condition = PromptCondition(SystemPrompt(name=name), Template(name="t", source=SMOLLM2), 0)
        rendered = render_prompt(models.target.tokenizer, job.prompts[0], condition, None)
        return rendered.num_tokens("system"), rendered.notes

    assert regions("default")[0] > 0
    num_tokens, notes = regions("none")
    assert num_tokens == 0
    assert any("empty system turn" in note for note in notes)


def test_a_text_that_differs_without_a_tie_fails_the_self_check() -> None:
    logits = torch.zeros(3, 10)
    logits[:, 1] = 2.0

    def trace(tokens: list[int]) -> TargetTrace:
        return TargetTrace(
            token_ids=torch.tensor([7, *tokens]),
            num_prompt_tokens=1,
            num_response_tokens=3,
            finish_reason="length",
            aux={},
            logits=logits,
        )

    check = SelfCheck()
    plain, options = trace([1, 1, 1]), {"is_float32": True, "prompt_id": "p"}
    assert compare_with_plain(plain, trace([1, 1, 1]), Sampler(), check, **options)
    with pytest.raises(SelfCheckError, match="response token 1"):
        compare_with_plain(plain, trace([1, 4, 1]), Sampler(), check, **options)
    logits[1, 4] = 2.0 - 1e-5
    assert not compare_with_plain(plain, trace([1, 4, 1]), Sampler(), check, **options)
    assert (check.num_texts, check.num_identical, check.num_first_differences_tied) == (3, 1, 1)


def test_context_longer_than_the_target_allows(job: Job, models: Models) -> None:
    with pytest.raises(InputError, match="allows 512") as caught:
        run(replace(job, context_tokens=(600,)), models)
    assert "--context-tokens" in caught.value.remedy


def test_unusable_models_are_named(job: Job, folders: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no-such-target"):
        load_models(replace(job, target=str(tmp_path / "no-such-target")))
    with pytest.raises(CheckpointError, match="no-such-drafter"):
        load_models(replace(job, drafters={"x": str(tmp_path / "no-such-drafter")}))
    with pytest.raises(InputError, match="dtype"):
        load_models(replace(job, dtype="float99"))


@pytest.mark.parametrize(("texts", "expected"), [(["abcde", "abcxy"], 3), (["abc", "abc"], 2), (["abc", "xbc"], 0)])
def test_shared_prefix(texts: list[str], expected: int) -> None:
    prompts: Iterator[np.ndarray] = (np.frombuffer(t.encode(), np.uint8) for t in texts)
    assert shared_prefix_tokens(list(prompts)) == expected


def test_long_prompts_are_written_in_smaller_batches(job: Job, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = texts.write

    def counted(target: object, prompts: list[np.ndarray], *rest: object, **options: object) -> object:
        sizes.append(len(prompts))
        return write(target, prompts, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(texts, "write", counted)
    together, _ = run(job, models)
    assert max(sizes) == 2
    sizes.clear()
    monkeypatch.setattr(texts, "MAX_BATCH_TOKENS", 1)
    alone, _ = run(job, models)
    assert set(sizes) == {1}
    assert batches(alone).keys() == batches(together).keys()
    for key, batch in batches(together).items():
        assert batches(alone)[key].draft_token.tolist() == batch.draft_token.tolist(), key
