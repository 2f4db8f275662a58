"""Replay in float32 against the float64 oracle: every start, every flag, every recorded quantity.

Texts are made so that rounds accept 0 to K drafts: the oracle drafts a chain, some of its tokens are taken over as if a
target had agreed, then one is not. The target's logits are random but for their argmax, which is the text.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count, cycle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.attention import kernel, masses
from probes.attention.slots import slot_regions
from probes.chain import replay as replay_module
from probes.chain import step as chain_module
from probes.chain.replay import replay
from probes.chain.step import prefill, step
from probes.checkpoint.spec import DrafterSpec
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.layers import llama
from probes.errors import InputError, SelfCheckError
from probes.interventions.acceptance import accept
from probes.record import NUM_CANDIDATES, REGIONS, TEXT_REGIONS, PromptRecord, RejectionReason, RoundBatch
from probes.target import vocab_rows
from probes.target.trace import TargetTrace
from tests.reference_decoder import ChainStep, ReferenceDecoder
from tests.tiny_models import random_tensors, random_text, tiny_spec

TOLERANCE = 1e-4  # of the largest reference value
ZERO_SCALE = 1e-2  # the scale of a column that is zero by definition
TIE_GAP = 1e-4  # a draft with a smaller logit gap may go either way, and so may the rest of its chain
DEPTH = 6
NUM_ACCEPTED = (2, 0, DEPTH, 1, 4, 0, 3)  # rounds of a made text, in turn
NUM_PROMPT, NUM_RESPONSE = 11, 14

FLAGS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3.1": {"norm_output": True, "has_fc_norm": True},
    "norm_before_fc": {"norm_output": True, "norm_before_fc": True},
    "both fusion norms": {"norm_before_fc": True, "has_fc_norm": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_residual, norm_output": {"norm_before_residual": True, "norm_output": True},
    "no aux states": {"use_aux_hidden_state": False},
    "no aux states, no hidden norm": {"use_aux_hidden_state": False, "has_hidden_norm": False},
    "biases": {"has_fc_bias": True, "attention_bias": True, "has_o_proj_bias": True},
    "biases of q, k and v only": {"attention_bias": True, "norm_output": True},
    "qwen3": {"family": "qwen3", "norm_output": True, "has_fc_norm": True},
    "qwen3, biases, wide heads": {"family": "qwen3", "attention_bias": True, "head_dim": 16, "rope": "yarn"},
    "two aux states, identity vocabulary": {
        "aux_layer_ids": (1, 3),
        "draft_vocab_size": 160,
        "has_vocab_map": False,
        "target_hidden_size": 32,
    },
    "one kv head a head": {"num_kv_heads": 6, "rope": "linear", "logit_scale": 0.5},
    "three heads a kv head, wide heads": {"num_kv_heads": 2, "head_dim": 16, "rope": "llama3"},
    "eight heads a kv head": {"num_heads": 8, "num_kv_heads": 1, "head_dim": 8, "rope": "yarn"},
}


def make_text(
    spec: DrafterSpec, tensors: dict[str, torch.Tensor], *, num_prompt: int, num_tokens: int, seed: int
) -> tuple[TargetTrace, ReferenceDecoder]:
    """A text of `num_tokens` that a target could have written: its argmax is the text everywhere after the prompt."""
    token_ids, aux = random_text(spec, num_tokens, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    t, turns = num_prompt - 1, cycle(NUM_ACCEPTED)
    while t + 2 < num_tokens:
        num_accepted = next(turns)
        chain = ReferenceDecoder(spec, tensors, token_ids, aux).chain(t, num_accepted) if num_accepted else []
        agreed = torch.tensor([s.token for s in chain], dtype=torch.int64)[: num_tokens - t - 2]
        token_ids[t + 2 : t + 2 + len(agreed)] = agreed
        t += num_accepted + 1
    logits = torch.randn(num_tokens - num_prompt, spec.vocab_size, generator=generator)
    logits.scatter_(1, token_ids[num_prompt:, None], logits.amax(-1, keepdim=True) + 1)
    trace = TargetTrace(
        token_ids=token_ids,
        num_prompt_tokens=num_prompt,
        num_response_tokens=num_tokens - num_prompt - DEPTH,
        finish_reason="length",
        aux={i: a.float() for i, a in zip(spec.aux_layer_ids, aux.chunk(spec.num_aux, -1), strict=True)},
        logits=logits,
    )
    return trace, ReferenceDecoder(spec, tensors, token_ids, aux.float())


def make_prompt(trace: TargetTrace, seed: int) -> PromptRecord:
    region = np.random.default_rng(seed).integers(0, len(TEXT_REGIONS), len(trace.token_ids)).astype(np.uint8)
    region[trace.num_prompt_tokens :] = TEXT_REGIONS.index("response")
    return PromptRecord(
        prompt_id="p0",
        system_prompt="none",
        template="default",
        context_tokens=0,
        token_ids=trace.token_ids.numpy().astype(np.int32),
        region=region,
        num_prompt_tokens=trace.num_prompt_tokens,
        num_response_tokens=trace.num_response_tokens,
        num_continuation_tokens=len(trace.token_ids) - trace.num_prompt_tokens - trace.num_response_tokens,
        finish_reason=trace.finish_reason,
    )


def region_mass(step: ChainStep, *, start: int, sink_slots: int, region: np.ndarray) -> dict[str, torch.Tensor]:
    """Region -> [layer, head]: each slot of one query goes to the first region that claims it."""
    mass = {name: torch.zeros(step.attention.shape[:2], dtype=torch.float64) for name in REGIONS}
    for slot in range(step.slot + 1):
        if slot > start:
            name = "own"
        elif slot == start:
            name = "current"
        elif slot < sink_slots:
            name = "sink"
        else:
            name = TEXT_REGIONS[region[slot]]
        mass[name] += step.attention[:, :, slot]
    return mass


def assert_close(actual: np.ndarray, expected: list[Any] | np.ndarray, what: str) -> None:
    """max |d| <= TOLERANCE * max |reference|."""
    reference = np.asarray(expected, np.float64)
    assert actual.shape == reference.shape, f"{what}: {actual.shape} instead of {reference.shape}"
    assert np.isfinite(actual).all(), f"{what} is not finite"
    largest = max(np.abs(reference).max(), ZERO_SCALE)
    difference = np.abs(actual.astype(np.float64) - reference).max()
    assert difference <= TOLERANCE * largest, f"{what}: {difference:.3g} apart, the largest value is {largest:.3g}"


def compare(
    batch: RoundBatch,
    trace: TargetTrace,
    oracle: ReferenceDecoder,
    chains: list[list[ChainStep]],
    prompt: PromptRecord,
    *,
    sink_slots: int = 1,
) -> None:
    """Every column that stands in a replay's record."""
    spec = oracle.spec
    starts = range(trace.num_prompt_tokens - 1, trace.num_prompt_tokens + trace.num_response_tokens - 2)
    assert batch.start.tolist() == list(starts)
    fresh = [[oracle.fresh(t + k) for k in range(DEPTH)] for t in starts]

    assert batch.draft_token.tolist() == [[s.token for s in c] for c in chains]
    assert batch.fresh_token is not None
    assert batch.fresh_token.tolist() == [[s.token for s in f] for f in fresh]

    def of(quantity: Any) -> np.ndarray:
        """[round, depth, ...] of the oracle."""
        return np.stack([[np.asarray(quantity(s)) for s in c] for c in chains])

    assert_close(batch.hidden_in_norm, of(lambda s: s.hidden_in.norm(dim=-1)), "hidden_in_norm")
    assert_close(batch.hidden_out_norm, of(lambda s: s.hidden_out.norm(dim=-1)), "hidden_out_norm")
    assert_close(batch.hidden_feedback_norm, of(lambda s: s.feedback.norm()), "hidden_feedback_norm")
    assert_close(batch.branch_norm_attn, of(lambda s: s.branch_norm_attn), "branch_norm_attn")
    assert_close(batch.branch_norm_mlp, of(lambda s: s.branch_norm_mlp), "branch_norm_mlp")
    assert_close(batch.input_share_embed, of(lambda s: s.input_share_embed), "input_share_embed")
    probability = of(lambda s: s.logits.softmax(-1))
    assert_close(batch.draft_prob, probability.max(-1), "draft_prob")
    assert_close(batch.draft_entropy, -(probability * np.log(probability)).sum(-1), "draft_entropy")
    assert_close(batch.attention_entropy, of(lambda s: s.attention_entropy), "attention_entropy")

    where = {"sink_slots": sink_slots, "region": prompt.region}
    mass = [[region_mass(s, start=t, **where) for s in c] for t, c in zip(batch.start.tolist(), chains, strict=True)]
    fresh_mass = [[region_mass(s, start=s.slot, **where) for s in f] for f in fresh]
    recent = np.stack(  # a depth-1 query's mass on the k-1 slots up to its own
        [[np.asarray(s.attention[..., s.slot + 1 - k :].sum(-1) * (k > 0)) for k, s in enumerate(f)] for f in fresh]
    )
    assert set(batch.mass) == set(REGIONS)
    for name in REGIONS:
        assert_close(batch.mass[name], [[np.asarray(m[name]) for m in c] for c in mass], f"mass of {name}")
    assert_close(sum(batch.mass.values()), np.ones_like(batch.mass["own"]), "sum of the masses")
    own = np.stack([[np.asarray(m["own"]) for m in c] for c in mass])
    sink = np.stack([[np.asarray(m["sink"]) for m in c] for c in mass])
    fresh_sink = np.stack([[np.asarray(m["sink"]) for m in c] for c in fresh_mass])
    assert_close(batch.recent_mass, recent, "recent_mass")
    assert_close(batch.own_excess, own - recent, "own_excess")
    assert_close(batch.sink_deficit, fresh_sink - sink, "sink_deficit")

    slots = batch.start
    assert_close(batch.aux_norm, oracle.fusion.aux_norm[slots], "aux_norm")
    if spec.has_fc:
        assert_close(batch.fusion_share, oracle.fusion.share[slots], "fusion_share")
        assert_close(batch.fusion_energy, oracle.fusion.energy[slots], "fusion_energy")
    else:
        assert batch.fusion_share is None
        assert batch.fusion_energy is None
    if spec.has_fc_bias:
        assert_close(batch.fusion_share_bias, oracle.fusion.share_bias[slots], "fusion_share_bias")
    else:
        assert batch.fusion_share_bias is None

    compare_acceptance(batch, trace, chains, oracle)


