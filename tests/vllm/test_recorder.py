"""The recorder inside a running vLLM engine (CPU, V1 runner, float32) against `replay`, on tiny pairs.

Prompts share a prefix that comes from the prefix cache, so that what the drafter's keys hold of a cached prefix is compared
too. The demo pair's run is in test_probe_vllm.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)


from probes.attention.slots import SLOT_REGIONS, slot_regions, text_regions
from probes.chain.step import prefill, step
from probes.record import REGIONS, TEXT_REGIONS, RejectionReason, RoundBatch
from probes.vllm.engine import Engine, Text, TextRequest
from probes.vllm.to_record import DEFAULT_LEVEL_REGIONS
from tests.recorded_pair import (
    DEPTH,
    EXACT,
    NORMS,
    Pair,
    answers_with_failures,
    batch,
    random_prompts,
    recorded_engine,
    text_of,
    text_requests,
    tiny_pair,
    walked,
)

MAX_NEW_TOKENS = 40
started = partial(recorded_engine, enforce_eager=True, max_model_len=256, enable_prefix_caching=True, block_size=32)
DRAFTERS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3.1": {"has_fc_norm": True, "norm_output": True},
    "two layers": {"num_layers": 2, "norm_before_residual": True},
}


@pytest.fixture(scope="module", params=DRAFTERS.values(), ids=DRAFTERS.keys())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return tiny_pair(tmp_path_factory.mktemp("pair"), **request.param)


def requests() -> list[TextRequest]:
    """Short and long prompts; the last two share their first 70 tokens. Regions change every few tokens."""
    ids = random_prompts((2, 9, 33, 65, 120))
    ids.append(ids[-1][:70] + ids[1])
    return text_requests(ids)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    texts: list[Text]
    again: list[Text]  # the same requests once more: the prefix cache is full of them
    batches: list[RoundBatch]
    again_batches: list[RoundBatch]
    num_drafts: int
    accepted_by_depth: list[int]
    unmeasured: dict[str, str]


@pytest.fixture(scope="module")
def recorded(pair: Pair) -> Recorded:
    with started(pair, "heads") as running:
        texts = running.generate(requests(), max_tokens=MAX_NEW_TOKENS)
        counted = running.counters()
        again = running.generate(requests(), max_tokens=MAX_NEW_TOKENS)
        status = running.status()
    assert status.failure is None
    assert status.num_written == status.num_requests == 2 * len(texts)
    assert status.num_dropped_steps == 0
    return Recorded(
        texts=texts,
        again=again,
        batches=[batch(pair, r, t) for r, t in zip(requests(), texts, strict=True)],
        again_batches=[batch(pair, r, t) for r, t in zip(requests(), again, strict=True)],
        num_drafts=counted.num_drafts,
        accepted_by_depth=counted.accepted_by_depth,
        unmeasured=dict(status.unmeasured),
    )


def test_an_engine_in_a_process_of_its_own_is_recorded_alike(pair: Pair, recorded: Recorded) -> None:
    with started(pair, "heads", in_process=False) as running:
        texts = running.generate(requests(), max_tokens=MAX_NEW_TOKENS)
        assert running.counters().num_drafts == recorded.num_drafts
        assert running.status().num_written == len(texts)
    for request, text, here in zip(requests(), texts, recorded.batches, strict=True):
        there = batch(pair, request, text)
        for name in EXACT:
            np.testing.assert_array_equal(getattr(there, name), getattr(here, name), err_msg=name)


SHARES = ("fusion_share", "fusion_energy", "input_share_embed", "attention_entropy")


def test_every_column_is_replays(pair: Pair, recorded: Recorded) -> None:
    num_rounds = num_accepted = 0
    for request, theirs, again in zip(requests(), recorded.batches, recorded.again_batches, strict=True):
        ours = walked(pair, request, text_of(pair, request, MAX_NEW_TOKENS))
        for measured in (theirs, again):
            walk = measured.on_walk
            assert measured.num_trimmed_tokens == ours.num_trimmed_tokens
            for name in EXACT:
                np.testing.assert_array_equal(getattr(measured, name)[walk], getattr(ours, name), err_msg=name)
            for name in NORMS:
                actual, expected = getattr(measured, name)[walk], getattr(ours, name)
                is_seen = ~np.isnan(actual)
                assert is_seen.any(), name
                np.testing.assert_allclose(actual[is_seen], expected[is_seen], rtol=1e-3, err_msg=name)
            for name in SHARES:
                np.testing.assert_allclose(
                    getattr(measured, name)[walk], getattr(ours, name), atol=1e-3, rtol=0, err_msg=name
                )
            for region in REGIONS:
                np.testing.assert_allclose(
                    measured.mass[region][walk], ours.mass[region], atol=1e-3, rtol=0, err_msg=region
                )
        num_rounds += int(theirs.on_walk.sum())
        num_accepted += int(theirs.accepted_drafts.sum())
    print(f"{num_rounds} rounds, {num_accepted} accepted drafts equal")
    assert num_accepted >= 20


def test_counts_are_vllms(recorded: Recorded) -> None:
    for text, measured in zip(recorded.texts, recorded.batches, strict=True):
        assert text.per_step_accepted == measured.accepted_drafts[measured.on_walk].tolist()
    assert recorded.num_drafts == sum(int(b.on_walk.sum()) for b in recorded.batches)
    accepted = np.concatenate([b.accepted_drafts[b.on_walk] for b in recorded.batches])
    assert recorded.accepted_by_depth == [int((accepted > k).sum()) for k in range(DEPTH)]


def test_last_drafts_are_unverified_and_in_no_rate(recorded: Recorded) -> None:
    for measured in recorded.batches:
        is_last = ~measured.on_walk
        assert is_last.sum() >= 1
        assert (measured.rejection_reason[is_last] == RejectionReason.unverified).all()
        assert (measured.accepted[is_last] == -1).all()
        assert (measured.accepted_drafts[is_last] == 0).all()
        assert not (measured.rejection_reason[measured.on_walk] == RejectionReason.unverified).any()


def test_all_is_measured_in_eager_mode(recorded: Recorded) -> None:
    assert recorded.unmeasured == {}
    assert [t.token_ids for t in recorded.texts] == [t.token_ids for t in recorded.again]


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return tiny_pair(tmp_path_factory.mktemp("pair"))


def generate(running: Engine) -> list[Text]:
    return running.generate(requests(), max_tokens=MAX_NEW_TOKENS)


@pytest.fixture(scope="module")
def without(eagle3: Pair) -> list[Text]:
    """What the engine answers where nothing records."""
    with started(eagle3, None) as running:
        return generate(running)


def test_tokens_are_the_same_without_a_recorder_and_at_every_level(eagle3: Pair, without: list[Text]) -> None:
    assert all(t.rounds is None for t in without)
    for level in ("counts", "default"):
        with started(eagle3, level) as running:
            texts = generate(running)
        assert [t.token_ids for t in texts] == [t.token_ids for t in without]
        assert [t.per_step_accepted for t in texts] == [t.per_step_accepted for t in without]
        for request, text in zip(requests(), texts, strict=True):
            measured, ours = (
                batch(eagle3, request, text),
                walked(eagle3, request, text_of(eagle3, request, MAX_NEW_TOKENS)),
            )
            walk = measured.on_walk
            np.testing.assert_array_equal(measured.draft_token[walk], ours.draft_token)
            if level == "counts":
                assert measured.mass == {}
                assert measured.hidden_in_norm is None
                continue
            assert set(measured.mass) == set(DEFAULT_LEVEL_REGIONS)
            for region in ("own", "current", "sink", "response"):
                mean = ours.mass[region].mean(axis=-1, keepdims=True)
                np.testing.assert_allclose(measured.mass[region][walk], mean, atol=1e-3, rtol=0, err_msg=region)
            np.testing.assert_allclose(sum(measured.mass.values()), 1.0, atol=1e-3)


def test_preempted_requests_lose_their_drafts_not_their_record(eagle3: Pair) -> None:
    """Too few key blocks for all requests at once: some are put back and computed again."""
    with started(eagle3, "heads", num_gpu_blocks_override=9) as running:
        texts = generate(running)
        num_preempted = next(m.value for m in running.llm.get_metrics() if m.name == "vllm:num_preemptions")
    assert num_preempted > 0
    num_lost = 0
    for request, text in zip(requests(), texts, strict=True):
        measured = batch(eagle3, request, text)
        walk = measured.on_walk
        assert text.per_step_accepted == measured.accepted_drafts[walk].tolist()
        num_lost += int((~walk & (measured.start < len(request.token_ids) + len(text.token_ids) - 2)).sum())
        ours = walked(eagle3, request, text_of(eagle3, request, MAX_NEW_TOKENS))
        np.testing.assert_array_equal(text.rounds.token_ids[: len(request.token_ids)], request.token_ids)
        if num_lost == 0:
            np.testing.assert_array_equal(measured.accepted_drafts[walk], ours.accepted_drafts)
    assert num_lost > 0


def test_a_chunk_of_the_prompt_ends_with_another_pair_in_v1(eagle3: Pair) -> None:
    """What this engine does: the slot that ends a chunk pairs its state with the *last* token of the prompt instead of the
    next one (`prepare_next_token_ids_padded`), so the drafter's key there is another. The recorder shows it as it is.
    """
    chunk, prompt = 48, requests()[4]
    region = np.full(len(prompt.token_ids), TEXT_REGIONS.index("user"), np.uint8)
    ends = [chunk - 1, 2 * chunk - 1]
    region[ends] = TEXT_REGIONS.index("tools")  # so that what is looked at is told apart
    prompt = TextRequest(key="chunked", token_ids=prompt.token_ids, region=region)
    with started(eagle3, "heads", max_num_batched_tokens=chunk, enable_prefix_caching=False) as running:
        [text] = running.generate([prompt], max_tokens=MAX_NEW_TOKENS)
    measured = batch(eagle3, prompt, text)

    trace = text_of(eagle3, prompt, MAX_NEW_TOKENS)
    num_prompt = trace.num_prompt_tokens
    true, shifted = trace.token_ids, trace.token_ids.clone()
    shifted[[end + 1 for end in ends]] = true[num_prompt - 1]
    whole = text_regions(region, len(true))
    one_hot = slot_regions(whole, sink_slots=1, device=true.device)
    start = num_prompt - 1
    fused = eagle3.drafter.true_state(eagle3.drafter.features(trace.aux, slice(start, start + 1)))
    column = SLOT_REGIONS.index("tools")
    seen = {}
    for name, tokens in (("true", true), ("shifted", shifted)):
        cache = prefill(eagle3.drafter, tokens, trace.aux)
        output = step(eagle3.drafter, cache, one_hot, true[start + 1 : start + 2], fused, start=start)
        seen[name] = output.masses[0].region[0, :, column].numpy()
    actual = measured.mass["tools"][0, 0, 0]
    np.testing.assert_allclose(actual, seen["shifted"], rtol=1e-3)  # tiny masses, of very different sizes
    assert np.abs(actual / seen["true"] - 1).max() > 0.5


@pytest.mark.parametrize("where", ["before_writes", "send_step", "close"])
def test_a_failing_recorder_fails_no_request(
    eagle3: Pair, without: list[Text], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the engine's thread or in the recorder's own: requests are answered, the failure is told."""

    def fail(*args: object) -> None:
        raise RuntimeError("injected")

    if where == "close":
        monkeypatch.setattr("probes.vllm.requests.OpenRequest.close", fail)
    else:
        monkeypatch.setattr(f"probes.vllm.recorder.Recorder.{where}", fail)
    with started(eagle3, "default") as running:
        texts = generate(running)
        status = running.status()
    assert [t.token_ids for t in texts] == [t.token_ids for t in without]
    assert status.failure == "RuntimeError: injected"
    assert status.num_failures >= 1
    if where != "close":
        assert all(t.rounds is None or not len(t.rounds.rows) for t in texts)


def test_a_failure_in_the_recorders_thread_finds_the_engine_anywhere(
    eagle3: Pair, without: list[Text], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, num_tokens = requests()[:3], 3
    with started(eagle3, "default") as running:
        answers = list(answers_with_failures(running, prompts, num_tokens, monkeypatch))
    assert len(answers) > 2 * DEPTH
    assert answers == [[text.token_ids[:num_tokens] for text in without[: len(prompts)]]] * len(answers)
