"""A tiny pair on disk, requests for it, and its rounds: as the recorder in a vLLM engine has them, and as replay does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
import torch

from driftscope.runs import Run
from probes.attention.slots import text_regions
from probes.chain.replay import replay
from probes.conditions import Job
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.job.loaded import load_models
from probes.record import REGIONS, TEXT_REGIONS, ConditionKey, PromptRecord, RoundBatch
from probes.target.model import Target
from probes.target.sampler import Sampler
from probes.target.trace import TargetTrace
from probes.target.write import write
from probes.vllm.engine import Engine, Text, TextRequest, engine
from probes.vllm.recorder import Recorder
from probes.vllm.to_record import round_batch
from tests.tiny_models import VOCAB_SIZE, matched_drafter, tiny_target
from training.write_checkpoint import write_checkpoint

DEPTH = 5


@dataclass(frozen=True, kw_only=True)
class Pair:
    target: Target
    drafter: Drafter
    target_path: str
    drafter_path: str
    depth: int = DEPTH


def tiny_pair(folder: Path, *, device: str = "cpu", **flags: object) -> Pair:
    seed = 5
    model = tiny_target(seed, hidden_size=128, head_dim=32, noise=0.3, folder=folder / "target")
    spec, tensors = matched_drafter(model, seed, noise=0.8, **flags)
    write_checkpoint(Eagle3.load(spec, tensors), folder / "drafter")  # in bfloat16: what vLLM loads is what we load
    job = Job(target=str(folder / "target"), drafters={"d": str(folder / "drafter")}, prompts=(), device=device)
    models = load_models(job)
    return Pair(
        target=models.target,
        drafter=models.drafters[0].model,
        target_path=job.target,
        drafter_path=job.drafters["d"],
    )


EXACT = ("start", "num_drafts", "accepted_drafts", "draft_token", "target_token", "accepted", "rejection_reason")
NORMS = ("hidden_in_norm", "hidden_out_norm", "hidden_feedback_norm", "branch_norm_attn", "branch_norm_mlp", "aux_norm")
"""Columns of a round that are equal, and equal up to rounding, however it was measured."""


def recorded_engine(
    pair: Pair,
    level: str | None,
    *,
    dtype: str = "float32",
    max_num_seqs: int = 4,
    in_process: bool = True,
    **options: object,
) -> AbstractContextManager[Engine]:
    """`options` are vLLM's; level None: no recorder."""
    return engine(
        pair.target_path,
        pair.drafter_path,
        depth=pair.depth,
        dtype=dtype,
        level=level,
        max_num_seqs=max_num_seqs,
        options=options,
        in_process=in_process,
    )


def answers_with_failures(
    running: Engine, requests: Sequence[TextRequest], num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[list[int]]]:
    """Of an engine in this process, what it answers [request][token] where the recorder failed in its own thread: after
    the first of its guarded calls, after the second, and so on, through all that these requests make."""
    calls: list[Recorder] = []
    failing_call = -1
    guarded = Recorder.guarded

    def counted(recorder: Recorder, work: Callable[..., None], *args: object) -> None:
        guarded(recorder, work, *args)
        if len(calls) == failing_call:
            recorder.failure = "injected"
        calls.append(recorder)

    def answer() -> list[list[int]]:
        calls.clear()
        return [text.token_ids for text in running.generate(requests, max_tokens=num_tokens)]

    monkeypatch.setattr(Recorder, "guarded", counted)
    answer()
    recorder, num_calls = calls[0], len(calls)
    for place in range(num_calls):
        failing_call = place
        yield answer()
        # a scheduler ahead of its requests may make fewer calls this time
        assert recorder.failure == "injected" or len(calls) <= place
        recorder.drop_step()
        recorder.failure = None


