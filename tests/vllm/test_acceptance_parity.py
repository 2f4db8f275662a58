"""Acceptance in a running vLLM engine against live and replay (`probes.chain`): the same rounds, drafts kept and text.

Greedy, float32. vLLM counts the accepted drafts of a round before it trims them at the stop, and so do live and replay:
the lists are compared whole. A first difference between two tokens whose logits are closer than TIE_LOGIT_GAP is a tie,
counted; after one the texts or the rounds are no longer the same and nothing more can be compared for that prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

import numpy as np

from driftscope.builtin import DEMO_DRAFTERS, resolve_drafter, resolve_target
from probes.chain.live import LiveOptions, LiveRounds, run_live_batch
from probes.chain.replay import replay
from probes.conditions import Job
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.job.loaded import Models, load_models
from probes.record import TEXT_REGIONS, PromptRecord
from probes.target.model import Target
from probes.target.sampler import Sampler
from probes.target.trace import TIE_LOGIT_GAP, TargetTrace
from probes.target.write import write
from tests.recorded_pair import random_prompts
from tests.tiny_models import VOCAB_SIZE, matched_drafter, tiny_target
from tests.vllm import vllm_engine
from training.write_checkpoint import write_checkpoint

DEPTH = 7
CHATS = [
    [{"role": "user", "content": "What is the capital of France? Answer in one word."}],
    [{"role": "user", "content": "Write a Python function that returns the factorial of n."}],
    [
        {"role": "system", "content": "You are a pirate. Talk like one."},
        {"role": "user", "content": "How do I boil an egg?"},
    ],
    [
        {"role": "user", "content": "Name three fruits."},
        {"role": "assistant", "content": "Apples, pears and plums."},
        {"role": "user", "content": "And three vegetables?"},
    ],
    [{"role": "user", "content": "Say hello."}],
]


@dataclass(frozen=True, kw_only=True)
class Pair:
    target: str
    drafters: dict[str, str]
    max_model_len: int
    max_new_tokens: int


def tiny_pair(folder: Path) -> Pair:
    """Built, not trained: some rounds accept every draft, some none."""
    seed = 5
    target = tiny_target(seed, hidden_size=128, head_dim=32, noise=0.3, folder=folder / "target")
    drafters = {}
    for name, flags in (("eagle3", {}), ("eagle3.1", {"has_fc_norm": True, "norm_output": True})):
        spec, tensors = matched_drafter(target, seed, noise=0.8, **flags)
        write_checkpoint(Eagle3.load(spec, tensors), folder / name)
        drafters[name] = str(folder / name)
    return Pair(target=str(folder / "target"), drafters=drafters, max_model_len=256, max_new_tokens=60)


def demo_pair(folder: Path) -> Pair:
    return Pair(
        target=resolve_target("demo"),
        drafters={name: resolve_drafter(f"demo:{name}") for name in DEMO_DRAFTERS},
        max_model_len=512,
        max_new_tokens=48,
    )


@pytest.fixture(scope="module", params=[tiny_pair, demo_pair], ids=["tiny", "demo"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return request.param(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def models(pair: Pair) -> Models:
    return load_models(Job(target=pair.target, drafters=pair.drafters, prompts=()))


@pytest.fixture(scope="module")
def prompts(pair: Pair, models: Models) -> list[list[int]]:
    if models.target.tokenizer.vocab_size == VOCAB_SIZE:
        return random_prompts((2, 9, 20, 33, 64, 65))
    template = models.target.tokenizer.apply_chat_template
    return [template(chat, add_generation_prompt=True, return_dict=False) for chat in CHATS]


@pytest.mark.parametrize("name", DEMO_DRAFTERS)
def test_rounds_and_text_equal_vllms(name: str, pair: Pair, models: Models, prompts: list[list[int]]) -> None:
    with vllm_engine.engine(pair.target, pair.drafters[name], depth=DEPTH, max_model_len=pair.max_model_len) as llm:
        generated = vllm_engine.generate(llm, prompts, max_tokens=pair.max_new_tokens)
    [drafter] = [d.model for d in models.drafters if d.name == name]

    num_ties = num_rounds = num_accepted = 0
    for index, (prompt, theirs) in enumerate(zip(prompts, generated, strict=True)):
        trace, rounds = live(drafter, models.target, prompt, pair.max_new_tokens)
        response = trace.token_ids[trace.num_prompt_tokens :][: trace.num_response_tokens].tolist()
        accepted = accepted_drafts(trace, rounds)
        assert set(theirs.num_drafts) <= {DEPTH}, "vLLM drafted less than was asked for"
        if theirs.token_ids != response:
            gap = text_gap(trace, response, theirs.token_ids)
            assert gap < TIE_LOGIT_GAP, f"prompt {index}: the texts differ where the target's logits are {gap} apart"
            num_ties += 1
        elif theirs.accepted_drafts != accepted:
            r, gap = draft_gap(rounds, accepted, theirs.accepted_drafts)
            assert gap < TIE_LOGIT_GAP, (
                f"prompt {index}, round {r}: vLLM accepted {theirs.accepted_drafts}, live {accepted}; "
                f"no draft up to there is a tie (smallest gap {gap})"
            )
            num_ties += 1
        else:
            assert theirs.finish_reason == trace.finish_reason
            assert replay_walk(drafter, models.target, prompt, trace, pair.max_new_tokens) == accepted
            num_rounds += len(accepted)
            num_accepted += sum(accepted)
    print(f"{name}: {num_rounds} rounds equal, {num_accepted} drafts accepted in them, {num_ties} ties")
    assert num_ties < len(prompts) / 2
    assert num_accepted >= 20, "too few accepted drafts for the comparison to mean anything"
    assert {g.finish_reason for g in generated} == {"stop", "length"}, "both ends of a text must occur"


def live(drafter: Drafter, target: Target, prompt: list[int], max_new_tokens: int) -> tuple[TargetTrace, LiveRounds]:
    options = LiveOptions(depth=DEPTH, max_new_tokens=max_new_tokens, sampler=Sampler())
    return run_live_batch(drafter, target, [np.asarray(prompt)], ["p"], options)[0]


def accepted_drafts(trace: TargetTrace, rounds: LiveRounds) -> list[int]:
    """A round that starts at t leaves the next start, or the text's last slot but one, at t + accepted + 1."""
    ends = [*rounds.starts[1:], len(trace.token_ids) - 2]
    return [end - start - 1 for start, end in zip(rounds.starts, ends, strict=True)]


