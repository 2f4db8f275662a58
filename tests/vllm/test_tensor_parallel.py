"""Two tensor parallel workers, two processes on the CPU, against one worker: tokens, masses, norms; one of them failing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)


from driftscope.measure.run import measure
from driftscope.plan import make_plan
from driftscope.runs import read_run
from driftscope.runs.verify import verify
from probes.errors import InputError
from probes.record import REGIONS, RoundBatch
from probes.vllm.engine import Engine, Text, TextRequest
from probes.vllm.to_record import DEFAULT_LEVEL_REGIONS
from tests.recorded_pair import (
    DEPTH,
    EXACT,
    NORMS,
    Pair,
    batch,
    random_prompts,
    recorded_engine,
    text_requests,
    tiny_pair,
)

MAX_NEW_TOKENS = 16
OPTIONS: dict[str, Any] = {"enforce_eager": True, "max_model_len": 256, "block_size": 32}


started = partial(recorded_engine, **OPTIONS)


def requests() -> list[TextRequest]:
    return text_requests(random_prompts((2, 33, 65)))


def generate(running: Engine) -> list[Text]:
    return running.generate(requests(), max_tokens=MAX_NEW_TOKENS)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    texts: list[Text]
    batches: list[RoundBatch]
    accepted_by_depth: list[int]
    settings: dict[str, object]


def outcome(pair: Pair, running: Engine) -> Outcome:
    texts = generate(running)
    status = running.status()
    assert status is not None
    assert status.failure is None
    assert status.num_written == status.num_requests == len(texts)
    return Outcome(
        texts=texts,
        batches=[batch(pair, r, t) for r, t in zip(requests(), texts, strict=True)],
        accepted_by_depth=running.counters().accepted_by_depth,
        settings=running.settings(),
    )


def assert_same(one: Outcome, two: Outcome) -> None:
    """What does not depend on heads, and the embedding's share, which every worker has a part of."""
    assert [t.token_ids for t in two.texts] == [t.token_ids for t in one.texts]
    assert two.accepted_by_depth == one.accepted_by_depth
    assert sum(two.accepted_by_depth) > 5
    for ours, theirs in zip(one.batches, two.batches, strict=True):
        for name in EXACT:
            np.testing.assert_array_equal(getattr(theirs, name), getattr(ours, name), err_msg=name)
        for name in NORMS:
            np.testing.assert_allclose(getattr(theirs, name), getattr(ours, name), rtol=1e-5, err_msg=name)
        for name in ("fusion_share", "fusion_energy", "input_share_embed"):
            np.testing.assert_allclose(getattr(theirs, name), getattr(ours, name), atol=1e-5, err_msg=name)


def largest(differences: Sequence[float]) -> None:
    print(f"largest difference of a mass or an entropy: {max(differences):.1e}")


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Four query heads on one key head, which both workers hold."""
    flags = {"num_kv_heads": 1, "has_fc_norm": True, "norm_output": True}
    return tiny_pair(tmp_path_factory.mktemp("replicated"), **flags)


def test_every_head_with_a_replicated_key_head(replicated: Pair) -> None:
    with started(replicated, "heads") as running:
        one = outcome(replicated, running)
    with started(replicated, "heads", tensor_parallel_size=2) as running:
        two = outcome(replicated, running)
    assert_same(one, two)
    assert one.settings["drafter_tensor_parallel_size"] == 1
    assert {**two.settings, "tensor_parallel_size": 1, "drafter_tensor_parallel_size": 1} == {
        **one.settings,
        "draft_tensor_parallel_size": 2,
    }
    assert two.settings["drafter_tensor_parallel_size"] == two.settings["tensor_parallel_size"] == 2
    differences = []
    for ours, theirs in zip(one.batches, two.batches, strict=True):
        assert theirs.mass["own"].shape[-1] == 4
        for region in REGIONS:
            np.testing.assert_allclose(theirs.mass[region], ours.mass[region], atol=1e-5, err_msg=region)
            differences.append(float(np.abs(theirs.mass[region] - ours.mass[region]).max()))
        np.testing.assert_allclose(theirs.attention_entropy, ours.attention_entropy, atol=1e-5)
        differences.append(float(np.abs(theirs.attention_entropy - ours.attention_entropy).max()))
        # the heads differ, so that an exchanged order would be seen
        assert np.ptp(ours.mass["current"], axis=-1).max() > 1e-3
    largest(differences)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Four query heads on two key heads, one for each worker."""
    return tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def by_head(pair: Pair) -> Outcome:
    """One worker, every head."""
    with started(pair, "heads") as running:
        return outcome(pair, running)


