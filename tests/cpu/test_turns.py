"""Turns of one conversation are read in one pass, by the target and by each drafter, and measure as turns read alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from driftscope.cli import main
from driftscope.plan import make_plan
from driftscope.plan_files import read_job
from driftscope.runs import read_run
from probes.chain import step as chain
from probes.conditions import Job, PromptInput, Template
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.errors import InputError
from probes.job.loaded import Models, load_models
from probes.job.measure_job import measure_conditions
from probes.prompt.under_condition import read_together
from probes.record import TEXT_REGIONS, PromptRecord, Record, RoundBatch
from probes.target import trace
from probes.target.model import Target
from probes.target.sampler import Sampler
from probes.target.trace import HeadLogits
from probes.target.write import write
from probes.vllm.measure_job import refuse_unsupported
from tests.chat_templates import QWEN3
from tests.same_rounds import assert_same_rounds
from tests.tiny_models import matched_drafter, tiny_target
from training.write_checkpoint import write_checkpoint

DRAFTERS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3.1": {"has_fc_norm": True, "norm_output": True},
    "window": {"num_layers": 2, "sliding_window": 12},
}
QUESTIONS = ("where is the river", "sum two and three", "name a tree, please, and a bird")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/, three drafters and conversation.jsonl: three turns that the target itself has written."""
    root = tmp_path_factory.mktemp("conversation")
    model = tiny_target(seed=0, num_layers=7, folder=root / "target")
    for name, flags in DRAFTERS.items():
        spec, tensors = matched_drafter(model, seed=0, has_own_embedding=False, aux_layer_ids=(2, 3, 4), **flags)
        write_checkpoint(Eagle3.load(spec, tensors, target_embedding=model.model.embed_tokens.weight), root / name)
    target = Target.load(root / "target")
    messages: list[dict[str, str]] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        text = target.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = np.array(target.tokenizer(text)["input_ids"], np.int32)
        [written] = write(target, [prompt], ["x"], max_new_tokens=20, num_continuation_tokens=0, sampler=Sampler())
        answer = target.tokenizer.decode(written.token_ids[len(prompt) :], skip_special_tokens=True)
        messages.append({"role": "assistant", "content": answer.strip()})
    (root / "conversation.jsonl").write_text(json.dumps({"id": "c", "messages": messages}))
    return root


@pytest.fixture(scope="module")
def job(folder: Path) -> Job:
    options = {
        "target": str(folder / "target"),
        "drafter": {name: str(folder / name) for name in DRAFTERS},
        "prompts": str(folder / "conversation.jsonl"),
        "turns": "all",
        "depth": 4,
    }
    job, _ = read_job(make_plan(options, where="test"))
    assert [p.prompt_id for p in job.prompts] == ["c/turn1", "c/turn2", "c/turn3"]
    return job


@pytest.fixture(scope="module")
def models(job: Job) -> Models:
    return load_models(job)


def run(job: Job, models: Models, **options: Any) -> tuple[dict[str, PromptRecord], dict[tuple[str, str], RoundBatch]]:
    records: list[Record] = []
    measure_conditions(job, models, records.append, **options)
    return (
        {r.prompt_id: r for r in records if isinstance(r, PromptRecord)},
        {(r.drafter, r.prompt_id): r for r in records if isinstance(r, RoundBatch)},
    )


def run_alone(job: Job, models: Models) -> tuple[dict[str, PromptRecord], dict[tuple[str, str], RoundBatch]]:
    """Each turn in a job of its own, so that no other text is there to be read with it."""
    texts: dict[str, PromptRecord] = {}
    rounds: dict[tuple[str, str], RoundBatch] = {}
    for prompt in job.prompts:
        more_texts, more_rounds = run(replace(job, prompts=[prompt]), models)
        texts |= more_texts
        rounds |= more_rounds
    return texts, rounds


