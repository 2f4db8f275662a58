"""The real draft-verify loop on a tiny pair: lossless, and the same rounds as replay's walk, up to the end of the text.

Plain decoding is written out here: the whole text through the model again for every token, no cache, no batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from probes.chain.live import LiveOptions, record_live, run_live_batch
from probes.chain.replay import replay
from probes.chain.step import prefill
from probes.checkpoint.spec import DrafterSpec
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.record import COLUMNS, REGIONS, TEXT_REGIONS, PromptRecord, RejectionReason, RoundBatch
from probes.target.model import Target
from probes.target.sampler import Sampler
from probes.target.trace import TargetTrace
from probes.target.write import write
from tests.tiny_models import captured, matched_drafter, tiny_target, tiny_tokenizer

TIE_GAP = 1e-4
DRAFTERS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3.1": {"norm_output": True, "has_fc_norm": True},
    "two layers, window": {"num_layers": 2, "sliding_window": 5, "norm_before_residual": True},
}
USER_TURNS = (
    "Hi there",
    "What is the tallest mountain of the world?",
    "x",
    "Name two colours {red, blue}\n and a fish.",
)
MAX_NEW_TOKENS, DEPTH = 40, 5


@dataclass
class Pair:
    model: LlamaForCausalLM
    target: Target
    spec: DrafterSpec
    drafter: Drafter


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module", params=DRAFTERS.values(), ids=DRAFTERS.keys())
def shared_pair(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> Pair:
    model = tiny_target(seed=0)
    spec, tensors = matched_drafter(model, seed=0, **request.param)
    return Pair(model, Target(model, tokenizer, aux_layer_ids=spec.aux_layer_ids), spec, Eagle3.load(spec, tensors))


@pytest.fixture
def pair(shared_pair: Pair) -> Iterator[Pair]:
    """With no stop token, unless a test sets one."""
    stops = shared_pair.model.generation_config.eos_token_id, shared_pair.target.tokenizer.eos_token
    set_stop(shared_pair, None)
    yield shared_pair
    shared_pair.model.generation_config.eos_token_id, shared_pair.target.tokenizer.eos_token = stops


def set_stop(pair: Pair, token: int | list[int] | None) -> None:
    pair.model.generation_config.eos_token_id = token
    pair.target.tokenizer.eos_token = None


def prompt_ids(tokenizer: PreTrainedTokenizerFast, turn: str) -> np.ndarray:
    messages = [{"role": "user", "content": turn}]
    return np.asarray(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"], np.int32)


def decode_plainly(pair: Pair, prompt: np.ndarray, num_tokens: int) -> tuple[list[int], Tensor]:
    """Greedy tokens and the logits that chose them; stops are ignored."""
    text, rows = prompt.tolist(), []
    with torch.no_grad():
        for _ in range(num_tokens):
            rows.append(pair.model(torch.tensor([text])).logits[0, -1])
            text.append(int(rows[-1].argmax()))
    return text[len(prompt) :], torch.stack(rows)


def assert_lossless(response: list[int], plain: list[int], logits: Tensor) -> None:
    """Equal, or first different at a tie."""
    for place, (token, expected) in enumerate(zip(response, plain, strict=True)):
        if token != expected:
            gap = float(logits[place, expected] - logits[place, token])
            assert gap < TIE_GAP, f"response token {place} is {token} instead of {expected}, logit gap {gap:.3g}"
            return


def live(
    pair: Pair,
    prompt: np.ndarray,
    *,
    depth: int = DEPTH,
    max_new_tokens: int = MAX_NEW_TOKENS,
    temperature: float = 0.0,
    **shared: Any,
) -> tuple[TargetTrace, RoundBatch | None]:
    """The text and its rounds; None when no round was made."""
    options = LiveOptions(depth=depth, max_new_tokens=max_new_tokens, sampler=Sampler(temperature, seed=1), **shared)
    trace, rounds = run_live_batch(pair.drafter, pair.target, [prompt], ["p"], options)[0]
    if not rounds.starts:
        return trace, None
    return trace, record_live(pair.drafter, trace, rounds, prompt_record(trace), name="d")


def written(
    pair: Pair,
    prompt: np.ndarray,
    *,
    depth: int = DEPTH,
    max_new_tokens: int = MAX_NEW_TOKENS,
    temperature: float = 0.0,
) -> TargetTrace:
    sampler = Sampler(temperature, seed=1)
    options = {"max_new_tokens": max_new_tokens, "num_continuation_tokens": depth, "sampler": sampler}
    return write(pair.target, [prompt], ["p"], **options)[0]


def prompt_record(trace: TargetTrace) -> PromptRecord:
    num_tokens, num_prompt = len(trace.token_ids), trace.num_prompt_tokens
    region = np.full(num_tokens, TEXT_REGIONS.index("response"), np.uint8)
    region[:num_prompt] = TEXT_REGIONS.index("user")
    return PromptRecord(
        prompt_id="p",
        system_prompt="none",
        template="default",
        context_tokens=0,
        token_ids=trace.token_ids.numpy().astype(np.int32),
        region=region,
        num_prompt_tokens=num_prompt,
        num_response_tokens=trace.num_response_tokens,
        num_continuation_tokens=num_tokens - num_prompt - trace.num_response_tokens,
        finish_reason=trace.finish_reason,
        is_forced=trace.is_forced,
    )


def response_of(trace: TargetTrace) -> list[int]:
    return trace.token_ids[trace.num_prompt_tokens :][: trace.num_response_tokens].tolist()


def assert_rounds_add_up(batch: RoundBatch, trace: TargetTrace) -> None:
    last_start = trace.num_prompt_tokens + trace.num_response_tokens - 3
    assert batch.start[batch.on_walk].max() <= last_start  # a round after the last token is none
    emitted = int((batch.accepted_drafts[batch.on_walk] + 1).sum())
    assert 1 + emitted - batch.num_trimmed_tokens == trace.num_response_tokens


PER_ROUND = ("start", "num_drafts", "accepted_drafts")
PER_DEPTH = ("draft_token", "target_token", "target_rank_of_draft", "accepted", "rejection_reason")
CANDIDATE_PROBS = ("draft_top_prob", "target_top_prob")  # rounded to half precision
OF_FRESH = ("recent_mass", "own_excess", "sink_deficit")  # NaN in live where the text ends before slot t+k-1
ELSEWHERE = (*CANDIDATE_PROBS, *OF_FRESH, "draft_us", "verify_us", "fusion_share_bias", "target_divergence")
MEASURED = [
    name
    for name, column in COLUMNS.items()
    if column.stored == "float32" and not name.startswith("mass_") and name not in ELSEWHERE
]


def assert_walk_is_live(replayed: RoundBatch, looped: RoundBatch) -> None:
    """Every column of the walk's rounds is the live rounds' column."""
    walk = replayed.on_walk
    assert looped.on_walk.all()
    for name in (*PER_ROUND, *PER_DEPTH):
        np.testing.assert_array_equal(getattr(replayed, name)[walk], getattr(looped, name), err_msg=name)
    assert replayed.num_trimmed_tokens == looped.num_trimmed_tokens
    for name in MEASURED:
        expected, actual = getattr(replayed, name)[walk], getattr(looped, name)
        np.testing.assert_allclose(actual, expected, atol=1e-4 * np.nanmax(np.abs(expected)), rtol=0, err_msg=name)
    for name in CANDIDATE_PROBS:
        actual, expected = getattr(looped, name), getattr(replayed, name)[walk]
        np.testing.assert_allclose(actual, expected, atol=1e-3, err_msg=name)
    for region in REGIONS:
        np.testing.assert_allclose(looped.mass[region], replayed.mass[region][walk], atol=1e-4, err_msg=region)
    assert looped.fresh_token is not None
    has_fresh = looped.fresh_token >= 0
    num_slots = int(looped.start[-1]) + int(looped.accepted_drafts[-1]) + 2  # one less than the live text has tokens
    assert has_fresh.tolist() == (looped.start[:, None] + np.arange(looped.depth) < num_slots).tolist()
    np.testing.assert_array_equal(looped.fresh_token[has_fresh], replayed.fresh_token[walk][has_fresh])
    for name in OF_FRESH:
        actual, expected = getattr(looped, name)[has_fresh], getattr(replayed, name)[walk][has_fresh]
        np.testing.assert_allclose(actual, expected, atol=1e-4, err_msg=name)
        assert np.isnan(getattr(looped, name)[~has_fresh]).all()


@pytest.mark.parametrize("turn", USER_TURNS)
def test_live_is_plain_greedy_decoding_and_replays_walk(
    pair: Pair, tokenizer: PreTrainedTokenizerFast, turn: str
) -> None:
    prompt = prompt_ids(tokenizer, turn)
    trace, looped = live(pair, prompt)
    assert looped is not None
    assert trace.finish_reason == "length"
    assert trace.num_response_tokens == MAX_NEW_TOKENS
    plain, logits = decode_plainly(pair, prompt, MAX_NEW_TOKENS)
    assert_lossless(response_of(trace), plain, logits)
    assert set(looped.accepted_drafts.tolist()) >= {0, 1}
    assert looped.accepted_drafts.max() >= 2

    text = written(pair, prompt)
    assert response_of(text) == response_of(trace)
    replayed = replay(pair.drafter, text, prompt_record(text), name="d", depth=DEPTH)
    assert_walk_is_live(replayed, looped)
    assert_rounds_add_up(replayed, text)
    assert_rounds_add_up(looped, trace)
    assert replayed.has_all_labels.all()
    assert looped.draft_us is not None
    assert looped.verify_us is not None
    assert (looped.draft_us > 0).all()
    assert (looped.verify_us > 0).all()


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_depth_changes_the_rounds_and_not_the_text(pair: Pair, tokenizer: PreTrainedTokenizerFast, depth: int) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[0])
    trace, looped = live(pair, prompt, depth=depth)
    assert looped is not None
    assert looped.draft_token.shape == (len(looped.start), depth)
    assert response_of(trace) == response_of(live(pair, prompt)[0])
    text = written(pair, prompt, depth=depth)
    replayed = replay(pair.drafter, text, prompt_record(text), name="d", depth=depth)
    assert_walk_is_live(replayed, looped)
    assert_rounds_add_up(looped, trace)


def test_a_stop_token_inside_a_round_ends_the_response_and_its_round_counts_in_full(
    pair: Pair, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[1])
    endless, all_rounds = live(pair, prompt)
    assert all_rounds is not None
    text = endless.token_ids.tolist()
    rounds = zip(all_rounds.start.tolist(), all_rounds.accepted_drafts.tolist(), strict=True)
    row, t, num_accepted, place = next(  # the stop is the round's second token of num_accepted + 1
        (row, t, num_accepted, t + 3)
        for row, (t, num_accepted) in enumerate(rounds)
        if num_accepted >= 2 and text[t + 3] not in text[len(prompt) : t + 3]
    )
    set_stop(pair, text[place])
    trace, looped = live(pair, prompt)
    assert looped is not None
    assert trace.finish_reason == "stop"
    assert response_of(trace) == text[len(prompt) : place + 1]
    # the last round is the endless text's, untrimmed: what it accepted past the stop counts
    assert looped.accepted_drafts.tolist() == all_rounds.accepted_drafts[: row + 1].tolist()
    assert looped.num_trimmed_tokens == num_accepted - 1
    assert trace.token_ids.tolist() == text[: t + num_accepted + 3]
    assert_rounds_add_up(looped, trace)

    written_text = written(pair, prompt)
    assert written_text.finish_reason == "stop"
    assert response_of(written_text) == response_of(trace)
    assert len(written_text.token_ids) == place + 1 + DEPTH  # labels past the stop
    replayed = replay(pair.drafter, written_text, prompt_record(written_text), name="d", depth=DEPTH)
    assert_walk_is_live(replayed, looped)
    assert_rounds_add_up(replayed, written_text)


def test_a_stop_token_as_bonus_trims_nothing(pair: Pair, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[3])
    endless, all_rounds = live(pair, prompt)
    assert all_rounds is not None
    text = endless.token_ids.tolist()
    ends = (all_rounds.start + all_rounds.accepted_drafts + 2).tolist()  # where each round's bonus token stands
    row = next(i for i, end in enumerate(ends) if i >= 2 and text[end] not in text[len(prompt) : end])
    set_stop(pair, text[ends[row]])
    trace, looped = live(pair, prompt)
    assert looped is not None
    assert len(looped.start) == row + 1
    assert looped.num_trimmed_tokens == 0
    assert trace.token_ids.tolist() == text[: ends[row] + 1]
    assert_rounds_add_up(looped, trace)


@pytest.mark.parametrize("max_new_tokens", [2, 3, 4, 7, 11])
def test_a_length_limit_ends_the_response_wherever_a_round_stands(
    pair: Pair, tokenizer: PreTrainedTokenizerFast, max_new_tokens: int
) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[1])
    trace, looped = live(pair, prompt, max_new_tokens=max_new_tokens)
    assert looped is not None
    assert trace.finish_reason == "length"
    assert response_of(trace) == response_of(live(pair, prompt)[0])[:max_new_tokens]
    assert_rounds_add_up(looped, trace)
    text = written(pair, prompt, max_new_tokens=max_new_tokens)
    assert_walk_is_live(replay(pair.drafter, text, prompt_record(text), name="d", depth=DEPTH), looped)


def test_a_stop_token_past_the_length_limit_is_not_the_end(pair: Pair, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[1])
    endless, all_rounds = live(pair, prompt)
    assert all_rounds is not None
    text = endless.token_ids.tolist()
    rounds = zip(all_rounds.start.tolist(), all_rounds.accepted_drafts.tolist(), strict=True)
    place = next(t + 3 for t, num in rounds if num >= 2 and text[t + 3] not in text[len(prompt) : t + 3])
    set_stop(pair, text[place])
    max_new_tokens = place - len(prompt)  # the token before the stop is the last, in the middle of a round
    trace, looped = live(pair, prompt, max_new_tokens=max_new_tokens)
    assert looped is not None
    assert place < len(trace.token_ids)  # the round ran past both
    assert trace.finish_reason == "length"
    assert response_of(trace) == text[len(prompt) : place]
    assert_rounds_add_up(looped, trace)
    whole = written(pair, prompt, max_new_tokens=max_new_tokens)
    assert whole.finish_reason == "length"
    assert_walk_is_live(replay(pair.drafter, whole, prompt_record(whole), name="d", depth=DEPTH), looped)


def test_a_stop_token_that_comes_twice_in_a_round_ends_at_the_first(
    pair: Pair, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[1])
    endless, all_rounds = live(pair, prompt)
    assert all_rounds is not None
    text = endless.token_ids.tolist()
    rounds = zip(all_rounds.start.tolist(), all_rounds.accepted_drafts.tolist(), strict=True)
    place = next(t + 2 for t, num in rounds if num >= 2 and not {*text[t + 2 : t + 4]} & {*text[len(prompt) : t + 2]})
    set_stop(pair, [text[place], text[place + 1]])  # two stop tokens: both stand in the last round
    trace, looped = live(pair, prompt)
    assert looped is not None
    assert response_of(trace) == text[len(prompt) : place + 1]
    assert_rounds_add_up(looped, trace)


def test_a_response_of_one_token_has_no_round(pair: Pair, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[0])
    first = response_of(live(pair, prompt, max_new_tokens=1)[0])
    assert first == decode_plainly(pair, prompt, 1)[0]
    set_stop(pair, first[0])
    trace, looped = live(pair, prompt)
    assert looped is None
    assert (trace.finish_reason, response_of(trace)) == ("stop", first)


def test_a_shared_prefix_changes_nothing(pair: Pair, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[1])
    prefix = pair.target.prefill(prompt[:9])
    slots = prefill(pair.drafter, torch.as_tensor(prompt[:9], dtype=torch.int64), prefix.aux)
    for _ in range(2):  # a second time: neither was used up by the first
        trace, looped = live(pair, prompt, prefix=prefix, slots=slots)
        plain_trace, plain = live(pair, prompt)
        assert looped is not None
        assert plain is not None
        assert trace.token_ids.tolist() == plain_trace.token_ids.tolist()
        np.testing.assert_array_equal(looped.draft_token, plain.draft_token)
        np.testing.assert_allclose(looped.hidden_out_norm, plain.hidden_out_norm, rtol=1e-4)


@pytest.mark.parametrize(
    ("temperature", "top_k", "method"), [(0.0, 0, "greedy"), (0.7, 9, "greedy"), (0.9, 0, "probabilistic")]
)
@pytest.mark.parametrize("has_prefix", [False, True])
def test_a_batch_of_requests_goes_the_way_of_each_alone(
    pair: Pair, tokenizer: PreTrainedTokenizerFast, temperature: float, top_k: int, method: str, has_prefix: bool
) -> None:
    """Prompts of unequal length, one response that stops early: tokens, drafts and starts, and what is left to record."""
    prompts = [prompt_ids(tokenizer, turn) for turn in USER_TURNS]
    shared = next(i for i in range(99) if len({tuple(p[: i + 1]) for p in prompts}) > 1)
    options = LiveOptions(
        depth=DEPTH,
        max_new_tokens=MAX_NEW_TOKENS,
        sampler=Sampler(temperature, 1, top_k=top_k),
        draft_sample_method=method,
    )
    if has_prefix:
        prefix = pair.target.prefill(prompts[0][:shared])
        ids = torch.as_tensor(prompts[0][:shared], dtype=torch.int64)
        options = replace(options, prefix=prefix, slots=prefill(pair.drafter, ids, prefix.aux))
    names = [f"p{i}" for i in range(len(prompts))]
    endless = run_live_batch(pair.drafter, pair.target, [prompts[1]], [names[1]], options)[0][0]
    set_stop(pair, response_of(endless)[9])
    together = run_live_batch(pair.drafter, pair.target, prompts, names, options)
    num_rounds = []
    for prompt, name, (trace, rounds) in zip(prompts, names, together, strict=True):
        alone_trace, alone = run_live_batch(pair.drafter, pair.target, [prompt], [name], options)[0]
        assert trace.token_ids.tolist() == alone_trace.token_ids.tolist()
        assert (trace.finish_reason, trace.num_response_tokens) == (
            alone_trace.finish_reason,
            alone_trace.num_response_tokens,
        )
        assert rounds.starts == alone.starts
        assert torch.equal(torch.stack(rounds.drafts), torch.stack(alone.drafts))
        torch.testing.assert_close(trace.logits, alone_trace.logits, rtol=0, atol=1e-4)
        for i, state in trace.aux.items():
            torch.testing.assert_close(state, alone_trace.aux[i], rtol=0, atol=1e-4)
        num_rounds.append(len(rounds.starts))
    assert len(set(num_rounds)) > 1


@pytest.mark.parametrize("cut", [{"top_k": 6}, {"top_p": 0.8}])
def test_a_cut_text_is_the_same_by_plain_decoding_live_and_replay(
    pair: Pair, tokenizer: PreTrainedTokenizerFast, cut: dict[str, Any]
) -> None:
    prompt, sampler = prompt_ids(tokenizer, USER_TURNS[1]), Sampler(1.5, 4, **cut)
    live_options = LiveOptions(depth=DEPTH, max_new_tokens=MAX_NEW_TOKENS, sampler=sampler)
    trace, rounds = run_live_batch(pair.drafter, pair.target, [prompt], ["p"], live_options)[0]
    looped = record_live(pair.drafter, trace, rounds, prompt_record(trace), name="d")
    options = {"max_new_tokens": MAX_NEW_TOKENS, "num_continuation_tokens": DEPTH, "sampler": sampler}
    text = write(pair.target, [prompt], ["p"], **options)[0]
    assert response_of(text) == response_of(trace)
    assert_walk_is_live(replay(pair.drafter, text, prompt_record(text), name="d", depth=DEPTH), looped)
    for row, t in enumerate(looped.start.tolist()):
        for k in range(DEPTH):
            if looped.accepted[row, k] < 0:
                continue
            logits = text.logits[t + k + 2 - len(prompt)]
            p = sampler.sampling.probabilities(logits)
            assert looped.target_prob_of_draft[row, k] == pytest.approx(float(p[looped.draft_token[row, k]]), abs=1e-5)
            assert looped.target_rank_of_draft[row, k] == int((logits > logits[looped.draft_token[row, k]]).sum())
            assert p[looped.target_token[row, k]] > 0


def test_sampled_text_is_the_same_by_plain_decoding_live_and_replay(
    pair: Pair, tokenizer: PreTrainedTokenizerFast
) -> None:
    reasons: set[int] = set()
    for turn in USER_TURNS:
        prompt = prompt_ids(tokenizer, turn)
        trace, looped = live(pair, prompt, temperature=0.7)
        text = written(pair, prompt, temperature=0.7)
        assert looped is not None
        assert response_of(trace) == response_of(text)
        assert response_of(text) != response_of(written(pair, prompt))
        replayed = replay(pair.drafter, text, prompt_record(text), name="d", depth=DEPTH)
        assert_walk_is_live(replayed, looped)
        assert_rounds_add_up(looped, trace)
        reasons |= set(looped.rejection_reason.ravel().tolist())
        for row, t in enumerate(
            looped.start.tolist()
        ):  # an accepted draft is the emitted token, a sampled-out one p's best
            for k in range(DEPTH):
                logits = text.logits[t + k + 2 - len(prompt)]
                if looped.rejection_reason[row, k] == RejectionReason.sampled_out:
                    assert looped.draft_token[row, k] == int(logits.argmax())
                    assert looped.draft_token[row, k] != int(text.token_ids[t + k + 2])
                if looped.accepted[row, k] >= 0:
                    assert looped.target_token[row, k] == int(text.token_ids[t + k + 2])
                    p = (logits / 0.7).softmax(-1)[looped.draft_token[row, k]]
                    assert looped.target_prob_of_draft[row, k] == pytest.approx(float(p), rel=1e-3)
    assert reasons >= {RejectionReason.none, RejectionReason.sampled_out, RejectionReason.out_of_draft_vocab}


def test_batches_and_prefixes_write_what_plain_decoding_writes(pair: Pair, tokenizer: PreTrainedTokenizerFast) -> None:
    """The texts that replay starts from, with their states and logits."""
    prompts = [prompt_ids(tokenizer, turn) for turn in USER_TURNS]
    shared = next(i for i in range(99) if len({tuple(p[: i + 1]) for p in prompts}) > 1)
    for prefix in (None, pair.target.prefill(prompts[0][:shared])):
        traces = write(
            pair.target,
            prompts,
            [str(i) for i in range(len(prompts))],
            max_new_tokens=12,
            num_continuation_tokens=DEPTH,
            sampler=Sampler(),
            prefix=prefix,
        )
        for prompt, trace in zip(prompts, traces, strict=True):
            plain, logits = decode_plainly(pair, prompt, 12 + DEPTH)
            assert trace.token_ids.tolist() == [*prompt.tolist(), *plain]
            assert (trace.num_prompt_tokens, trace.num_response_tokens) == (len(prompt), 12)
            torch.testing.assert_close(trace.logits, logits, rtol=0, atol=1e-4)
            states, _ = captured(pair.model, trace.token_ids, pair.spec)
            aux = torch.cat([trace.aux[i] for i in pair.spec.aux_layer_ids], -1)
            num_slots = len(trace.token_ids) - 1
            torch.testing.assert_close(aux[:num_slots], states[:num_slots], rtol=0, atol=1e-4)


def test_forced_text_is_scored_to_the_first_disagreement_and_makes_no_walk(
    pair: Pair, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompt = prompt_ids(tokenizer, USER_TURNS[1])
    own = written(pair, prompt)
    changed = response_of(own)
    # at one place the text holds the draft that the target refuses, at a later one what neither wants
    refused = replay(pair.drafter, own, prompt_record(own), name="d", depth=DEPTH)
    row_refused = next(i for i, num_accepted in enumerate(refused.accepted_drafts) if i >= 3 and num_accepted == 0)
    changed[row_refused + 1] = int(refused.draft_token[row_refused, 0])
    changed[24] = (changed[24] + 1) % pair.spec.vocab_size
    text = np.asarray([*prompt.tolist(), *changed], np.int32)
    trace = pair.target.read(text, len(prompt))
    assert trace.is_forced
    assert trace.finish_reason == "forced"
    with torch.no_grad():
        logits = pair.model(torch.as_tensor(text, dtype=torch.int64)[None]).logits[0]
    torch.testing.assert_close(trace.logits[:], logits[len(prompt) - 1 : -1], rtol=0, atol=1e-4)
    best = logits.argmax(-1).tolist()  # of the token after each position
    disagrees = [p for p in range(len(prompt), len(text)) if best[p - 1] != text[p]]
    assert {len(prompt) + row_refused + 1, len(prompt) + 24} <= set(disagrees)

    batch = replay(pair.drafter, trace, prompt_record(trace), name="d", depth=DEPTH)
    assert not batch.on_walk.any()
    assert batch.num_trimmed_tokens is None
    assert batch.draft_token[row_refused, 0] == changed[row_refused + 1]
    assert batch.accepted_drafts[row_refused] == 0  # equal to the text is not accepted by the target
    num_censored = 0
    for row, t in enumerate(batch.start.tolist()):
        is_open, was_rejected = True, False  # still scored; a draft was refused
        for k in range(DEPTH):
            place = t + 2 + k
            draft, reason = batch.draft_token[row, k], batch.rejection_reason[row, k]
            if not is_open or place >= len(text):
                num_censored += not was_rejected
                assert batch.accepted[row, k] == -1
                assert batch.target_token[row, k] == -1
                assert reason == (RejectionReason.not_reached if was_rejected else RejectionReason.past_end)
                is_open = False
                continue
            is_right = draft == best[place - 1]
            assert batch.accepted[row, k] == is_right
            assert batch.target_token[row, k] == best[place - 1]
            assert (reason == RejectionReason.none) == is_right
            was_rejected = not is_right
            is_open = bool(is_right) and place not in disagrees
        labels = range(t + 2, t + 2 + DEPTH)
        assert batch.has_all_labels[row] == (labels[-1] < len(text) and not set(labels[:-1]) & set(disagrees))
    assert num_censored > 0
    assert batch.accepted_drafts.max() >= 2