def break_recorder(worker: Any) -> None:
    """Runs in every worker; only the second one's recorder fails from now on."""
    if worker.model_runner.vllm_config.parallel_config.rank == 1:
        [recorder] = worker._recording.recorders

        def fail(*args: object) -> None:
            raise RuntimeError("injected")

        recorder.before_writes = fail


def test_the_mean_of_all_heads_and_a_recorder_that_fails_in_one_worker(pair: Pair, by_head: Outcome) -> None:
    with started(pair, "default", tensor_parallel_size=2) as running:
        two = outcome(pair, running)
        running.llm.collective_rpc(break_recorder)
        after = generate(running)
        status = running.status()
    assert_same(by_head, two)
    differences = []
    for ours, theirs in zip(by_head.batches, two.batches, strict=True):
        assert set(theirs.mass) == set(DEFAULT_LEVEL_REGIONS)
        for region in ("own", "current", "sink", "response"):
            mean = ours.mass[region].mean(axis=-1, keepdims=True)
            np.testing.assert_allclose(theirs.mass[region], mean, atol=1e-5, err_msg=region)
            differences.append(float(np.abs(theirs.mass[region] - mean).max()))
        mean = ours.attention_entropy.mean(axis=-1, keepdims=True)
        np.testing.assert_allclose(theirs.attention_entropy, mean, atol=1e-5)
    largest(differences)

    assert [t.token_ids for t in after] == [t.token_ids for t in by_head.texts]
    assert status is not None
    assert status.failure == "rank 1: RuntimeError: injected"
    assert status.num_failures == 1
    for request, text, ours in zip(requests(), after, by_head.batches, strict=True):
        theirs = batch(pair, request, text)  # all but what needs the other worker's heads
        np.testing.assert_array_equal(theirs.accepted_drafts, ours.accepted_drafts)
        np.testing.assert_allclose(theirs.hidden_feedback_norm, ours.hidden_feedback_norm, rtol=1e-5)
        assert theirs.mass == {}
        assert theirs.attention_entropy is None
        assert theirs.input_share_embed is None
        assert text.rounds.unmeasured["mass"] == "the heads of rank 1 are missing"


def test_probe_with_two_workers(pair: Pair, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The run of `driftscope probe`: cross-check, settings and the option that vLLM does not follow."""
    prompts = tmp_path / "prompts.jsonl"
    turns = [{"messages": [{"role": "user", "content": text}]} for text in ("Why is the sky blue?", "Name a river.")]
    prompts.write_text("\n".join(map(json.dumps, turns)))
    plan = make_plan(
        {
            "target": pair.target_path,
            "drafter": {"tiny": pair.drafter_path},
            "engine": "vllm",
            "prompts": str(prompts),
            "max_new_tokens": MAX_NEW_TOKENS,
            "depth": DEPTH,
            "level": "heads",
            "vllm": {**OPTIONS, "tensor_parallel_size": 2, "speculative_config": {"draft_tensor_parallel_size": 1}},
        },
        where="test",
    )
    measure(plan, tmp_path / "two.drift")
    assert capfd.readouterr().out == ""  # vLLM and its workers print a lot
    run = read_run(tmp_path / "two.drift")
    assert verify(run.path).is_sound
    settings = run.info.drafters[0].model_extra["engine_settings"]
    assert settings["tensor_parallel_size"] == settings["drafter_tensor_parallel_size"] == 2
    [code] = [f["code"] for f in run.info.drafters[0].findings if f["code"].startswith("engine_")]
    assert code == "engine_draft_tensor_parallel_size"
    heads = run.query("select mass_own, mass_user from depths").to_pylist()
    assert heads
    assert all(len(row["mass_own"]) == len(row["mass_user"]) == 4 for row in heads)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size = 2: .* use tensor parallelism alone"),
        ({"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "no worker has all keys"),
        ({"worker_cls": "some.Worker"}, "worker_cls"),
    ],
)
def test_what_is_not_recorded_is_said_before_an_engine_starts(
    pair: Pair, options: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=said) as raised, started(pair, "default", **options):
        pass
    assert raised.value.code == "not_recordable"
