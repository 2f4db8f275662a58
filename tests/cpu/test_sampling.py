"""Sampling does not change what a target says: emitted tokens have the target's own distribution, by both of vLLM's rules.

Exact distributions are written out here: every text of a tiny vocabulary with its probability, by plain loops.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from probes.chain.live import LiveOptions, record_live, run_live_batch
from probes.chain.verification import DRAFT_STREAM, by_equality, by_rejection
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.record import TEXT_REGIONS, PromptRecord, RejectionReason
from probes.target.model import Target
from probes.target.sampler import Sampler, Sampling
from tests.tiny_models import random_tensors, tiny_spec, vocab_map

NUM_IDS, DRAFT_IDS = 7, torch.tensor([0, 1, 3, 4, 6])
CUTS = {
    "all": Sampling(0.8),
    "top-k": Sampling(1.3, top_k=4),
    "top-p": Sampling(0.9, top_p=0.8),
    "both": Sampling(1.1, top_k=5, top_p=0.9),
}
MIN_P_VALUE = 1e-3  # of a correct sampler, one seeded test in a thousand would fail: these seeds do not


def exact(logits: Tensor, sampling: Sampling) -> np.ndarray:
    """One row's distribution: divide, keep the k largest, then the largest that hold p, renormalise."""
    p = np.exp(logits.double().numpy() / sampling.temperature)
    order = np.argsort(-p)
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    p /= p.sum()
    kept, held = np.zeros_like(p), 0.0
    for index in order:
        if held >= sampling.top_p:
            break
        kept[index], held = p[index], held + p[index]
    return kept / kept.sum()


def assert_distributed(texts: list[tuple[int, ...]], probability: dict[tuple[int, ...], float]) -> None:
    """Chi-square of the counts against exact probabilities; cells that expect fewer than 5 are put together."""
    assert all(probability.get(text, 0.0) > 0 for text in texts), "a text that the target never says"
    counts = {text: 0 for text in probability}
    for text in texts:
        counts[text] += 1
    cells = sorted(probability, key=probability.__getitem__)
    observed, expected = [0.0], [0.0]
    for text in cells:
        if expected[-1] >= 5:
            observed.append(0.0)
            expected.append(0.0)
        observed[-1] += counts[text]
        expected[-1] += probability[text] * len(texts)
    assert len(expected) >= 5
    found = chisquare(observed, np.array(expected) * sum(observed) / sum(expected))
    assert found.pvalue > MIN_P_VALUE, f"p = {found.pvalue:.2g} over {len(expected)} cells"


@pytest.mark.parametrize("sampling", CUTS.values(), ids=CUTS.keys())
def test_cuts_are_topk_then_topp(sampling: Sampling) -> None:
    logits = 2 * torch.randn(200, 11, generator=torch.Generator().manual_seed(0))
    found = sampling.probabilities(logits)
    for row, one in zip(found, logits, strict=True):
        np.testing.assert_allclose(row.numpy(), exact(one, sampling), atol=1e-6)


def test_nothing_is_cut_at_temperature_0_and_the_best_token_always_stays() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    assert Sampling(0.0, top_k=1, top_p=0.1).cut(logits) is logits
    assert Sampler(0.0, top_k=1)(logits, [("p", 0)]).tolist() == [1]
    assert Sampling(1.0, top_p=1e-6).probabilities(logits).tolist() == [[0.0, 1.0, 0.0]]
    tied = torch.tensor([2.0, 2.0, 1.0])
    torch.testing.assert_close(Sampling(1.0, top_k=1).probabilities(tied), torch.tensor([0.5, 0.5, 0.0]))


def test_gap_is_the_least_that_makes_the_other_token_the_choice() -> None:
    assert Sampler().gap(torch.tensor([1.0, 4.0, 3.0, -2.0]), ("p", 3), 1, 2) == 1.0
    generator = torch.Generator().manual_seed(0)
    num_cut = 0
    for place in range(60):
        logits, key = 2 * torch.randn(5, generator=generator), ("p", place)
        sampler = Sampler(0.7, seed=2, top_k=(0, 2, 0)[place % 3], top_p=(1.0, 1.0, 0.6)[place % 3])
        chosen = int(sampler(logits[None], [key]))
        uncut = Sampler(0.7, seed=2).scores(logits[None], [key])[0]
        uncut[chosen] = -torch.inf
        other = int(uncut.argmax())  # of all that were not chosen: no third one comes between
        num_cut += sampler.sampling.cut(logits)[other] == -torch.inf
        gap = sampler.gap(logits, key, chosen, other)
        for share in (0.99, 1.01):
            moved = logits.clone()
            moved[other] += share * gap / 2
            moved[chosen] -= share * gap / 2
            assert (int(sampler(moved[None], [key])) == other) == (share > 1)
    assert num_cut > 5