def random_prompts(lengths: Sequence[int]) -> list[list[int]]:
    """Tokens of prompts of these lengths, always the same."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def text_requests(ids: Sequence[list[int]]) -> list[TextRequest]:
    """One for each prompt's tokens; regions change every few tokens."""
    names = ("template", "system", "user", "context", "history")
    regions = [np.array([TEXT_REGIONS.index(names[(i // 7) % 5]) for i in range(len(x))], np.uint8) for x in ids]
    return [TextRequest(key=f"p{i}", token_ids=x, region=r) for i, (x, r) in enumerate(zip(ids, regions, strict=True))]


def batch(pair: Pair, request: TextRequest, text: Text) -> RoundBatch:
    in_vocab = np.zeros(pair.drafter.spec.vocab_size, bool)
    in_vocab[pair.drafter.target_ids().cpu().numpy()] = True
    assert text.rounds is not None
    return round_batch(
        text.rounds,
        ConditionKey("d", "s", "t", 0),
        request.key,
        num_tokens=len(request.token_ids) + len(text.token_ids),
        in_draft_vocab=in_vocab,
        norm_output=pair.drafter.spec.norm_output,
    )


def text_of(pair: Pair, request: TextRequest, max_new_tokens: int) -> TargetTrace:
    """The target's own greedy text, in float32."""
    [trace] = write(
        pair.target,
        [np.asarray(request.token_ids)],
        [request.key],
        max_new_tokens=max_new_tokens,
        num_continuation_tokens=pair.depth,
        sampler=Sampler(),
    )
    return trace


def walked(pair: Pair, request: TextRequest, trace: TargetTrace) -> RoundBatch:
    """The rounds that an engine makes, by replay: those on the walk alone."""
    record = PromptRecord(
        prompt_id=request.key,
        system_prompt="s",
        template="t",
        context_tokens=0,
        token_ids=trace.token_ids.cpu().numpy().astype(np.int32),
        region=text_regions(request.region, len(trace.token_ids)),
        num_prompt_tokens=trace.num_prompt_tokens,
        num_response_tokens=trace.num_response_tokens,
        num_continuation_tokens=pair.depth,
        finish_reason=trace.finish_reason,
    )
    batch = replay(pair.drafter, trace, record, name="d", depth=pair.depth)
    walk = batch.on_walk

    def kept(value: object) -> object:
        if isinstance(value, dict):
            return {name: kept(item) for name, item in value.items()}
        return value[walk] if isinstance(value, np.ndarray) else value

    return RoundBatch(**{field.name: kept(getattr(batch, field.name)) for field in fields(batch)})


def assert_rounds_are_replays(
    run: Run, system_prompt: str, pair: Pair, *, max_new_tokens: int, atol: float
) -> list[list[int]]:
    """Of a run of level `heads` with token ids: this condition's responses, rounds, drafts and masses are those that
    replay has. -> the responses [prompt][token], in the run's order."""
    prompts = run.query(f"select * from prompts where system_prompt = '{system_prompt}'").to_pylist()
    responses = [prompt["token_ids"][prompt["num_prompt_tokens"] :] for prompt in prompts]
    num_depths = 0
    for prompt, response in zip(prompts, responses, strict=True):
        ids, region = prompt["token_ids"], np.asarray(prompt["region"], np.uint8)
        num_prompt = prompt["num_prompt_tokens"]
        request = TextRequest(key=prompt["prompt_id"], token_ids=ids[:num_prompt], region=region[:num_prompt])
        trace = text_of(pair, request, max_new_tokens)
        assert trace.token_ids[num_prompt:][: trace.num_response_tokens].tolist() == response
        ours = walked(pair, request, trace)
        where = f"where on_walk and prompt_id = '{request.key}' and system_prompt = '{system_prompt}' order by start"
        rounds = run.query(f"select start, accepted_drafts from rounds {where}")
        assert rounds["start"].to_pylist() == ours.start.tolist()
        assert rounds["accepted_drafts"].to_pylist() == ours.accepted_drafts.tolist()
        depths = run.query(f"select * from depths {where}, depth")
        np.testing.assert_array_equal(depths["draft_token"].to_numpy().reshape(-1, pair.depth), ours.draft_token)
        for name in REGIONS:
            masses = np.array(depths[f"mass_{name}"].to_pylist()).reshape(ours.mass[name].shape)
            np.testing.assert_allclose(masses, ours.mass[name], atol=atol, err_msg=name)
        num_depths += depths.num_rows
    assert num_depths > 30
    return responses