def assert_candidates(token: np.ndarray, probability: np.ndarray, of_all: torch.Tensor) -> None:
    """The most probable ones, best first, each with its own probability, to half precision."""
    best = np.asarray(of_all.topk(NUM_CANDIDATES).values)
    np.testing.assert_allclose(probability, best, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(np.asarray(of_all[token.tolist()]), best, rtol=1e-3, atol=1e-6)
    assert len(set(token.tolist())) == NUM_CANDIDATES


def compare_acceptance(
    batch: RoundBatch, trace: TargetTrace, chains: list[list[ChainStep]], oracle: ReferenceDecoder
) -> None:
    """Round by round, in plain words: compare the drafts with the text until one differs."""
    spec, text = oracle.spec, trace.token_ids.tolist()
    d2t = oracle.tensors["d2t"] if spec.has_vocab_map else 0
    draft_ids = torch.arange(spec.draft_vocab_size) + d2t
    assert batch.target_prob_of_draft is not None
    assert batch.overlap is not None
    for row, (t, chain) in enumerate(zip(batch.start.tolist(), chains, strict=True)):
        num_accepted = 0
        while num_accepted < DEPTH and chain[num_accepted].token == text[t + 2 + num_accepted]:
            num_accepted += 1
        assert batch.accepted_drafts[row] == num_accepted
        for k, s in enumerate(chain):  # index k is depth k + 1
            seen = k <= num_accepted
            emitted = text[t + 2 + k]
            p = trace.logits[t + k + 2 - trace.num_prompt_tokens].double().softmax(-1)
            q = torch.zeros_like(p).scatter(0, draft_ids, s.logits.softmax(-1))
            if k < num_accepted:
                reason = RejectionReason.none
            elif k > num_accepted:
                reason = RejectionReason.not_reached
            elif emitted not in draft_ids:
                reason = RejectionReason.out_of_draft_vocab
            else:
                reason = RejectionReason.disagreement
            assert batch.accepted[row, k] == (int(k < num_accepted) if seen else -1)
            assert batch.rejection_reason[row, k] == reason
            assert batch.target_token[row, k] == (emitted if seen else -1)
            assert batch.fresh_right[row, k] == (batch.fresh_token[row, k] == emitted)
            assert batch.draft_top_token[row, k, 0] == s.token
            assert_candidates(batch.draft_top_token[row, k], batch.draft_top_prob[row, k], q)
            assert batch.target_rank_of_draft[row, k] == (int((p > p[s.token]).sum()) if seen else -1)
            if seen:
                assert batch.target_prob_of_draft[row, k] == pytest.approx(float(p[s.token]), rel=1e-4)
                assert batch.overlap[row, k] == pytest.approx(float(torch.minimum(p, q).sum()), rel=1e-4)
                assert_candidates(batch.target_top_token[row, k], batch.target_top_prob[row, k], p)
            else:
                assert (batch.target_top_token[row, k] == -1).all()
                assert np.isnan(batch.target_top_prob[row, k]).all()
                assert np.isnan(batch.target_prob_of_draft[row, k])
                assert np.isnan(batch.overlap[row, k])
    assert batch.has_all_labels.all()
    assert (batch.num_drafts == DEPTH).all()

    end, t, walk = trace.num_prompt_tokens + trace.num_response_tokens, trace.num_prompt_tokens - 1, []
    while t < end - 2:
        walk.append(t)
        t += int(batch.accepted_drafts[t - batch.start[0]]) + 1
    assert batch.start[batch.on_walk].tolist() == walk
    assert batch.num_trimmed_tokens == t - (end - 2)
    emitted_on_walk = int((batch.accepted_drafts[batch.on_walk] + 1).sum())
    assert 1 + emitted_on_walk - batch.num_trimmed_tokens == trace.num_response_tokens


def check(
    flags: dict[str, Any],
    *,
    seed: int = 0,
    num_prompt: int = NUM_PROMPT,
    sink_slots: int = 1,
    num_response: int = NUM_RESPONSE,
) -> RoundBatch:
    """Replays a made text; a seed that makes a draft tie gives way to the next one."""
    spec = tiny_spec(**flags)
    num_tokens = num_prompt + num_response + DEPTH
    for seed_used in count(seed):
        tensors = random_tensors(spec, seed_used)
        trace, oracle = make_text(spec, tensors, num_prompt=num_prompt, num_tokens=num_tokens, seed=seed_used + 100)
        chains = [oracle.chain(t, DEPTH) for t in range(num_prompt - 1, num_prompt + num_response - 2)]
        fresh = [oracle.fresh(slot) for slot in range(num_tokens - 1)]
        if min(s.gap for steps in (*chains, fresh) for s in steps) > TIE_GAP:
            break
    prompt = make_prompt(trace, seed)
    batch = replay(Eagle3.load(spec, tensors), trace, prompt, name="d", depth=DEPTH, sink_slots=sink_slots)
    compare(batch, trace, oracle, chains, prompt, sink_slots=sink_slots)
    return batch


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("window", [None, 9, 3])
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_replay_equals_the_oracle(flags: dict[str, Any], window: int | None, num_layers: int) -> None:
    batch = check(flags | {"sliding_window": window, "num_layers": num_layers})
    assert set(batch.accepted_drafts.tolist()) >= {0, 1, 2, DEPTH}


@pytest.mark.parametrize("window", [1, 2, DEPTH, DEPTH + 1, 64])
def test_replay_equals_the_oracle_at_the_edges_of_a_window(window: int) -> None:
    """1: a query sees itself only. 64: longer than the text."""
    check({"sliding_window": window}, seed=1)
    check({"sliding_window": (window, None), "num_layers": 2}, seed=1)


@pytest.mark.parametrize(("num_prompt", "sink_slots"), [(1, 1), (2, 4), (5, 0), (8, 4)])
def test_replay_equals_the_oracle_where_sink_and_starts_meet(num_prompt: int, sink_slots: int) -> None:
    check({}, seed=2, num_prompt=num_prompt, sink_slots=sink_slots)


def test_replay_equals_the_oracle_with_a_response_of_two_tokens() -> None:
    batch = check({}, seed=3, num_response=2)
    assert len(batch.start) == 1


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_states_and_logits_of_every_depth(flags: dict[str, Any]) -> None:
    """The record holds norms and probabilities only; here are the vectors behind them, all starts stepped together."""
    spec = tiny_spec(**flags, num_layers=2, sliding_window=(None, 4))
    tensors = random_tensors(spec, seed=4)
    trace, oracle = make_text(spec, tensors, num_prompt=5, num_tokens=18, seed=5)
    drafter = Eagle3.load(spec, tensors)
    first, num_rounds = 4, 7
    with torch.no_grad():
        cache = prefill(drafter, trace.token_ids, trace.aux)
        regions = slot_regions(
            make_prompt(trace, 0).region[: cache.num_slots], sink_slots=1, device=torch.device("cpu")
        )
        aux = torch.cat([trace.aux[i] for i in spec.aux_layer_ids], -1)[first : first + num_rounds]
        fused = drafter.true_state(aux)
        assert_close(fused.numpy(), oracle.fusion.fused[first : first + num_rounds], "fused state")
        token, hidden, own = trace.token_ids[first + 1 : first + 1 + num_rounds], fused, None
        chains = [oracle.chain(first + i, DEPTH) for i in range(num_rounds)]
        for k in range(DEPTH):
            out = step(drafter, cache, regions, token, hidden, start=first, own=own)
            assert_close(out.logits.numpy(), np.stack([c[k].logits for c in chains]), f"logits of depth {k + 1}")
            assert_close(out.feedback.numpy(), np.stack([c[k].feedback for c in chains]), f"state of depth {k + 1}")
            token, hidden, own = torch.tensor([c[k].token for c in chains]), out.feedback, out.own


def test_without_a_continuation_the_last_starts_lack_labels_and_fresh_queries() -> None:
    spec = tiny_spec()
    tensors = random_tensors(spec, seed=6)
    whole, _ = make_text(spec, tensors, num_prompt=6, num_tokens=24, seed=7)
    cut = replace(
        whole,
        token_ids=whole.token_ids[:-DEPTH],
        aux={i: a[: -DEPTH - 1] for i, a in whole.aux.items()},
        logits=whole.logits[:-DEPTH],
    )
    drafter = Eagle3.load(spec, tensors)
    full = replay(drafter, whole, make_prompt(whole, 0), name="d", depth=DEPTH)
    batch = replay(drafter, cut, make_prompt(cut, 0), name="d", depth=DEPTH)
    num_tokens = len(cut.token_ids)
    num_labels = np.minimum(num_tokens - 2 - batch.start, DEPTH)  # of the tokens t+2 ..
    assert batch.draft_token.tolist() == full.draft_token.tolist()
    assert batch.has_all_labels.tolist() == (num_labels == DEPTH).tolist()
    assert batch.accepted_drafts.tolist() == np.minimum(full.accepted_drafts, num_labels).tolist()
    assert batch.fresh_token is not None
    assert batch.sink_deficit is not None
    for row, num in enumerate(num_labels.tolist()):
        for k in range(DEPTH):
            reason = batch.rejection_reason[row, k]
            if k < num:
                assert reason == full.rejection_reason[row, k]
                assert batch.fresh_token[row, k] == full.fresh_token[row, k]
            else:  # the true-feature query at the last slot is there, its label is not
                is_cut_off = full.accepted_drafts[row] >= num
                assert reason == (RejectionReason.past_end if is_cut_off else RejectionReason.not_reached)
                assert batch.accepted[row, k] == -1
                assert batch.fresh_right[row, k] == -1
            has_fresh = batch.start[row] + k <= num_tokens - 2
            assert np.isfinite(batch.sink_deficit[row, k]).all() == has_fresh
            assert (batch.fresh_token[row, k] >= 0) == has_fresh


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_shared_prefix_and_small_blocks_change_nothing(num_layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny_spec(num_layers=num_layers, sliding_window=7)
    tensors = random_tensors(spec, seed=8)
    trace, _ = make_text(spec, tensors, num_prompt=10, num_tokens=26, seed=9)
    prompt, drafter = make_prompt(trace, 0), Eagle3.load(spec, tensors)
    plain = replay(drafter, trace, prompt, name="d", depth=DEPTH)
    with torch.no_grad():
        cache = prefill(drafter, trace.token_ids[:7], {i: a[:6] for i, a in trace.aux.items()})
    assert cache.num_slots == 6
    monkeypatch.setattr(kernel, "MAX_MASK_ELEMENTS", 60)  # two queries a block
    shared = replay(drafter, trace, prompt, name="d", depth=DEPTH, cache=cache)
    assert shared.draft_token.tolist() == plain.draft_token.tolist()
    assert_close(shared.hidden_out_norm, plain.hidden_out_norm, "hidden_out_norm")
    assert_close(shared.attention_entropy, plain.attention_entropy, "attention_entropy")
    for name in REGIONS:
        assert_close(shared.mass[name], plain.mass[name], name)


def test_rope_that_depends_on_length_is_refused_only_beyond_its_limit() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    for limit, is_refused in ((64, False), (16, True)):
        spec = tiny_spec(rope_parameters=rope, max_position_embeddings=limit)
        tensors = random_tensors(spec, seed=10)
        plain = tiny_spec()
        trace, _ = make_text(plain, tensors, num_prompt=6, num_tokens=24, seed=11)
        drafter, prompt = Eagle3.load(spec, tensors), make_prompt(trace, 0)
        if is_refused:
            with pytest.raises(InputError) as caught:
                replay(drafter, trace, prompt, name="d", depth=DEPTH)
            assert caught.value.code == "length_dependent_rope"
        else:
            batch = replay(drafter, trace, prompt, name="d", depth=DEPTH)
            same = replay(Eagle3.load(plain, tensors), trace, prompt, name="d", depth=DEPTH)
            assert batch.draft_token.tolist() == same.draft_token.tolist()


def test_a_response_of_one_token_has_no_round() -> None:
    spec = tiny_spec()
    tensors = random_tensors(spec, seed=12)
    trace, _ = make_text(spec, tensors, num_prompt=6, num_tokens=7 + DEPTH, seed=13)
    with pytest.raises(InputError) as caught:
        replay(Eagle3.load(spec, tensors), trace, make_prompt(trace, 0), name="d", depth=DEPTH)
    assert caught.value.code == "response_too_short"


@st.composite
def drafters(draw: st.DrawFn) -> DrafterSpec:
    num_kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (2, 3), (1, 8)]))
    num_aux = draw(st.integers(1, 4))
    return tiny_spec(
        num_kv_heads=num_kv_heads,
        num_heads=num_kv_heads * group,
        head_dim=draw(st.sampled_from([4, 8, 16])),
        hidden_size=draw(st.sampled_from([16, 24])),
        target_hidden_size=draw(st.sampled_from([8, 24])),
        aux_layer_ids=tuple(range(1, num_aux + 1)),
        num_layers=draw(st.integers(1, 2)),
        sliding_window=draw(st.none() | st.integers(1, 12)),
        has_fc_bias=draw(st.booleans()),
        has_fc_norm=draw(st.booleans()),
        norm_before_fc=draw(st.booleans()),
        norm_output=draw(st.booleans()),
        norm_before_residual=draw(st.booleans()),
        rope=draw(st.sampled_from(["default", "linear", "llama3", "yarn"])),
    )