class Chain:
    """A target and a drafter that look at the last token only: rows of logits."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.target = 1.5 * torch.randn(NUM_IDS, NUM_IDS, generator=generator)
        self.drafter = self.target[:, DRAFT_IDS] + torch.randn(NUM_IDS, len(DRAFT_IDS), generator=generator)

    def probability(self, sampling: Sampling, num_tokens: int) -> dict[tuple[int, ...], float]:
        rows = np.stack([exact(row, sampling) for row in self.target])
        found = {}
        for text in itertools.product(range(NUM_IDS), repeat=num_tokens):
            places = zip((0, *text), text, strict=False)
            found[text] = float(np.prod([rows[before, token] for before, token in places]))
        return {text: p for text, p in found.items() if p > 0}

    def speculate(self, sampler: Sampler, num_texts: int, num_tokens: int, depth: int, rule: str) -> list[list[int]]:
        """Rounds until every text, begun with token 0, has so many tokens more."""
        texts: list[list[int]] = [[0] for _ in range(num_texts)]
        while min(map(len, texts)) <= num_tokens:
            rows = [r for r, text in enumerate(texts) if len(text) <= num_tokens]
            keys = [[(str(r), len(texts[r]) + k) for k in range(depth + 1)] for r in rows]
            token = torch.tensor([texts[r][-1] for r in rows])
            drafted, logits = [], []
            for k in range(depth):
                logits.append(self.drafter[token])
                scores = logits[-1] / sampler.temperature
                if rule == "probabilistic":
                    noise = sampler.exponential(
                        len(DRAFT_IDS), [key[k] for key in keys], token.device, stream=DRAFT_STREAM
                    )
                    scores = scores - noise.log()
                drafted.append(scores.argmax(dim=-1))
                token = DRAFT_IDS[drafted[-1]]
            row = torch.stack(drafted, dim=1)
            before = torch.cat([torch.tensor([[texts[r][-1]] for r in rows]), DRAFT_IDS[row]], dim=1)
            target_logits = self.target[before]
            if rule == "greedy":
                verified = by_equality(sampler, target_logits, DRAFT_IDS[row], keys)
            else:
                verified = by_rejection(
                    sampler, target_logits, DRAFT_IDS[row], row, torch.stack(logits, dim=1), DRAFT_IDS, keys
                )
            for place, r in enumerate(rows):
                texts[r] += verified.emitted[place, : int(verified.accepted[place]) + 1].tolist()
        return [text[1 : num_tokens + 1] for text in texts]


@pytest.mark.parametrize("rule", ["greedy", "probabilistic"])
@pytest.mark.parametrize("sampling", CUTS.values(), ids=CUTS.keys())
def test_rounds_emit_the_targets_distribution(sampling: Sampling, rule: str) -> None:
    """3 tokens by rounds of K = 2: drafts, residuals and bonus tokens all occur, across the borders of rounds."""
    chain = Chain(seed=3)
    sampler = Sampler(sampling.temperature, 11, top_k=sampling.top_k, top_p=sampling.top_p)
    texts = chain.speculate(sampler, 6000, 3, 2, rule)
    assert_distributed([tuple(text) for text in texts], chain.probability(sampling, 3))


def test_the_chi_square_notices_a_wrong_rule() -> None:
    """Drafts drawn, then accepted as if they had been greedy ones: p(draft) in place of min(1, p/q)."""
    chain, sampler, sampling = Chain(seed=3), Sampler(1.0, 11), Sampling(1.0)
    own = sampler.uniform([(str(r), 0) for r in range(4000)], torch.device("cpu"), stream="")
    q = (chain.drafter[0]).softmax(-1)
    drafts = DRAFT_IDS[torch.multinomial(q, 4000, replacement=True, generator=torch.Generator().manual_seed(0))]
    p = torch.as_tensor(exact(chain.target[0], sampling))
    texts = []
    for draft, u in zip(drafts.tolist(), own.tolist(), strict=True):
        rest = p.clone()
        rest[draft] = 0
        texts.append((draft if u < p[draft] else int(rest.argmax()),))
    with pytest.raises(AssertionError, match="p = "):
        assert_distributed(texts, chain.probability(sampling, 1))


# ---- the whole loop


@pytest.fixture(scope="module")
def target() -> Target:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=NUM_IDS, hidden_size=48, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=64, eos_token_id=None, bos_token_id=None,
        attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(10)
    return Target(model, SimpleNamespace(eos_token_id=None), aux_layer_ids=(1, 2, 3))


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    spec = tiny_spec(vocab_size=NUM_IDS, draft_vocab_size=len(DRAFT_IDS), norm_output=True)
    return Eagle3.load(spec, random_tensors(spec, 3) | vocab_map(spec, DRAFT_IDS))


PROMPT = np.array([2, 5, 1], np.int32)
NUM_NEW, DEPTH = 4, 2


@torch.no_grad()
def exact_texts(target: Target, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Of the first three new tokens, the model asked again for every prefix."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        texts = list(found)
        ids = torch.tensor([[*PROMPT.tolist(), *text] for text in texts])
        rows = [exact(row, sampling) for row in target.model(ids).logits[:, -1]]
        found = {
            (*text, token): found[text] * float(p)
            for text, row in zip(texts, rows, strict=True)
            for token, p in enumerate(row)
            if p > 0
        }
    return found


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
@pytest.mark.parametrize("sampling", [CUTS["all"], CUTS["both"]], ids=["all", "both"])
def test_live_writes_the_targets_distribution(
    target: Target, drafter: Drafter, sampling: Sampling, method: str
) -> None:
    sampler = Sampler(sampling.temperature, 7, top_k=sampling.top_k, top_p=sampling.top_p)
    texts, num_accepted, num_rounds = [], 0, 0
    for batch in range(8):
        lived = run_live_batch(
            drafter,
            target,
            [PROMPT] * 500,
            [f"{batch}/{i}" for i in range(500)],
            LiveOptions(depth=DEPTH, max_new_tokens=NUM_NEW, sampler=sampler, draft_sample_method=method),
        )
        for trace, rounds in lived:
            texts.append(tuple(trace.token_ids[3:6].tolist()))
            num_accepted += len(trace.token_ids) - len(PROMPT) - 1 - len(rounds.starts)
            num_rounds += len(rounds.starts)
    assert 0.2 < num_accepted / num_rounds < 1.8  # both acceptance and rejection were put to the test
    assert_distributed(texts, exact_texts(target, sampling))


def test_probabilistic_drafts_are_recorded_with_the_distributions_they_were_judged_by(
    target: Target, drafter: Drafter
) -> None:
    sampling = Sampling(1.1, top_k=5, top_p=0.9)
    sampler = Sampler(1.1, 3, top_k=5, top_p=0.9)
    lived = run_live_batch(
        drafter,
        target,
        [PROMPT] * 40,
        [str(i) for i in range(40)],
        LiveOptions(depth=3, max_new_tokens=20, sampler=sampler, draft_sample_method="probabilistic"),
    )
    accepted, overlap, reasons = [], [], set()
    for number, (trace, rounds) in enumerate(lived):
        num_tokens = len(trace.token_ids)
        region = np.full(num_tokens, TEXT_REGIONS.index("user"), np.uint8)
        prompt = PromptRecord(
            prompt_id=str(number), system_prompt="none", template="default", context_tokens=0,
            token_ids=trace.token_ids.numpy().astype(np.int32), region=region, num_prompt_tokens=3,
            num_response_tokens=20, num_continuation_tokens=num_tokens - 23, finish_reason="length",
        )  # fmt: skip
        batch = record_live(drafter, trace, rounds, prompt, name="d")
        assert batch.fresh_right is not None
        assert (batch.fresh_right == -1).all()
        assert batch.rejection_reason is not None
        text, p = trace.token_ids.tolist(), sampling.probabilities(trace.logits[:]).numpy()
        for row, t in enumerate(batch.start.tolist()):
            assert batch.accepted_drafts[row] == (batch.accepted[row] == 1).sum()
            for k in range(3):
                draft = int(batch.draft_token[row, k])
                assert draft in DRAFT_IDS.tolist()
                reasons.add(int(batch.rejection_reason[row, k]))
                if batch.accepted[row, k] < 0:
                    continue
                here = p[t + k + 1 - 2]
                assert batch.target_token[row, k] == text[t + k + 2]
                assert bool(batch.accepted[row, k]) == (draft == text[t + k + 2])
                assert batch.target_prob_of_draft[row, k] == pytest.approx(float(here[draft]), abs=1e-5)
                accepted.append(int(batch.accepted[row, k]))
                overlap.append(float(batch.overlap[row, k]))
                if batch.accepted[row, k] == 1:
                    assert here[draft] > 0
                if batch.rejection_reason[row, k] == RejectionReason.sampled_out:
                    assert draft == int(here.argmax())
                    assert batch.draft_prob[row, k] > batch.target_prob_of_draft[row, k]
    assert reasons >= {RejectionReason.none, RejectionReason.disagreement, RejectionReason.out_of_draft_vocab}
    # a draft is accepted with probability sum min(p, q), whatever it is
    error = np.sqrt(np.mean(np.array(overlap) * (1 - np.array(overlap))) / len(overlap))
    assert abs(np.mean(accepted) - np.mean(overlap)) < 4 * error