def assert_same(job: Job, models: Models) -> dict[tuple[str, str], RoundBatch]:
    """All turns of the job measure as they do alone -> their rounds."""
    texts, rounds = run(job, models)
    texts_alone, rounds_alone = run_alone(job, models)
    assert texts.keys() == texts_alone.keys() == {p.prompt_id for p in job.prompts}
    for prompt_id, text in texts.items():
        for field in fields(PromptRecord):
            ours, theirs = getattr(text, field.name), getattr(texts_alone[prompt_id], field.name)
            if isinstance(ours, np.ndarray):
                assert ours.tolist() == theirs.tolist(), field.name
            else:
                assert ours == (pytest.approx(theirs, rel=1e-5) if isinstance(ours, float) else theirs), field.name
    assert rounds.keys() == rounds_alone.keys()
    for key, batch in rounds.items():
        assert_same_rounds(batch, rounds_alone[key], atol=1e-5, mass_atol=1e-5)
    return rounds


@pytest.fixture
def tokens_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each of the target's forward passes, as they come."""
    counts: list[int] = []
    forward = Target.forward

    def counted(self: Target, token_ids: Any, *rest: Any, **options: Any) -> Any:
        counts.append(token_ids.numel())
        return forward(self, token_ids, *rest, **options)

    monkeypatch.setattr(Target, "forward", counted)
    return counts


@pytest.fixture
def slots_computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Drafters' slots whose keys and values were computed, as they come."""
    counts: list[int] = []
    extend = chain._extend

    def counted(drafter: Any, token_ids: Any, aux: Any, first: int, last: int, cache: Any) -> Any:
        counts.append(last - first)
        return extend(drafter, token_ids, aux, first, last, cache)

    monkeypatch.setattr(chain, "_extend", counted)
    return counts


def test_the_longest_text_is_read_once(
    job: Job, models: Models, tokens_read: list[int], slots_computed: list[int]
) -> None:
    texts, _ = run(job, models)
    lengths = [len(texts[f"c/turn{n}"].token_ids) for n in (1, 2, 3)]
    assert lengths == sorted(lengths)
    assert sum(tokens_read) == lengths[-1]
    assert sum(slots_computed) == len(DRAFTERS) * (lengths[-1] - 1)


def test_turns_measure_as_turns_read_alone(job: Job, models: Models) -> None:
    rounds = assert_same(job, models)
    texts, _ = run(job, models)
    for prompt_id, text in texts.items():
        assert (text.num_continuation_tokens, text.finish_reason, text.is_forced) == (0, "forced", True)
        is_response = text.region == TEXT_REGIONS.index("response")
        assert is_response.sum() == text.num_response_tokens
        assert is_response[text.num_prompt_tokens :].all()
        assert (text.region == TEXT_REGIONS.index("history")).any() == (prompt_id != "c/turn1")
    for (_, prompt_id), batch in rounds.items():
        text = texts[prompt_id]
        first, last = text.num_prompt_tokens - 1, len(text.token_ids) - 3
        assert batch.start.tolist() == list(range(first, last + 1))
        assert batch.num_trimmed_tokens is None
    assert any(batch.accepted_drafts.max() > 1 for batch in rounds.values())  # something to compare in this file