@given(
    spec=drafters(),
    seed=st.integers(0, 2**16),
    depth=st.integers(1, 8),
    num_prompt=st.integers(1, 12),
    num_response=st.integers(2, 12),
    sink_slots=st.integers(0, 4),
    sharpness=st.sampled_from([0.1, 1.0, 8.0]),
)
@settings(max_examples=40, deadline=None)
def test_masses_and_fusion_shares_sum_to_one(
    spec: DrafterSpec, seed: int, depth: int, num_prompt: int, num_response: int, sink_slots: int, sharpness: float
) -> None:
    tensors = random_tensors(spec, seed)
    tensors["layers.0.self_attn.q_proj.weight"] *= sharpness
    num_tokens = num_prompt + num_response
    token_ids, aux = random_text(spec, num_tokens, seed)
    trace = TargetTrace(
        token_ids=token_ids,
        num_prompt_tokens=num_prompt,
        num_response_tokens=num_response,
        finish_reason="length",
        aux={i: a.float() for i, a in zip(spec.aux_layer_ids, aux.chunk(spec.num_aux, -1), strict=True)},
        logits=torch.nn.functional.one_hot(token_ids[num_prompt:], spec.vocab_size).float(),
    )
    drafter = Eagle3.load(spec, tensors)
    batch = replay(drafter, trace, make_prompt(trace, seed), name="d", depth=depth, sink_slots=sink_slots)

    masses = np.stack([batch.mass[name] for name in REGIONS])
    assert masses.shape == (len(REGIONS), num_response - 1, depth, spec.num_layers, spec.num_heads)
    np.testing.assert_allclose(masses.sum(0), 1.0, atol=2e-5)
    assert masses.min() >= 0
    assert (batch.mass["own"][:, 0] == 0).all()
    assert batch.attention_entropy is not None
    num_visible = batch.start[:, None] + np.arange(1, depth + 1)
    assert (batch.attention_entropy <= np.log(num_visible)[..., None, None] + 1e-4).all()
    assert batch.attention_entropy.min() >= -1e-4

    assert batch.fusion_share is not None
    assert batch.fusion_energy is not None
    total, size = batch.fusion_share.sum(-1), np.abs(batch.fusion_share).sum(-1)
    if spec.has_fc_bias:
        assert batch.fusion_share_bias is not None
        total, size = total + batch.fusion_share_bias, size + np.abs(batch.fusion_share_bias)
    assert (np.abs(total - 1) <= 1e-5 * size).all()
    np.testing.assert_allclose(batch.fusion_energy.sum(-1), 1.0, atol=1e-5)


