"""Heads that several workers recorded: joined where they agree, unmeasured where not, handed over through files."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from driftscope.vllm_plugin import workers
from driftscope.vllm_plugin.config import ProductionConfig
from driftscope.vllm_plugin.sampling import Sampler
from driftscope.vllm_plugin.workers import SentHeads, TakenHeads, heads_folder
from probes.record import REGIONS
from probes.vllm.attach import refuse_unsupported
from probes.vllm.ranks import SPLIT_COLUMNS, joined, overall, split_columns
from probes.vllm.recorder import RecorderStatus
from probes.vllm.requests import NewRequest, RequestRounds, Sampled
from probes.vllm.rows import RowLayout

NUM_ROUNDS, K, NUM_HEADS, NUM_RANKS = 3, 2, 6, 3


def rounds_of(rank: int, *, level: str = "heads", num_ranks: int = NUM_RANKS) -> RequestRounds:
    """What this rank records of a request; masses tell rank, head and region apart."""
    num_heads = NUM_HEADS // num_ranks
    layout = RowLayout(
        level=level, depth=K, num_aux=3, num_layers=2, num_heads=num_heads, num_ranks=num_ranks, is_eager=True
    )
    rows = np.zeros(NUM_ROUNDS, layout.dtype)
    rows["start"] = [4, 6, 9]
    rows["draft_token"] = np.arange(NUM_ROUNDS * K).reshape(NUM_ROUNDS, K)
    rows["hidden_feedback_norm"] = 7.0
    heads = np.arange(rank * num_heads, (rank + 1) * num_heads)
    values = 10.0 * heads[:, None] + np.arange(len(REGIONS))
    rows["mass"] = values if level == "heads" else values.mean(axis=0)
    rows["attention_entropy"] = heads if level == "heads" else heads.mean()
    rows["input_share_embed"], rows["input_energy"] = 0.1 * rank, 1.0 + rank
    return RequestRounds(
        request=NewRequest(request_id="r/1", prompt_token_ids=[1] * 5, extra_args={}, temperature=0.0),
        sampled=Sampled(label="a"),
        end="finished",
        layout=layout,
        token_ids=np.arange(12, dtype=np.int32),
        is_verified=np.ones(NUM_ROUNDS, bool),
        num_drafts=np.full(NUM_ROUNDS, K, np.int32),
        accepted_drafts=np.ones(NUM_ROUNDS, np.int32),
        emitted=np.zeros((NUM_ROUNDS, K + 1), np.int32),
        draft_us=np.ones(NUM_ROUNDS, np.float32),
        verify_us=np.ones(NUM_ROUNDS, np.float32),
        rows=rows,
        unmeasured={},
    )


@pytest.mark.parametrize("level", ["heads", "default"])
def test_heads_are_put_together_in_the_order_of_ranks(level: str) -> None:
    first, *others = (rounds_of(rank, level=level) for rank in range(NUM_RANKS))
    whole = joined(first, [split_columns(other.rows) for other in others])
    single = rounds_of(0, level=level, num_ranks=1)
    assert whole.layout == single.layout
    for name in ("mass", "attention_entropy", "start", "draft_token", "hidden_feedback_norm"):
        np.testing.assert_allclose(whole.rows[name], single.rows[name], rtol=1e-6, err_msg=name)
    # shares weighted by the energy of each rank: (0 * 1 + 0.1 * 2 + 0.2 * 3) / 6
    np.testing.assert_allclose(whole.rows["input_share_embed"], 0.8 / 6, rtol=1e-6)
    assert not {"emitted", "draft_token", "num_sampled"} & set(split_columns(first.rows).dtype.names)


def test_heads_that_are_not_all_there_are_unmeasured() -> None:
    first, second, third = (rounds_of(rank) for rank in range(NUM_RANKS))
    other_drafts = third.rows.copy()
    other_drafts["draft_token"][1] += 1
    cases = {
        "the heads of ranks 1, 2 are missing": [None, third.rows[:2]],
        "the heads of rank 2 are missing": [second.rows],
        "rank 2 drafted other tokens than rank 0": [second.rows, other_drafts],
    }
    for reason, others in cases.items():
        part = joined(first, others)
        assert part.unmeasured == dict.fromkeys(SPLIT_COLUMNS, reason)
        assert part.rows is first.rows
    longer = np.concatenate([third.rows, third.rows])  # a request that was open: one rank was a step ahead
    assert joined(first, [second.rows, longer]).unmeasured == {}


def test_nothing_is_joined_where_nothing_is_split() -> None:
    split = rounds_of(0)
    counts = replace(split, layout=replace(split.layout, level="counts"))
    for whole in (rounds_of(0, num_ranks=1), counts):
        assert joined(whole, []) is whole


def test_every_ranks_failure_is_told() -> None:
    fine = RecorderStatus(
        level="heads",
        runner="V1",
        attention_backend="x",
        num_requests=3,
        num_written=3,
        num_steps=9,
        num_dropped_steps=0,
        num_lost=0,
        num_failures=0,
        failure=None,
    )
    assert overall([fine]) is fine
    assert overall([fine, fine]) == fine
    bad = replace(fine, failure="RuntimeError: x", num_failures=2, num_dropped_steps=4)
    told = overall([fine, bad, bad])
    assert told.failure == "rank 1: RuntimeError: x; rank 2: RuntimeError: x"
    assert (told.num_failures, told.num_dropped_steps, told.num_written) == (4, 4, 3)


def sent_and_taken(folder: Path) -> tuple[SentHeads, TakenHeads]:
    config = ProductionConfig(out=folder / "a.drift")
    place = heads_folder(
        config.out, SimpleNamespace(instance_id="x1", parallel_config=SimpleNamespace(data_parallel_rank=2))
    )
    assert place == folder / ".a-x1-dp2-heads"
    return SentHeads(folder=place, rank=1, sampler=Sampler(config)), TakenHeads(folder=place, num_ranks=2)


def test_heads_are_handed_over(tmp_path: Path) -> None:
    sent, taken = sent_and_taken(tmp_path)
    taken.open()
    assert sent.folder.stat().st_mode & 0o777 == 0o700
    second = rounds_of(1)
    later = threading.Timer(0.2, sent.write, [second])  # waited for
    later.start()
    [rows] = taken.take("r/1")
    later.join()
    np.testing.assert_array_equal(rows, split_columns(second.rows))
    assert list(sent.folder.iterdir()) == []
    taken.close()
    assert sent.sampler.is_open
    sent.write(second)  # rank 0 writes no more
    assert not sent.sampler.is_open
    assert not sent.folder.exists()
    sent.fail("nobody reads this")


def test_a_rank_that_failed_or_is_silent_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, taken = sent_and_taken(tmp_path)
    taken.open()
    sent.fail("RuntimeError: x")
    assert taken.failures() == {1: "RuntimeError: x"}
    assert taken.take("r/1") == [None]  # at once, or the test would take PATIENCE_SECONDS
    monkeypatch.setattr(workers, "PATIENCE_SECONDS", 0.0)
    silent = replace(taken, num_ranks=3)
    assert silent.take("r/1") == [None, None]
    sent.write(rounds_of(1))
    monkeypatch.setattr(workers, "STALE_SECONDS", -1.0)
    silent.sweep()
    assert [file.name for file in sent.folder.iterdir()] == ["1-failure.txt"]


def test_what_is_not_recorded_is_refused() -> None:
    def config(method: str | None = "eagle3", **parallel: int) -> SimpleNamespace:
        speculative = None if method is None else SimpleNamespace(method=method)
        sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, **parallel}
        return SimpleNamespace(speculative_config=speculative, parallel_config=SimpleNamespace(**sizes))

    refuse_unsupported(config())
    for refused, reason in (
        (config(pipeline_parallel_size=2), "use tensor parallelism alone"),
        (config(decode_context_parallel_size=2), "no worker has all keys"),
        (config(method="mtp"), "only eagle3"),
        (config(method=None), "without speculation"),
    ):
        with pytest.raises(NotImplementedError, match=reason):
            refuse_unsupported(refused)
