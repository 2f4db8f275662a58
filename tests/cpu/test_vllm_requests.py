"""From the rows of a request's steps to its rounds, without vLLM: chunks, verification, preemption, the end of the text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.record import REGIONS, ConditionKey, RejectionReason, RoundBatch
from probes.vllm.boundaries import Boundaries, Queries
from probes.vllm.masses import region_codes, write_masses
from probes.vllm.recorder import Recorder, RecorderConfig
from probes.vllm.requests import NewRequest, OpenRequest, RequestRounds, Sampled
from probes.vllm.rows import RowLayout, Rows, as_records
from probes.vllm.to_record import round_batch

Step = tuple[np.void, int, tuple[float, float]]
K = 3
LAYOUT = RowLayout(level="counts", depth=K, num_aux=3, num_layers=1, num_heads=2)
PROMPT = [10, 11, 12, 13]
CONDITION = ConditionKey("d", "s", "t", 0)


def step(emitted: list[int], *, start: int = -1, drafts: tuple[int, ...] = (1, 2, 3), num_drafts: int = 0) -> Step:
    """One engine step of one request: its row, the drafts verified, its times."""
    rows = Rows(LAYOUT, 1, torch.device("cpu"))
    rows["num_sampled"][0] = len(emitted)
    rows["emitted"][0, : len(emitted)] = torch.tensor(emitted, dtype=torch.int32)
    rows["start"][0] = start
    rows["draft_token"][0] = torch.tensor(drafts, dtype=torch.int32)
    return as_records(rows.words.numpy(), LAYOUT)[0], num_drafts, (100.0, 40.0)


def batch(steps: list[Step], num_tokens: int) -> RoundBatch:
    request = NewRequest(request_id="r", prompt_token_ids=PROMPT, extra_args={"driftscope": "a"}, temperature=0.0)
    opened = OpenRequest(request=request, sampled=Sampled(label=request.label), layout=LAYOUT)
    for row, num_drafts, laps_us in steps:
        opened.add(row, num_drafts, laps_us)
    rounds = opened.close("finished", {})
    in_vocab = np.ones(100, bool)
    in_vocab[77] = False
    return round_batch(rounds, CONDITION, "p", num_tokens=num_tokens, in_draft_vocab=in_vocab, norm_output=False)


def test_a_round_is_completed_by_the_next_step_of_its_request() -> None:
    steps = [
        step([]),  # a chunk of the prompt
        step([20], start=3),
        step([1, 2, 77], start=6, num_drafts=3),  # two accepted, 77 instead of the third draft
        step([1, 2, 3, 30], start=10, num_drafts=3),  # all accepted
        step([40], start=11, num_drafts=2),  # two drafts were scheduled, none accepted
        step([41], start=12, num_drafts=3),
    ]
    found = batch(steps, num_tokens=len(PROMPT) + 10)
    assert found.start.tolist() == [3, 6, 10, 11, 12]
    assert found.accepted_drafts.tolist() == [2, 3, 0, 0, 0]
    assert found.num_drafts.tolist() == [3, 3, 2, 3, 3]
    assert found.on_walk.tolist() == [True, True, True, True, False]
    assert found.num_trimmed_tokens == 0
    assert 1 + int((found.accepted_drafts[found.on_walk] + 1).sum()) == 10
    reason = RejectionReason
    assert found.rejection_reason is not None
    assert found.rejection_reason[0].tolist() == [reason.none, reason.none, reason.out_of_draft_vocab]
    assert found.rejection_reason[2].tolist() == [reason.disagreement, reason.not_reached, reason.limit]
    assert found.rejection_reason[4].tolist() == [reason.unverified] * 3
    assert found.target_token[0].tolist() == [1, 2, 77]
    assert found.target_token[2].tolist() == [40, -1, -1]
    assert found.accepted.tolist()[:3] == [[1, 1, 0], [1, 1, 1], [0, -1, -1]]
    assert np.isnan(found.verify_us[-1])


def test_what_was_emitted_past_the_stop_is_trimmed_and_later_rounds_are_unverified() -> None:
    steps = [step([20], start=3), step([1, 2, 3, 30], start=7, num_drafts=3), step([5], start=8, num_drafts=3)]
    found = batch(steps, num_tokens=len(PROMPT) + 3)  # the stop was the second draft
    assert found.on_walk.tolist() == [True, False, False]
    assert found.accepted_drafts.tolist() == [3, 0, 0]
    assert found.num_trimmed_tokens == 2


def test_a_preempted_request_loses_its_drafts() -> None:
    steps = [
        step([20], start=3),
        step([]),  # put back, computed again in two chunks
        step([21], start=4),
        step([1, 50], start=6, num_drafts=3),
    ]
    found = batch(steps, num_tokens=len(PROMPT) + 4)
    assert found.start.tolist() == [3, 4, 6]
    assert found.on_walk.tolist() == [False, True, False]
    assert found.accepted_drafts.tolist() == [0, 1, 0]


@given(
    st.lists(st.tuples(st.integers(0, K + 1), st.booleans(), st.integers(0, K)), max_size=12),
)
@settings(max_examples=300, deadline=None)
def test_rounds_are_those_of_a_walk_from_step_to_step(shape: list[tuple[int, bool, int]]) -> None:
    """Steps as (tokens emitted, whether it drafted, drafts verified)."""
    opened = OpenRequest(
        request=NewRequest(request_id="r", prompt_token_ids=PROMPT, extra_args={}, temperature=0.0),
        sampled=Sampled(),
        layout=LAYOUT,
    )
    num_tokens, starts, completed = len(PROMPT), [], []  # completed: of each round (drafts verified, emitted, its time)
    emitted_all: list[int] = []
    for index, (num_emitted, has_drafted, num_drafts) in enumerate(shape):
        emitted = list(range(100 * index, 100 * index + num_emitted))
        num_tokens += num_emitted
        emitted_all += emitted
        start = num_tokens - 2 if has_drafted else -1
        row, _, _ = step(emitted, start=start)
        opened.add(row, num_drafts, (float(index), 0.5))
        if not emitted:
            continue
        if num_drafts and starts and completed[-1] is None:
            completed[-1] = (num_drafts, emitted, float(index))
        if has_drafted:
            starts.append(start)
            completed.append(None)
    rounds = opened.close("finished", {})
    assert rounds.token_ids.tolist() == PROMPT + emitted_all
    assert rounds.rows["start"].tolist() == starts
    assert rounds.draft_us.tolist() == [0.5] * len(starts)
    assert rounds.is_verified.tolist() == [c is not None for c in completed]
    for i, found in enumerate(completed):
        num_drafts, emitted, verify_us = found or (K, [], np.nan)
        assert rounds.num_drafts[i] == num_drafts
        assert rounds.accepted_drafts[i] == max(len(emitted) - 1, 0)
        assert rounds.emitted[i].tolist() == emitted + [-1] * (K + 1 - len(emitted))
        np.testing.assert_equal(rounds.verify_us[i], np.float32(verify_us))


def test_positions_that_do_not_follow_from_the_text_are_an_error() -> None:
    with pytest.raises(ValueError, match="drafts from slot 9, after 5 tokens it should be 3"):
        batch([step([20], start=9)], num_tokens=5)
    with pytest.raises(ValueError, match="5 recorded"):
        batch([step([20], start=3)], num_tokens=7)


def test_masses_over_paged_keys_are_plain_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    num_heads, num_kv_heads, head_dim, block_slots, window = 4, 2, 8, 4, 9
    position, start, num_prompt = 14, 12, 7
    keys = torch.randn(6, block_slots, num_kv_heads, head_dim, generator=generator)
    table = torch.tensor([[5, 0, 3, 2]], dtype=torch.int32)
    q = torch.randn(1, num_heads, head_dim, generator=generator)
    region = torch.tensor([[0, 1, 1, 4, 4, 3, 3] + [7] * 13], dtype=torch.uint8)
    boundaries = Boundaries(
        slot=torch.zeros(1, dtype=torch.int32),
        num_prompt_tokens=torch.tensor([num_prompt], dtype=torch.int32),
        region=region,
        num_sink_slots=1,
    )
    names = [REGIONS[c] for c in region_codes(boundaries, 0, position, start)]
    assert names == ["sink", "system", "system", "user", "user", "context", "context"] + ["response"] * 5 + [
        "current",
        "own",
        "own",
    ]
    mass = torch.zeros(1, 3, 1, num_heads, len(REGIONS))
    entropy = torch.zeros(1, 3, 1, num_heads)
    write_masses(
        Queries(
            q=q,
            rows=None,
            positions=torch.tensor([position]),
            num_rows=1,
            keys=keys,
            block_table=table,
            scale=0.5,
            window=window,
        ),
        boundaries,
        start=torch.tensor([start], dtype=torch.int32),
        step=torch.tensor(2),
        layer=0,
        mass=mass,
        entropy=entropy,
        scratch=None,
    )
    flat = keys[table[0].long()].flatten(0, 1)[: position + 1].double()
    for head in range(num_heads):
        logits = 0.5 * (flat[:, head // 2] @ q[0, head].double())
        logits[: position + 1 - window] = -torch.inf
        p = logits.softmax(dim=0)
        for index, name in enumerate(REGIONS):
            expected = float(sum(p[i] for i, n in enumerate(names) if n == name))
            assert float(mass[0, 2, 0, head, index]) == pytest.approx(expected, abs=1e-6)
        assert float(entropy[0, 2, 0, head]) == pytest.approx(float(torch.special.entr(p).sum()), abs=1e-5)


def recorder_of(written: list[RequestRounds]) -> Recorder:
    recorder = Recorder(RecorderConfig(level="counts", write=written.append))
    recorder.prepare(LAYOUT, num_rows=2, max_model_len=64, device=torch.device("cpu"))
    return recorder


def engine_step(recorder: Recorder, request: str, emitted: list[int], start: int) -> None:
    recorder.begin_step([request], {})
    recorder.transport.begin()
    recorder.before_writes([request])
    recorder.rows["num_sampled"][0] = len(emitted)
    recorder.rows["emitted"][0, : len(emitted)] = torch.tensor(emitted, dtype=torch.int32)
    recorder.rows["start"][0] = start
    recorder.keep_rows()
    recorder.send_step()


def arrive(recorder: Recorder, request: str) -> None:
    new = NewRequest(request_id=request, prompt_token_ids=PROMPT, extra_args={}, temperature=0.0)
    recorder.requests_changed([new], [], [])


def test_a_dropped_step_loses_its_requests_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[RequestRounds] = []
    recorder = recorder_of(written)
    for request, is_dropped in (("a", True), ("b", False)):
        arrive(recorder, request)
        engine_step(recorder, request, [20], start=3)
        recorder.transport.flush()
        with monkeypatch.context() as patch:
            if is_dropped:  # as for a step that was overwritten before it was copied
                patch.setattr(recorder.transport, "_copies", lambda steps: [None] * len(steps))
            engine_step(recorder, request, [21, 22], start=5)
            recorder.transport.flush()
        engine_step(recorder, request, [23], start=6)
        recorder.requests_changed([], [request], [])
    recorder.transport.flush()
    assert recorder.failure is None
    assert (recorder.num_requests, recorder.num_written, recorder.num_lost) == (2, 1, 1)
    [rounds] = written
    assert rounds.request.request_id == "b"
    assert rounds.rows["start"].tolist() == [3, 5, 6]
    recorder.transport.stop()


def test_a_request_whose_record_contradicts_itself_loses_no_other() -> None:
    """Its second step's tokens were dropped by the engine."""
    written: list[RequestRounds] = []
    recorder = recorder_of(written)
    for request, after_third in (("a", 4), ("b", 6), ("c", 9)):
        arrive(recorder, request)
        engine_step(recorder, request, [20], start=3)
        engine_step(recorder, request, [21, 22], start=5)
        engine_step(recorder, request, [23], start=after_third)
        recorder.requests_changed([], [request], [])
    recorder.transport.flush()
    assert recorder.failure is None
    assert (recorder.num_requests, recorder.num_written, recorder.num_lost) == (3, 1, 2)
    assert recorder.contradiction == "request 'a': the engine drafts from slot 4, after 8 tokens it should be 6"
    assert [rounds.request.request_id for rounds in written] == ["b"]
    recorder.transport.stop()
