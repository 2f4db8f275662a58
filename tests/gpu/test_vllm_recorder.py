"""The recorder in a vLLM engine on a GPU: V2 runner, torch.compile and CUDA graphs on.

float32 (vLLM then takes its Triton attention) is compared with `replay`; bfloat16 (FlashAttention 3) with the same engine
without a recorder, in PIECEWISE graphs and in eager mode. Run with `-s`: what bfloat16 allows is printed. Tiny pairs, built
on the spot; each engine takes half a minute to start.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm.v1", reason="needs vLLM and a GPU", exc_type=ImportError)

from probes.record import RoundBatch
from probes.vllm.attach import wrap
from probes.vllm.engine import Counters, Engine, Text, TextRequest
from probes.vllm.recorder import Recorder, RecorderStatus
from tests.recorded_pair import (
    DEPTH,
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

pytestmark = pytest.mark.gpu

MAX_NEW_TOKENS = 64
PROMPT_TOKENS = (2, 9, 33, 65, 120, 180)
FLAGS: dict[str, dict[str, Any]] = {"eagle3": {}, "eagle3.1": {"has_fc_norm": True, "norm_output": True}}
MODES: dict[str, dict[str, Any]] = {
    "full": {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}},
    "prompts too": {"compilation_config": {"cudagraph_mode": "FULL"}},
    "piecewise": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
    "eager": {"enforce_eager": True},
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    texts: list[Text]
    batches: list[RoundBatch]
    counters: Counters
    status: RecorderStatus | None


@pytest.fixture(scope="module", autouse=True)
def _no_sync_in_the_recorder() -> Iterator[None]:
    """All that the recorder does on the engine's thread runs with torch's sync debugging on "error"."""
    guarded = Recorder.guarded

    def strict(self: Recorder, work: Any, *args: Any) -> None:
        # a capturing stream refuses a synchronisation anyway
        if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing() or not self.is_ready:
            guarded(self, work, *args)
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            guarded(self, work, *args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    Recorder.guarded = strict
    yield
    Recorder.guarded = guarded


@pytest.fixture(scope="module", params=FLAGS.values(), ids=FLAGS.keys())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return tiny_pair(tmp_path_factory.mktemp("pair"), device="cuda", **request.param)


def requests() -> list[TextRequest]:
    """Of many lengths; regions change every few tokens."""
    return text_requests(random_prompts(PROMPT_TOKENS))


def started(
    pair: Pair, *, dtype: str, mode: str, level: str | None, **options: object
) -> AbstractContextManager[Engine]:
    """`options` are vLLM's, and `in_process`."""
    common = {"max_model_len": 256, "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 28}
    return recorded_engine(pair, level, dtype=dtype, max_num_seqs=8, **(common | MODES[mode] | options))


def outcome(pair: Pair, *, dtype: str, mode: str, level: str | None, **options: object) -> Outcome:
    """`options`: those of `started`; the counts are compared with its counters."""
    asked = requests()
    with started(pair, dtype=dtype, mode=mode, level=level, **options) as running:
        texts = running.generate(asked, max_tokens=MAX_NEW_TOKENS)
        counters = running.counters()
        status = running.status()
    batches = []
    if status is not None:
        assert status.failure is None, status
        assert status.num_dropped_steps == 0
        batches = [batch(pair, r, t) for r, t in zip(asked, texts, strict=True)]
        rounds = sum(int(b.on_walk.sum()) for b in batches)
        accepted = np.concatenate([b.accepted_drafts[b.on_walk] for b in batches])
        assert counters.num_drafts == rounds
        assert counters.accepted_by_depth == [int((accepted > k).sum()) for k in range(pair.depth)]
    print(f"\n{pair.drafter.spec.kind} {dtype} {mode} level {level}: {counters}, {status}", flush=True)
    return Outcome(texts=texts, batches=batches, counters=counters, status=status)


MEASURED = ("hidden_in_norm", "hidden_out_norm", "hidden_feedback_norm", "aux_norm")


def differences(ours: RoundBatch, theirs: RoundBatch) -> dict[str, float]:
    """Largest difference by column over the rounds that both made with the same drafts; norms relative."""
    place = {(int(t), tuple(d)): i for i, (t, d) in enumerate(zip(ours.start, ours.draft_token, strict=True))}
    pairs = [
        (place[int(t), tuple(d)], j)
        for j, (t, d) in enumerate(zip(theirs.start, theirs.draft_token, strict=True))
        if (int(t), tuple(d)) in place and theirs.on_walk[j]
    ]
    i, j = np.array(pairs, int).reshape(-1, 2).T
    if not len(i):
        return {}
    found = {"rounds": float(len(pairs))}
    for name in MEASURED:
        a, b = getattr(ours, name), getattr(theirs, name)
        if a is not None and b is not None:
            found[name] = float(np.nanmax(np.abs(b[j] / a[i] - 1)))
    for name in ("fusion_share", "fusion_energy"):
        found[name] = float(np.abs(getattr(theirs, name)[j] - getattr(ours, name)[i]).max())
    common = set(ours.mass) & set(theirs.mass)
    for region in common:
        found[f"mass {region}"] = float(np.abs(theirs.mass[region][j] - ours.mass[region][i]).max())
    return found


def merged(parts: list[dict[str, float]]) -> dict[str, float]:
    parts = [p for p in parts if p]
    worst = {name: max(p[name] for p in parts) for name in parts[0]}
    return worst | {"rounds": sum(p["rounds"] for p in parts)}


@pytest.mark.parametrize(("mode", "depth"), [("full", DEPTH), ("piecewise", DEPTH), ("prompts too", 1)])
def test_float32_is_replay(pair: Pair, mode: str, depth: int) -> None:
    pair = replace(pair, depth=depth)
    found = outcome(pair, dtype="float32", mode=mode, level="heads")
    parts, num_equal = [], 0
    for request, text, theirs in zip(requests(), found.texts, found.batches, strict=True):
        trace = text_of(pair, request, MAX_NEW_TOKENS)
        ours = walked(pair, request, trace)
        response = trace.token_ids[trace.num_prompt_tokens :][: trace.num_response_tokens].tolist()
        if text.token_ids == response:
            num_equal += 1
            assert theirs.accepted_drafts[theirs.on_walk].tolist() == ours.accepted_drafts.tolist()
        parts.append(differences(ours, theirs))
    worst = merged(parts)
    print(
        f"{pair.drafter.spec.kind} float32 {mode}, K = {depth}: {num_equal} of {len(parts)} texts are replay's; {worst}",
        flush=True,
    )
    assert num_equal >= len(parts) - 1
    assert worst["rounds"] > 50
    for name, value in worst.items():
        if name != "rounds":
            assert value < 1e-3, f"{name}: {value}"


def test_bfloat16_tokens_are_the_same_without_the_recorder_and_the_modes_agree(pair: Pair) -> None:
    without = outcome(pair, dtype="bfloat16", mode="full", level=None)
    modes = ("full", "piecewise", "eager")
    by_mode = {mode: outcome(pair, dtype="bfloat16", mode=mode, level="heads") for mode in modes}
    default = outcome(pair, dtype="bfloat16", mode="full", level="default")
    for name, found in (("heads", by_mode["full"]), ("default", default)):
        assert [t.token_ids for t in found.texts] == [t.token_ids for t in without.texts], name
        assert found.counters == without.counters
    for mode in ("piecewise", "eager"):
        pairs = zip(by_mode["full"].batches, by_mode[mode].batches, strict=True)
        worst = merged([differences(a, b) for a, b in pairs])
        same = sum(a.token_ids == b.token_ids for a, b in zip(by_mode["full"].texts, by_mode[mode].texts, strict=True))
        print(f"bfloat16 full against {mode}: {same} texts equal, {by_mode[mode].counters}; {worst}", flush=True)
    parts = []
    for request, theirs in zip(requests(), by_mode["full"].batches, strict=True):
        parts.append(differences(walked(pair, request, text_of(pair, request, MAX_NEW_TOKENS)), theirs))
    worst = merged(parts)
    print(f"bfloat16 full against replay in float32: {worst}", flush=True)
    assert worst["rounds"] >= 5
    for name, value in worst.items():
        if name != "rounds":
            assert value < 0.1, f"{name}: {value}"


@pytest.mark.parametrize("mode", ["full", "eager"])
def test_a_failure_in_the_recorders_thread_finds_the_engine_anywhere(
    pair: Pair, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, num_tokens = requests()[:3], 3
    with started(pair, dtype="bfloat16", mode=mode, level="default") as running:
        expected = [text.token_ids for text in running.generate(prompts, max_tokens=num_tokens)]
        answers = list(answers_with_failures(running, prompts, num_tokens, monkeypatch))
    print(f"{pair.drafter.spec.kind} {mode}: failures at {len(answers)} places", flush=True)
    assert len(answers) >= 5
    assert answers == [expected] * len(answers)


WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""Calls of the CUDA runtime in which the host waits for the device."""


@dataclass(frozen=True, kw_only=True)
class Waits:
    by_thread: Counter[tuple[tuple[str, int], ...]]  # calls of WAITS, of the threads that wait, without their names
    num_steps: int  # that sampled
    counters: Counters

    def after(self, num_steps: int) -> Counter[tuple[tuple[str, int], ...]]:
        """`by_thread` had it been so many steps: the engine's thread, which waits for the device at the end of the profile
        too, waits for each step's tokens once.
        """
        found: Counter[tuple[tuple[str, int], ...]] = Counter()
        for calls, num_threads in self.by_thread.items():
            counts = dict(calls)
            if "cudaDeviceSynchronize" in counts:
                counts["cudaEventSynchronize"] += num_steps - self.num_steps
            found[tuple(sorted(counts.items()))] += num_threads
        return found


def waits(running: Engine, folder: Path) -> Waits:
    """While all requests are answered once."""
    before = running.counters()
    [worker] = running.llm.collective_rpc(lambda worker: worker)
    steps: list[int] = []

    def counted(original: Callable[..., Any], *args: object, **kwargs: object) -> object:
        steps.append(1)
        return original(*args, **kwargs)

    wrap(worker.model_runner, "sample_tokens", counted)
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profiled:
        running.generate(requests(), max_tokens=MAX_NEW_TOKENS)
    folder.mkdir(exist_ok=True)
    profiled.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    runtime = [e for e in events if e.get("cat") == "cuda_runtime"]
    assert runtime
    by_thread: dict[int, Counter[str]] = {}
    for event in runtime:
        if event["name"] in WAITS:
            by_thread.setdefault(event["tid"], Counter())[event["name"]] += 1
    found = Counter(tuple(sorted(c.items())) for c in by_thread.values())
    return Waits(by_thread=found, num_steps=len(steps), counters=running.counters() - before)


@pytest.mark.parametrize("level", ["default", "heads"])
def test_no_step_waits_more_often_with_the_recorder(pair: Pair, level: str, tmp_path: Path) -> None:
    found = {}
    for name in (None, level):
        with started(pair, dtype="bfloat16", mode="full", level=name, enable_prefix_caching=False) as running:
            running.generate(requests(), max_tokens=MAX_NEW_TOKENS)  # what is compiled at first use waits, once
            found[name] = waits(running, tmp_path / str(name))
    print(f"{pair.drafter.spec.kind} level {level}: waits without and with the recorder {found}", flush=True)
    stock, recorded = found[None], found[level]
    assert recorded.counters == stock.counters
    # how many steps it takes is the scheduler's chance: it may run one ahead of a request's end or not
    assert abs(recorded.num_steps - stock.num_steps) <= 2
    expected = stock.after(recorded.num_steps)
    assert not expected - recorded.by_thread  # the engine's threads wait as often
    assert (recorded.by_thread - expected).total() <= 1  # and one more is the recorder's own
