"""The recorder in a vLLM engine on a GPU: V2 runner, torch.compile and CUDA graphs on.

float32 (vLLM then takes its Triton attention) is compared with `live`; bfloat16 (FlashAttention 3) with the same engine
without a recorder, in PIECEWISE graphs and in eager mode. Run with `-s`: what bfloat16 allows is printed. Each engine takes
about a minute to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm.v1", reason="needs vLLM and a GPU", exc_type=ImportError)

from driftscope.builtin import resolve_drafter, resolve_target
from probes.conditions import Job
from probes.job import Models, load_models
from probes.live import record_live, run_live
from probes.record import TEXT_REGIONS, PromptRecord, RoundBatch
from probes.target import Sampler
from probes.vllm.engine import Counters, Text, TextRequest, engine
from probes.vllm.record import Condition, round_batch
from probes.vllm.recorder import Recorder, RecorderStatus

pytestmark = pytest.mark.gpu

DEPTH, MAX_NEW_TOKENS = 5, 64
USER_TURNS = (
    "What is the capital of France? Answer in one word.",
    "Write a Python function that returns the factorial of n.",
    "Name three fruits and three vegetables, and say which of them you would put into a soup and why.",
    "Summarise this: " + "The river rose in the night and took the bridge, the mill and the old road with it. " * 40,
)
MODES: dict[str, dict[str, Any]] = {
    "full": {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}},
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


@pytest.fixture(scope="module")
def models() -> Models:
    job = Job(
        target=resolve_target("demo"),
        drafters={n: resolve_drafter(f"demo:{n}") for n in ("eagle3", "eagle3.1")},
        prompts=(),
        device="cuda",
    )
    return load_models(job)


def requests(models: Models) -> list[TextRequest]:
    template = models.target.tokenizer.apply_chat_template
    ids = [
        template([{"role": "user", "content": turn}], add_generation_prompt=True, return_dict=False)
        for turn in USER_TURNS
    ]
    user, system = TEXT_REGIONS.index("user"), TEXT_REGIONS.index("system")
    return [
        TextRequest(
            key=f"p{i}", token_ids=x, region=np.where(np.arange(len(x)) < len(x) // 2, system, user).astype(np.uint8)
        )
        for i, x in enumerate(ids)
    ]


def outcome(models: Models, drafter: str, *, dtype: str, mode: str, level: str | None) -> Outcome:
    asked = requests(models)
    with engine(
        resolve_target("demo"),
        resolve_drafter(f"demo:{drafter}"),
        depth=DEPTH,
        dtype=dtype,
        level=level,
        max_num_seqs=8,
        options={
            "max_model_len": 2048,
            "gpu_memory_utilization": 0.05,
            "kv_cache_memory_bytes": 1 << 30,
            **MODES[mode],
        },
    ) as running:
        texts = running.generate(asked, max_tokens=MAX_NEW_TOKENS)
        counters = running.counters()
        status = None if running.recording is None else running.recording.status()
    batches = []
    if status is not None:
        assert status.failure is None, status
        assert status.num_dropped_steps == 0
        batches = [batch(models, drafter, r, t) for r, t in zip(asked, texts, strict=True)]
        rounds = sum(int(b.on_walk.sum()) for b in batches)
        accepted = np.concatenate([b.accepted_drafts[b.on_walk] for b in batches])
        assert counters.num_drafts == rounds
        assert counters.accepted_by_depth == [int((accepted > k).sum()) for k in range(DEPTH)]
    print(f"\n{drafter} {dtype} {mode} level {level}: {counters}, {status}", flush=True)
    return Outcome(texts=texts, batches=batches, counters=counters, status=status)


def batch(models: Models, drafter: str, request: TextRequest, text: Text) -> RoundBatch:
    model = next(d.model for d in models.drafters if d.name == drafter)
    in_vocab = np.zeros(model.spec.vocab_size, bool)
    in_vocab[model.target_ids().cpu().numpy()] = True
    assert text.rounds is not None
    return round_batch(
        text.rounds,
        Condition(drafter=drafter, prompt_id=request.key, system_prompt="s", template="t", context_tokens=0),
        num_tokens=len(request.token_ids) + len(text.token_ids),
        in_draft_vocab=in_vocab,
        norm_output=model.spec.norm_output,
    )


def lived(models: Models, drafter: str, request: TextRequest) -> tuple[RoundBatch, list[int]]:
    model = next(d.model for d in models.drafters if d.name == drafter)
    trace, rounds = run_live(
        model,
        models.target,
        np.asarray(request.token_ids),
        request.region,
        prompt_id=request.key,
        depth=DEPTH,
        max_new_tokens=MAX_NEW_TOKENS,
        sampler=Sampler(),
    )
    num_after = len(trace.token_ids) - len(request.region)
    record = PromptRecord(
        prompt_id=request.key,
        system_prompt="s",
        template="t",
        context_tokens=0,
        token_ids=trace.token_ids.cpu().numpy().astype(np.int32),
        region=np.concatenate([request.region, np.full(num_after, TEXT_REGIONS.index("response"), np.uint8)]),
        num_prompt_tokens=trace.num_prompt_tokens,
        num_response_tokens=trace.num_response_tokens,
        num_continuation_tokens=0,
        finish_reason=trace.finish_reason,
    )
    response = trace.token_ids[trace.num_prompt_tokens :][: trace.num_response_tokens]
    return record_live(model, trace, rounds, record, name=drafter), response.tolist()


MEASURED = ("hidden_in_norm", "hidden_out_norm", "hidden_feedback_norm", "aux_norm")


def differences(ours: RoundBatch, theirs: RoundBatch) -> dict[str, float]:
    """Largest difference by column over the rounds that both made with the same drafts; norms relative."""
    place = {(int(t), tuple(d)): i for i, (t, d) in enumerate(zip(ours.start, ours.draft_token, strict=True))}
    pairs = [
        (place[int(t), tuple(d)], j)
        for j, (t, d) in enumerate(zip(theirs.start, theirs.draft_token, strict=True))
        if (int(t), tuple(d)) in place and theirs.on_walk[j]
    ]
    i, j = (np.array(side) for side in zip(*pairs, strict=True))
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
    worst = {name: max(p[name] for p in parts) for name in parts[0]}
    return worst | {"rounds": sum(p["rounds"] for p in parts)}


@pytest.mark.parametrize("drafter", ["eagle3.1", "eagle3"])
@pytest.mark.parametrize("mode", ["full", "piecewise"])
def test_float32_is_live(models: Models, drafter: str, mode: str) -> None:
    found = outcome(models, drafter, dtype="float32", mode=mode, level="heads")
    parts, num_equal = [], 0
    for request, text, theirs in zip(requests(models), found.texts, found.batches, strict=True):
        ours, response = lived(models, drafter, request)
        if text.token_ids == response:
            num_equal += 1
            assert theirs.accepted_drafts[theirs.on_walk].tolist() == ours.accepted_drafts.tolist()
        parts.append(differences(ours, theirs))
    worst = merged(parts)
    print(f"{drafter} float32 {mode}: {num_equal} of {len(parts)} texts equal live's; {worst}", flush=True)
    assert num_equal >= len(parts) - 1
    for name, value in worst.items():
        if name != "rounds":
            assert value < 1e-3, f"{name}: {value}"


def test_bfloat16_tokens_are_the_same_without_the_recorder_and_the_modes_agree(models: Models) -> None:
    drafter = "eagle3.1"
    without = outcome(models, drafter, dtype="bfloat16", mode="full", level=None)
    by_mode = {mode: outcome(models, drafter, dtype="bfloat16", mode=mode, level="heads") for mode in MODES}
    default = outcome(models, drafter, dtype="bfloat16", mode="full", level="default")
    for name, found in (("heads", by_mode["full"]), ("default", default)):
        assert [t.token_ids for t in found.texts] == [t.token_ids for t in without.texts], name
        assert found.counters == without.counters
    for mode in ("piecewise", "eager"):
        pairs = zip(by_mode["full"].batches, by_mode[mode].batches, strict=True)
        worst = merged([differences(a, b) for a, b in pairs])
        same = sum(a.token_ids == b.token_ids for a, b in zip(by_mode["full"].texts, by_mode[mode].texts, strict=True))
        print(f"bfloat16 full against {mode}: {same} texts equal, {by_mode[mode].counters}; {worst}", flush=True)
    parts = []
    for request, theirs in zip(requests(models), by_mode["full"].batches, strict=True):
        ours, _ = lived(models, drafter, request)  # in float32
        parts.append(differences(ours, theirs))
    worst = merged(parts)
    print(f"bfloat16 full against live in float32: {worst}", flush=True)
    assert worst["rounds"] >= 5
    for name, value in worst.items():
        if name != "rounds":
            assert value < 0.1, f"{name}: {value}"