def test_blocks_of_starts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 3, some of them at the end of the text, give what one block gives."""
    spec = tiny_spec(num_layers=2, sliding_window=(None, 5))
    tensors = random_tensors(spec, seed=8)
    trace, oracle = make_text(spec, tensors, num_prompt=6, num_tokens=30, seed=9)
    drafter, prompt = Eagle3.load(spec, tensors), make_prompt(trace, 0)
    whole = replay(drafter, trace, prompt, name="d", depth=DEPTH)
    counts = accept(drafter, trace, depth=DEPTH)
    monkeypatch.setattr(replay_module, "MIN_BLOCK_STARTS", 1)
    monkeypatch.setattr(replay_module, "CPU_BLOCK_STARTS", 3)
    blocks = replay(drafter, trace, prompt, name="d", depth=DEPTH)
    compare(blocks, trace, oracle, [oracle.chain(t, DEPTH) for t in whole.start.tolist()], prompt)
    assert blocks.on_walk.tolist() == whole.on_walk.tolist()
    again = accept(drafter, trace, depth=DEPTH)
    assert again.accepted.tolist() == counts.accepted.tolist()
    assert again.accepted_drafts.tolist() == whole.accepted_drafts.tolist()


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"norm_output": True, "has_fc_norm": True, "num_layers": 2, "sliding_window": (None, 4)},
        {"num_heads": 8, "num_kv_heads": 1, "head_dim": 24, "sliding_window": 3},
    ],
    ids=["eagle3", "two layers, window", "window smaller than K, odd head size"],
)
def test_replay_by_the_kernels_equals_the_oracle(monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any]) -> None:
    """A CUDA device's way: region masses, own chains, vocabulary rows, RoPE and shares by Triton, interpreted here."""
    pytest.importorskip("triton")
    for module, name in (
        (kernel, "has_kernel"), (masses, "has_kernel"), (vocab_rows, "has_vocab_kernel"), (llama, "has_layer_kernels"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda tensor: True)
    check(flags, seed=10, num_response=7)


def test_masses_that_do_not_sum_to_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny_spec()
    tensors = random_tensors(spec, seed=0)
    trace, _ = make_text(spec, tensors, num_prompt=NUM_PROMPT, num_tokens=NUM_PROMPT + NUM_RESPONSE + DEPTH, seed=0)
    right = chain_module.attend_regions

    def wrong(*arguments: Any) -> masses.BandAttention:
        found = right(*arguments)
        return found._replace(mass=found.mass * 1.01)

    monkeypatch.setattr(chain_module, "attend_regions", wrong)
    with pytest.raises(SelfCheckError, match=r"sum to 1\.00\d+ \.\. 1\.01000 instead of 1") as caught:
        replay(Eagle3.load(spec, tensors), trace, make_prompt(trace, 0), name="d", depth=DEPTH)
    assert caught.value.code == "masses_do_not_sum_to_one"
