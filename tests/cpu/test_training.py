"""The recipe: chain attention, the plain Llama, data handling, two training steps, and the checkpoint read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from driftscope.stats.degenerate import is_degenerate
from probes.checkpoint.read import read_spec
from probes.checkpoint.tensors import load_tensors
from probes.target.demo import demo_target_path
from training.attention import Packing, attend_flash, attend_plain
from training.conversations import (
    Conversations,
    draft_vocabulary,
    pack,
    response_mask,
    rows,
)
from training.evaluate import Answer, load_drafter, score
from training.generate import Scripts, Writers, passages_from, trimmed
from training.llama import Llama
from training.prepare import split
from training.train import KINDS, Recipe, Trainee, train

HEADER = [1, 520, 9531, 198]  # <|im_start|>assistant\n
DEMO_DRAFTERS = Path(__file__).parents[2] / "driftscope" / "_demo_drafters"


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo_target_path()


@pytest.fixture(scope="module")
def target(folder: Path) -> Llama:
    return Llama(folder, device="cpu", dtype=torch.float32)


def conversation(seed: int, num_prompt: int = 8, num_answer: int = 30) -> np.ndarray:
    generator = np.random.default_rng(seed)
    prompt = [1, *generator.integers(100, 140, num_prompt), 2, 198, *HEADER]
    return np.array([*prompt, *generator.integers(100, 140, num_answer), 2], dtype=np.uint16)


@pytest.mark.parametrize("num_own", [0, 1, 4])
def test_flash_backward_on_merged_softmax_is_the_plain_gradient(num_own: int) -> None:
    torch.manual_seed(num_own)
    shapes = [(23, 6), (23, 2), (23, 2), (num_own, 23, 2), (num_own, 23, 2)]
    inputs = [torch.randn(*shape, 16, dtype=torch.float64, requires_grad=True) for shape in shapes]
    packing = Packing(torch.zeros(23, dtype=torch.int32), torch.tensor([0, 23], dtype=torch.int32), 23)
    grad = torch.randn(23, 6, 16, dtype=torch.float64)
    used = [x for x in inputs if x.numel()]
    plain, flash = attend_plain(*inputs, packing), attend_flash(*inputs, packing)
    torch.testing.assert_close(flash, plain, rtol=0, atol=1e-12)
    expected, got = torch.autograd.grad(plain, used, grad), torch.autograd.grad(flash, used, grad)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-12)


def test_packed_conversations_do_not_see_each_other(folder: Path, target: Llama) -> None:
    first, second = conversation(0), conversation(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    row = pack([first, second])
    packing = Packing(torch.from_numpy(row.conversation), torch.from_numpy(row.starts), row.longest)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        nothing = k.new_empty(0, *k.shape)
        return attend_plain(q, k, v, nothing, nothing, packing)

    with torch.no_grad():
        ids, positions = torch.from_numpy(row.ids), torch.from_numpy(row.positions)
        states, aux = target.states(ids, positions, attend, capture=(2, 15, 27))
        alone = model(torch.from_numpy(second.astype(np.int64))[None], output_hidden_states=True)
    begin = len(first)
    torch.testing.assert_close(target.logits(states)[begin:], alone.logits[0], rtol=0, atol=1e-3)
    for state, layer in zip(aux, (2, 15, 27), strict=True):
        reference = alone.hidden_states[layer][0]
        assert (state[begin:] - reference).abs().max() <= 1e-4 * reference.abs().max()


def test_response_mask_finds_every_answer_with_its_stop_token() -> None:
    ids = np.array([1, 50, 2, 198, *HEADER, 60, 61, 2, 198, 1, 70, 2, 198, *HEADER, 80])
    assert ids[response_mask(ids)].tolist() == [60, 61, 2, 80]


def test_degenerate_rule() -> None:
    generator = np.random.default_rng(0)
    text = generator.permutation(1000)[:60]
    assert not is_degenerate(text)
    assert not is_degenerate([7] * 23)  # too short to judge
    assert is_degenerate([7] * 24)
    assert is_degenerate([*text, *([1, 2, 3, 4, 5] * 10)])


def test_a_looping_answer_is_cut_before_the_loop() -> None:
    text = np.random.default_rng(0).permutation(1000)[:40] + 100
    loop = [5, 6, 7, 8, 9] * 12
    ids = np.array([1, 50, 2, 198, *HEADER, *text, *loop], dtype=np.uint16)
    kept = trimmed(ids)
    assert kept is not None
    assert len(ids) - len(loop) < len(kept) <= len(ids) - len(loop) + 10  # twice the loop may stay
    assert trimmed(np.array([1, 50, 2, 198, 1, 50, 51], dtype=np.uint16)) is None  # no answer at all


def test_rows_hold_every_token_of_an_epoch_in_order() -> None:
    conversations = Conversations.of([conversation(i, num_answer=20 + i) for i in range(9)])
    row = next(rows(conversations, len(conversations.ids), seed=0))
    assert sorted(row.ids.tolist()) == sorted(conversations.ids.tolist())
    assert row.positions[row.starts[:-1]].tolist() == [0] * 9
    assert row.starts[-1] == len(conversations.ids)
    assert row.longest == max(len(conversations[i]) for i in range(9))


def test_held_out_prompts_are_not_trained_on() -> None:
    all_of_them = [conversation(i) for i in range(12)] + [conversation(3)]
    banned = [all_of_them[5][1:9].tobytes()]
    kept, held_out = split(Conversations.of(all_of_them), banned, hold_out=3, seed=0)
    assert len(kept) == 12 - 1 - 3  # one duplicate, one banned, three held out
    assert len(held_out) == 3
    texts = {ids.tobytes() for ids in kept}
    assert not texts & {ids.tobytes() for ids in held_out}
    assert all_of_them[5].tobytes() not in texts


def test_draft_vocabulary_counts_answers_only() -> None:
    ids = np.array([1, 50, 50, 50, 2, 198, *HEADER, 60, 60, 61, 2], dtype=np.uint16)
    assert draft_vocabulary(Conversations.of([ids]), 3).tolist() == [2, 60, 61]


def test_the_target_writes_whole_conversations(folder: Path, target: Llama) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    passages = passages_from(Conversations.of([conversation(i) for i in range(40)]), 10, 20, count=4, seed=0)
    scripts = Scripts(tokenizer, passages, seed=0)
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    writers = Writers(target, scripts, num_slots=2, num_tokens=72, special_ids=special)
    written = writers.run(seconds=120, max_conversations=2)
    assert len(written) >= 2
    for ids in written:
        text = tokenizer.decode(ids)
        assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        assert text.count("<|im_start|>assistant\n") == 1
        answer = ids[response_mask(ids)]
        assert len(answer) > 0
        assert not set(answer.tolist()) & (set(special) - {2})


def test_both_kinds_start_equal(target: Llama) -> None:
    recipe = Recipe(seed=3, steps=1, draft_vocab_size=16, intermediate_size=32)
    old, new = (Trainee(kind, target, np.arange(100, 116), recipe, "cpu").drafter.state_dict() for kind in KINDS)
    assert set(new) - set(old) == {f"fc_norm.{i}.weight" for i in range(3)}
    assert all(torch.equal(old[name], new[name]) for name in old)


def test_two_steps_lower_the_loss_and_the_checkpoint_reads_back(target: Llama, tmp_path: Path) -> None:
    conversations = Conversations.of([conversation(i) for i in range(4)])
    size = len(conversations.ids)
    recipe = Recipe(
        seed=0,
        steps=3,
        depth=2,
        row_tokens=size,
        draft_vocab_size=48,
        intermediate_size=64,
        learning_rate=1e-4,
        warmup_share=0,
    )
    log = train(target, conversations, recipe, tmp_path, log_every=1)
    vocabulary = draft_vocabulary(conversations, 48)
    for kind in KINDS:
        losses = [entry[kind]["loss"] for entry in log]  # type: ignore[index]
        assert losses[2] < losses[0]
        spec = read_spec(str(tmp_path / kind), target_config=target.config)
        assert spec.kind == kind
        assert spec.aux_layer_ids == (2, 15, 27)
        assert [finding for finding in spec.findings if finding.severity != "info"] == []
        tensors = load_tensors(str(tmp_path / kind), spec)
        assert (np.arange(48) + tensors["d2t"].numpy()).tolist() == vocabulary.tolist()
        assert tensors["t2d"].nonzero()[:, 0].tolist() == vocabulary.tolist()
        drafter = load_drafter(tmp_path / kind, target)
        assert torch.equal(drafter.embed_tokens.weight, target.embedding)


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_drafter_accepts_a_trained_text(kind: str, folder: Path, target: Llama) -> None:
    """A regression net with wide bounds; the measured figures are in the model cards."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    turn = [{"role": "user", "content": "Explain why it is important to sleep well."}]
    prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        written = model.generate(**prompt, max_new_tokens=47, min_new_tokens=47, do_sample=False)[0].numpy()
    num_prompt = prompt["input_ids"].shape[1]
    answer = Answer(ids=written, num_prompt_tokens=num_prompt, num_tokens=num_prompt + 40, is_degenerate=False)
    result = score(target, [load_drafter(DEMO_DRAFTERS / kind, target)], [answer], depth=7)[0]
    assert result.dense_rounds == 40 - 1
    assert result.dense_tokens_per_round > 1.8
    assert result.acceptance_marginal[0] > 0.45
