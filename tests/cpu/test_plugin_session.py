"""The plug-in without vLLM: which requests are recorded, how a response ends, the run that its thread writes."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from driftscope.runs import DrafterInfo, Run, RunInfo, RunStatus, RunWriter, read_run
from driftscope.runs.verify import verify
from driftscope.vllm_plugin.config import ProductionConfig, read_config
from driftscope.vllm_plugin.records import response_end
from driftscope.vllm_plugin.sampling import OTHER, UNLABELLED, Sampler
from driftscope.vllm_plugin.session import Session
from probes.vllm.requests import NewRequest, RequestRounds, Sampled
from probes.vllm.rows import RowLayout
from probes.vllm.to_record import vocabulary

LAYOUT = RowLayout(level="counts", depth=3, num_aux=3, num_layers=1, num_heads=2)
NUM_PROMPT = 5


def request(number: int, label: str | None = None, *, num_tokens: int = 5) -> NewRequest:
    extra = {} if label is None else {"driftscope": label}
    return NewRequest(
        request_id=f"chatcmpl-{number}", prompt_token_ids=range(num_tokens), extra_args=extra, temperature=0.0
    )


def sampler(folder: Path, text: str) -> Sampler:
    path = folder / "driftscope.toml"
    path.write_text('out = "a.drift"\n' + text)
    return Sampler(read_config(path))


def test_rates(tmp_path: Path) -> None:
    chosen = sampler(tmp_path, "rate = 0.1\nlabel_rate = 0.5\n")
    unlabelled = [chosen.decide(request(i)) for i in range(4000)]
    labelled = [chosen.decide(request(i, "a")) for i in range(4000)]
    assert sum(s is not None for s in unlabelled) == pytest.approx(400, abs=80)
    assert sum(s is not None for s in labelled) == pytest.approx(2000, abs=160)
    assert {s.label for s in unlabelled if s} == {UNLABELLED}
    assert {s.label for s in labelled if s} == {"a"}
    again = sampler(tmp_path, "rate = 0.1\nlabel_rate = 0.5\n")
    assert [again.decide(request(i)) for i in range(100)] == unlabelled[:100]  # a request's fate hangs on its id
    assert chosen.num_seen == 8000


def test_labels(tmp_path: Path) -> None:
    listed = sampler(tmp_path, 'rate = 0\nlabels = ["a"]\n')
    assert listed.decide(request(0, "a")).label == "a"
    assert listed.decide(request(0, "b")) is None
    few = sampler(tmp_path, "max_labels = 2\n")
    assert [few.decide(request(0, label)).label for label in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
    assert few.decide(request(0, "a\n\x1b")).label == "a"
    assert len(sampler(tmp_path, "").decide(request(0, "x" * 500)).label) == 64


def test_caps(tmp_path: Path) -> None:
    chosen = sampler(tmp_path, "rate = 1\nmax_prompt_tokens = 4\n")
    assert chosen.decide(request(0)) is None
    assert chosen.num_too_long == 1
    assert chosen.decide(request(0, num_tokens=4)) is not None
    chosen.is_open = False
    assert chosen.decide(request(0, num_tokens=4)) is None


def test_regions_come_with_the_request(tmp_path: Path) -> None:
    chosen = sampler(tmp_path, "rate = 1\n")
    chosen.regions = lambda ids: (ids % 2).astype(np.uint8)
    assert chosen.decide(request(0)).region.tolist() == [0, 1, 0, 1, 0]


def answered(number: int, *, stops: tuple[int, ...] = (), max_tokens: int | None = None) -> RequestRounds:
    """Five prompt tokens, then 100 + number from the prompt, then two rounds: 101, 102 and 103, 104, 105; one more
    round is drafted and never verified."""
    emitted = np.array([[101, 102, -1, -1], [103, 104, 105, -1], [-1, -1, -1, -1]], np.int32)
    response = [100 + number, 101, 102, 103, 104, 105]
    rows = np.zeros(3, LAYOUT.dtype)
    rows["start"] = [NUM_PROMPT - 1, NUM_PROMPT + 1, NUM_PROMPT + 4]
    rows["draft_token"] = [[101, 7, 7], [103, 104, 7], [1, 2, 3]]
    return RequestRounds(
        request=NewRequest(
            request_id=f"r{number}",
            prompt_token_ids=[*range(NUM_PROMPT - 1), number],
            extra_args={},
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=frozenset(stops),
        ),
        sampled=Sampled(label="a"),
        end="finished",
        layout=LAYOUT,
        token_ids=np.array([*range(NUM_PROMPT - 1), number, *response], np.int32),
        is_verified=np.array([True, True, False]),
        num_drafts=np.full(3, 3, np.int32),
        accepted_drafts=np.array([1, 2, 0], np.int32),
        emitted=emitted,
        draft_us=np.ones(3, np.float32),
        verify_us=np.array([1, 1, np.nan], np.float32),
        rows=rows,
        unmeasured={},
    )


def session(folder: Path, status: SimpleNamespace, **config: object) -> Session:
    asked = ProductionConfig(out=folder / "a.drift", level="counts", flush_seconds=0.05, **config)
    info = RunInfo(
        engine="vllm",
        level="counts",
        depth=3,
        has_text=asked.text,
        drafters=[DrafterInfo(name="mine", aux_layer_ids=[1, 2, 3], num_layers=1, num_heads=2)],
        notes=["kept"],
    )
    return Session(
        config=asked,
        sampler=Sampler(asked),
        writer=RunWriter(asked.out, info),
        drafter="mine",
        in_draft_vocab=vocabulary(None, vocab_size=300, draft_vocab_size=200),
        norm_output=True,
        status=lambda: status,
    )


def recorder_status(**changes: object) -> SimpleNamespace:
    return SimpleNamespace(
        **{"failure": None, "contradiction": None}
        | dict.fromkeys(("num_failures", "num_dropped_steps", "num_lost", "num_requests", "num_written"), 0)
        | changes
    )


def wait_until_complete(path: Path) -> Run:
    for _ in range(600):
        if (run := read_run(path)).status is RunStatus.complete:
            return run
        time.sleep(0.1)
    raise AssertionError(run.info)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (NUM_PROMPT + 6, "unknown")),
        ({"stops": (104,)}, (NUM_PROMPT + 5, "stop")),
        ({"max_tokens": 4}, (NUM_PROMPT + 4, "length")),
        ({"stops": (105,), "max_tokens": 4}, (NUM_PROMPT + 4, "length")),
    ],
)
def test_how_a_response_ends(options: dict[str, object], expected: tuple[int, str]) -> None:
    assert response_end(answered(0, **options)) == expected


def test_a_server_that_ends_leaves_a_complete_run(tmp_path: Path) -> None:
    recorded = session(tmp_path, recorder_status(num_dropped_steps=3, num_lost=2, contradiction="request a: x"))
    for number in (0, 1, 0):  # a prompt comes again
        recorded.write(answered(number, stops=(104,)))
    recorded.close()
    run = read_run(tmp_path / "a.drift")
    assert run.status is RunStatus.complete
    assert verify(run.path).is_sound
    assert run.info.counts.num_prompts == run.info.counts.num_batches == 3
    rounds = run.query("select accepted_drafts, on_walk, num_trimmed_tokens from rounds order by round_id").to_pylist()
    assert [r["accepted_drafts"] for r in rounds if r["on_walk"]] == [1, 2] * 3
    assert {r["num_trimmed_tokens"] for r in rounds} == {1}  # 105, after the stop
    assert "3 steps were not recorded: the recorder was behind" in run.info.notes
    assert any(note.startswith("2 requests were not written: one of their steps") for note in run.info.notes)
    assert "the first that contradicts itself: request a: x" in run.info.notes
    assert run.info.notes[0] == "kept"
    assert run.info.notes[-1] == "recording ended: the server ended"


def test_a_failed_recorder_stands_in_the_run(tmp_path: Path) -> None:
    recorded = session(tmp_path, recorder_status(failure="ValueError: x", num_failures=1))
    recorded.close()
    assert any("THE RECORDER FAILED (1 times)" in note for note in read_run(tmp_path / "a.drift").info.notes)


def test_a_record_that_contradicts_itself_is_counted(tmp_path: Path) -> None:
    recorded = session(tmp_path, recorder_status())
    broken = answered(0)
    object.__setattr__(broken, "accepted_drafts", None)
    recorded.write(broken)
    recorded.write(answered(1))
    recorded.close()
    run = read_run(tmp_path / "a.drift")
    assert run.info.counts.num_batches == 1
    assert any(note.startswith("WRITING FAILED (1 times)") for note in run.info.notes)


@pytest.mark.parametrize(("cap", "value"), [("max_mb", 1e-6), ("max_hours", 1e-9)])
def test_a_cap_ends_the_recording(tmp_path: Path, cap: str, value: float) -> None:
    status = recorder_status(num_requests=1)
    recorded = session(tmp_path, status, **{cap: value})
    recorded.write(answered(0))
    status.num_written = 1  # until then the recorder has a request on its way
    run = wait_until_complete(tmp_path / "a.drift")
    assert not recorded.sampler.is_open
    assert run.info.counts.num_batches == 1
    assert run.info.notes[-1].startswith(f"recording ended: {cap} = ")
    recorded.close()