def replay_walk(
    drafter: Drafter, target: Target, prompt: list[int], lived: TargetTrace, max_new_tokens: int
) -> list[int]:
    """Accepted drafts of the rounds that replay says an engine makes, on the target's own plain greedy text."""
    [trace] = write(
        target,
        [np.asarray(prompt)],
        ["p"],
        max_new_tokens=max_new_tokens,
        num_continuation_tokens=DEPTH,
        sampler=Sampler(),
    )
    num_common = min(len(trace.token_ids), len(lived.token_ids))
    assert trace.token_ids[:num_common].tolist() == lived.token_ids[:num_common].tolist()
    if trace.num_response_tokens < 2:
        return []
    record = PromptRecord(
        prompt_id="p",
        system_prompt="default",
        template="default",
        context_tokens=0,
        token_ids=trace.token_ids.numpy().astype(np.int32),
        region=np.full(len(trace.token_ids), TEXT_REGIONS.index("unknown"), np.uint8),
        num_prompt_tokens=trace.num_prompt_tokens,
        num_response_tokens=trace.num_response_tokens,
        num_continuation_tokens=DEPTH,
        finish_reason=trace.finish_reason,
    )
    batch = replay(drafter, trace, record, name="drafter", depth=DEPTH)
    return batch.accepted_drafts[batch.on_walk].tolist()


def text_gap(trace: TargetTrace, ours: Sequence[int], theirs: Sequence[int]) -> float:
    """How far apart the target's logits of the first two differing tokens are; infinite when one text ends early."""
    for logits, a, b in zip(trace.logits, ours, theirs, strict=False):
        if a != b:
            return float((logits[a] - logits[b]).abs())
    return float("inf")


def draft_gap(rounds: LiveRounds, ours: Sequence[int], theirs: Sequence[int]) -> tuple[int, float]:
    """The first round that differs, and the smallest gap between the two best draft logits up to the depth in question."""
    differing = [r for r, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    if not differing:
        return min(len(ours), len(theirs)), float("inf")
    r = differing[0]
    last = min(ours[r], theirs[r])  # the first differing draft, counted from 0
    return r, min(float(d.logit_gap[0]) for d in rounds.drafts[r][: last + 1])
