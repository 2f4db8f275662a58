"""Writing a run: parts, refusals, how it ends, and going on with one that was stopped."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from driftscope.runs import BatchKey, RunStatus, RunWriter, read_run, verify
from probes.errors import RunError
from probes.record import RoundBatch
from tests.synthetic_run import make_batch, make_info, make_prompt, make_records, write_run

STARTS = 29  # of a synthetic response of 30 tokens: P-1 .. L-3


STARTS = 29  # of a synthetic response of 30 tokens: P-1 .. L-3


def test_parts_are_flushed_by_rounds_and_a_batch_is_never_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftscope.runs.writer.FLUSH_ROUNDS", 50)
    monkeypatch.setattr("driftscope.runs.writer.FLUSH_COST_RATIO", 0)
    path = write_run(tmp_path / "a.drift")
    sizes = [pq.read_metadata(file).num_rows for file in sorted((path / "rounds").iterdir())]
    assert len(sizes) == 12
    assert all(size == 2 * STARTS for size in sizes)
    verification = verify(path)
    assert verification.is_sound
    assert next(c for c in verification.checks if c.name == "batches_whole").num_checked == 24
    ids = read_run(path).rounds(["round_id"])["round_id"].to_pylist()
    assert ids == list(range(24 * STARTS))


def test_existing_run_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    with pytest.raises(RunError) as caught:
        RunWriter(path, make_info())
    assert caught.value.code == "run_exists"
    assert str(path) in caught.value.where
    with RunWriter(path, make_info(), overwrite=True):
        pass
    assert read_run(path).rounds().num_rows == 0

    (tmp_path / "precious.drift").mkdir()
    (tmp_path / "precious.drift" / "thesis.txt").write_text("all of it")
    with pytest.raises(RunError) as caught:
        RunWriter(tmp_path / "precious.drift", make_info(), overwrite=True)
    assert caught.value.code == "not_a_run"
    assert (tmp_path / "precious.drift" / "thesis.txt").exists()
    with pytest.raises(RunError) as caught:
        RunWriter(tmp_path / "no_suffix", make_info())
    assert caught.value.code == "bad_run_name"


def test_rounds_need_their_prompt_and_come_once(tmp_path: Path) -> None:
    prompt = make_prompt()
    with RunWriter(tmp_path / "a.drift", make_info()) as writer:
        with pytest.raises(RunError) as caught:
            writer.write_batch(make_batch(prompt))
        assert caught.value.code == "unknown_prompt"
        writer.write_batch(prompt)
        writer.write_batch(prompt)  # the same again changes nothing
        writer.write_batch(make_batch(prompt))
        with pytest.raises(RunError) as caught:
            writer.write_batch(make_batch(prompt))
        assert caught.value.code == "batch_exists"
        with pytest.raises(RunError) as caught:
            writer.write_batch(make_prompt(seed=1))
        assert caught.value.code == "prompt_changed"
    assert read_run(tmp_path / "a.drift").prompts().num_rows == 1
    assert verify(tmp_path / "a.drift").is_sound


def test_a_prompt_without_rounds_may_change(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a.drift", make_info()) as writer:
        for record in (make_prompt(), make_prompt("p1"), make_prompt(seed=1)):
            writer.write_batch(record)
    prompts = read_run(tmp_path / "a.drift").prompts()
    assert sorted(prompts["prompt_id"].to_pylist()) == ["p0", "p1"]
    assert make_prompt(seed=1).token_ids.tolist() in prompts["token_ids"].to_pylist()


def test_resume_goes_on_without_doubles(tmp_path: Path) -> None:
    path = tmp_path / "a.drift"
    records = list(make_records())
    with pytest.raises(KeyboardInterrupt):
        write_run(path, records[:10], error=KeyboardInterrupt())
    assert read_run(path).status is RunStatus.incomplete

    writer = RunWriter.resume(path, plan=make_info().plan)
    done = {BatchKey("eagle3", "default", "default", 0, "p0"), BatchKey("eagle3.1", "default", "default", 0, "p2")}
    assert done <= writer.complete_batches
    assert len(writer.complete_batches) == 6
    with writer:
        for record in records:
            if isinstance(record, RoundBatch) and _key(record) in writer.complete_batches:
                continue
            writer.write_batch(record)
    verification = verify(path)
    assert verification.is_sound
    assert verification.status is RunStatus.complete
    in_one_go = read_run(write_run(tmp_path / "b.drift", iter(records)))
    resumed = read_run(path)
    assert resumed.info.counts.num_batches == in_one_go.info.counts.num_batches == 24
    assert resumed.depths().equals(in_one_go.depths())
    assert resumed.prompts().equals(in_one_go.prompts())


def _key(batch: RoundBatch) -> BatchKey:
    return BatchKey(batch.drafter, batch.system_prompt, batch.template, batch.context_tokens, batch.prompt_id)


def test_resume_with_another_plan_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    with pytest.raises(RunError) as caught:
        RunWriter.resume(path, plan={"target": "synthetic", "depth": 5})
    assert caught.value.code == "plan_differs"
    assert "depth" in caught.value.message
    assert read_run(path).status is RunStatus.complete


def test_failed_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        write_run(tmp_path / "a.drift", make_records(num_prompts=1), error=RuntimeError("out of memory"))
    run = read_run(tmp_path / "a.drift")
    assert (run.status, run.info.error) == (RunStatus.failed, "out of memory")
    assert run.rounds().num_rows == 4 * STARTS


def test_zero_rounds(tmp_path: Path) -> None:
    """A response of one token has no start: no rows, no error."""
    prompt = make_prompt(num_response_tokens=1)
    path = write_run(tmp_path / "a.drift", iter([prompt, make_batch(prompt)]))
    assert read_run(path).rounds().num_rows == 0
    assert read_run(path).prompts().num_rows == 1
    assert verify(path).is_sound