def test_a_head_that_does_more_than_multiply(job: Job, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits are kept instead of its states."""
    monkeypatch.setattr(models.target, "_is_plain_head", False)
    assert_same(job, models)


def test_logits_kept_for_all_turns_together_take_no_more_than_those_of_one_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CUDA device only, for which states in the host's memory stand in here."""

    class States(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

    def turns_of(num_tokens: int) -> list[HeadLogits]:
        states = torch.zeros(num_tokens, 4, dtype=torch.float16).as_subclass(States)
        whole = HeadLogits(states, lambda states: states, num_ids=10)
        return [whole.part(slice(0, 30)), whole.part(slice(60, num_tokens))]

    monkeypatch.setattr(trace, "MAX_KEPT_BYTES", 100 * 10 * 2)
    assert [(len(turn), turn.is_kept) for turn in turns_of(100)] == [(30, True), (40, True)]
    assert [(len(turn), turn.is_kept) for turn in turns_of(101)] == [(30, False), (41, False)]


@pytest.mark.parametrize("options", [{"last_tokens": 5}, {"target_attention": True}], ids=str)
def test_with_other_options_of_a_replay(options: dict[str, Any], job: Job, models: Models) -> None:
    assert_same(replace(job, **options), models)


def test_a_template_that_rewrites_history_has_its_turns_read_alone(
    job: Job, models: Models, tokens_read: list[int]
) -> None:
    """Earlier reasoning is dropped: what turn 1 was is nowhere in the later texts. Turn 3 has no reasoning, nor turn 2."""

    def thinking(message: Any) -> Any:
        return {**message, "content": f"<think>two</think>{message['content']}"}

    first, *later = job.prompts
    prompts = [
        replace(first, response=f"<think>two</think>{first.response}"),
        *(replace(p, messages=(p.messages[0], thinking(p.messages[1]), *p.messages[2:])) for p in later),
    ]
    rewritten = replace(job, prompts=prompts, templates=[Template(name="qwen3", source=QWEN3)])
    texts, _ = run(rewritten, models)
    length = {name: len(text.token_ids) for name, text in texts.items()}
    num_shared = min(text.num_prompt_tokens for text in texts.values()) - 1
    assert sum(tokens_read) == length["c/turn1"] + length["c/turn3"] - num_shared
    assert_same(rewritten, models)


def test_a_rope_that_depends_on_the_length_has_its_turns_read_alone(
    job: Job, models: Models, tokens_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.target.config.rope_parameters, "rope_type", "dynamic")
    texts, _ = run(job, models)
    num_shared = texts["c/turn1"].num_prompt_tokens - 1
    assert sum(tokens_read) == sum(len(text.token_ids) - num_shared for text in texts.values()) + num_shared


def test_a_resumed_run_measures_what_is_missing(job: Job, models: Models) -> None:
    whole = run(job, models)[1]
    done = {("eagle3", "c/turn1"), ("eagle3", "c/turn3"), ("eagle3.1", "c/turn2")}
    _, rest = run(job, models, is_done=lambda drafter, condition, prompt_id: (drafter, prompt_id) in done)
    assert rest.keys() == whole.keys() - done
    for key, batch in rest.items():
        assert_same_rounds(batch, whole[key], atol=0, mass_atol=0)


@pytest.mark.parametrize(
    ("texts", "groups"),
    [
        (["ab", "abc", "a"], [[0, 1, 2]]),
        (["a", "ac", "ab", "b"], [[0, 2], [1], [3]]),
        (["ab", "ab"], [[0, 1]]),
        (["b", "a"], [[0], [1]]),
        ([], []),
    ],
)
def test_texts_are_read_together_where_they_are_beginnings(texts: Sequence[str], groups: list[list[int]]) -> None:
    assert read_together([np.array([ord(c) << 8 for c in text], np.int32) for text in texts]) == groups


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.drift"
    command = ["probe", "--target", str(folder / "target"), "--drafter", f"d={folder / 'eagle3'}", "--turns", "all"]
    command += ["--prompts", str(folder / "conversation.jsonl"), "--depth", "3", "--out", str(out)]
    assert main(command) == 0
    capsys.readouterr()
    stored = read_run(out)
    assert stored.info.plan["turns"] == "all"
    assert "conversation.jsonl: 3 prompts read as openai-chat, 3 with an answer that is replayed" in stored.info.notes
    assert stored.prompts()["prompt_id"].to_pylist() == ["c/turn1", "c/turn2", "c/turn3"]
    assert main(["runs", "verify", str(out)]) == 0


def test_the_live_engine_replays_them_and_vllm_refuses_them(job: Job, models: Models) -> None:
    rounds = run(job, models)[1]
    for key, batch in run(replace(job, engine="live"), models)[1].items():
        assert batch.engine == "replay"
        assert_same_rounds(batch, rounds[key], atol=0, mass_atol=0)
    with pytest.raises(InputError, match="prompts with a response"):
        refuse_unsupported(replace(job, engine="vllm"))


def test_log_rows_of_one_chat_are_read_together_too(job: Job, models: Models, tokens_read: list[int]) -> None:
    """Without the option: a row holds its own answer and the turns before it, which other rows hold as theirs."""
    rows = [PromptInput(prompt_id=str(i), messages=p.messages, response=p.response) for i, p in enumerate(job.prompts)]
    texts, _ = run(replace(job, prompts=rows[::-1]), models)
    assert sum(tokens_read) == len(texts["2"].token_ids)
