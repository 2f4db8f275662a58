"""A tiny target and its drafter, really trained, in minutes on one CPU core: `python -m training.tiny_pair OUT`.

For tests and the fault bench, where the demo pair is too heavy and a random pair too unlike the real thing. The target
(4 layers, hidden 128) learns `training.tiny_corpus` under several system prompts, templates and with documents before the
question; the drafter (EAGLE-3.1 with a sliding window and YaRN) only under the default system prompt and template,
without documents, and never in Greek: so there is a world beyond its training. One seed, one thread: the same machine
gives the same files again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from training.attention import Packing, attend_plain
from training.chain import run_chains
from training.tiny_corpus import DEFAULT_SYSTEM, GREEK, LANGUAGES, SYSTEMS, Exchange, document, exchanges
from training.write_checkpoint import demo_spec, write_checkpoint

VOCAB_SIZE, DRAFT_VOCAB_SIZE = 640, 320
START, END = "<|im_start|>", "<|im_end|>"
AUX_LAYER_IDS = (1, 2, 3)
WINDOW = 64  # tokens
DEPTH = 6
DEPTH_DECAY = 0.8
MAX_POSITIONS = 2048
ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512}
CHAT_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n" + DEFAULT_SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Text:
    """One conversation; `num_prompt` tokens come before the answer."""

    ids: list[int]
    num_prompt: int


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of `VOCAB_SIZE` ids, counted on the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (f"{e.question}\n{e.answer}" for e in itertools.islice(exchanges(seed=1), 6000))
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.add_special_tokens({"additional_special_tokens": [START]})
    fast.chat_template = CHAT_TEMPLATE
    return fast


def default_prompt(question: str) -> str:
    return f"{START}system\n{DEFAULT_SYSTEM}{END}\n{START}user\n{question}{END}\n{START}assistant\n"


def varied_prompt(question: str, draw: random.Random) -> str:
    """The default one most often; else another system prompt, headings in place of the template, or plain text."""
    if draw.random() < 0.25:
        question = f"{document(draw, LANGUAGES, draw.randrange(4, 30))}\n\n{question}"
    kind = draw.random()
    if kind < 0.6:
        return default_prompt(question)
    if kind < 0.8:
        system = draw.choice(SYSTEMS)
        return f"{START}system\n{system}{END}\n{START}user\n{question}{END}\n{START}assistant\n"
    return f"### user\n{question}\n\n### assistant\n" if kind < 0.9 else f"{question}\n\n"


def texts(tokenizer: PreTrainedTokenizerFast, seed: int, *, is_for_target: bool) -> Iterator[Text]:
    """Without end."""
    draw = random.Random(seed)
    languages = LANGUAGES if is_for_target else tuple(language for language in LANGUAGES if language is not GREEK)
    for exchange in exchanges(seed, languages):
        prompt = varied_prompt(exchange.question, draw) if is_for_target else default_prompt(exchange.question)
        head = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        yield Text(head + answer_ids(tokenizer, exchange), len(head))


def answer_ids(tokenizer: PreTrainedTokenizerFast, exchange: Exchange) -> list[int]:
    """With the stop token."""
    ids: list[int] = tokenizer(exchange.answer + END, add_special_tokens=False)["input_ids"]
    return ids


def learning_rate(step: int, num_steps: int, peak: float) -> float:
    """Linear warm-up over 5 %, then a cosine to zero."""
    warmup = max(1, num_steps // 20)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, num_steps - warmup)))


def train_target(
    tokenizer: PreTrainedTokenizerFast, num_steps: int, *, row_tokens: int = 512, num_rows: int = 8
) -> LlamaForCausalLM:
    """Next-token cross-entropy over whole rows of conversations, one after the other."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END),
        rope_parameters=dict(ROPE),
    )
    model = LlamaForCausalLM(config).float().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    supply = itertools.chain.from_iterable(text.ids for text in texts(tokenizer, seed=2, is_for_target=True))
    begun = time.monotonic()
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, num_steps, 3e-3)
        ids = torch.tensor(list(itertools.islice(supply, num_rows * row_tokens))).view(num_rows, row_tokens)
        loss = model(ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == num_steps - 1:
            print(
                json.dumps({"step": step, "loss": round(loss.item(), 4), "s": round(time.monotonic() - begun)}),
                flush=True,
            )
    return model.eval().to(torch.bfloat16).float()  # what is stored is what the drafter learns from


def draft_vocabulary(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """The ids that the drafter's own answers use most, ascending [draft_vocab]."""
    counts = torch.zeros(VOCAB_SIZE, dtype=torch.int64)
    for text in itertools.islice(texts(tokenizer, seed=3, is_for_target=False), 1500):
        counts += torch.bincount(torch.tensor(text.ids[text.num_prompt :]), minlength=VOCAB_SIZE)
    return counts.argsort(descending=True, stable=True)[:DRAFT_VOCAB_SIZE].sort().values


def train_drafter(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, num_steps: int, *, num_texts: int = 4
) -> Drafter:
    """Training-time test to `DEPTH` on the target's own distribution over the draft vocabulary."""
    vocabulary = draft_vocabulary(tokenizer)
    spec = replace(
        demo_spec("eagle3.1", model.config.to_dict(), draft_vocab_size=len(vocabulary), intermediate_size=128),
        rope_parameters=dict(ROPE),
        aux_layer_ids=AUX_LAYER_IDS,
        sliding_window=(WINDOW,),
    )
    torch.manual_seed(0)
    drafter = Eagle3(spec)
    head = model.lm_head.weight.detach()[vocabulary]
    with torch.no_grad():
        drafter.d2t.copy_(vocabulary - torch.arange(len(vocabulary)))
        drafter.lm_head.weight.copy_(head)
        drafter.embed_tokens.weight.copy_(model.model.embed_tokens.weight)
    parameters = [weight for name, weight in drafter.named_parameters() if name != "embed_tokens.weight"]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)
    attend = functools.partial(attend_plain, window=WINDOW)
    supply = texts(tokenizer, seed=4, is_for_target=False)
    begun = time.monotonic()
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, num_steps, 2e-3)
        batch = list(itertools.islice(supply, num_texts))
        loss, agreement = drafter_loss(drafter, model, batch, vocabulary, attend)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == num_steps - 1:
            shown = [round(a, 3) for a in agreement]
            print(json.dumps({"step": step, "agreement": shown, "s": round(time.monotonic() - begun)}), flush=True)
    return drafter.eval()


def drafter_loss(
    drafter: Drafter, model: LlamaForCausalLM, batch: list[Text], vocabulary: Tensor, attend: functools.partial[Tensor]
) -> tuple[Tensor, list[float]]:
    """-> (soft cross-entropy over depths, top-1 agreement with the target by depth). One row of conversations."""
    lengths = [len(text.ids) for text in batch]
    ids = torch.tensor([i for text in batch for i in text.ids])
    positions = torch.cat([torch.arange(n) for n in lengths])
    conversation = torch.arange(len(batch)).repeat_interleave(torch.tensor(lengths)).int()
    is_answer = torch.cat([torch.arange(len(text.ids)) >= text.num_prompt for text in batch])
    with torch.no_grad():
        states, logits = [], []
        for text in batch:
            out = model(torch.tensor(text.ids)[None], output_hidden_states=True)
            states.append(torch.cat([out.hidden_states[i][0] for i in drafter.spec.aux_layer_ids], dim=-1))
            logits.append(out.logits[0])
        p_all = torch.cat(logits).softmax(dim=-1)
        p, best = p_all[:, vocabulary], p_all.argmax(dim=-1)
    num_starts = len(ids) - DEPTH - 1
    losses: list[Tensor] = []
    agreement: list[float] = []

    def tail(k: int, attended: Tensor, residual: Tensor) -> Tensor:
        draft_logits, feedback = drafter.predict(drafter.layers[0].finish(attended, residual))
        label, before = slice(k + 2, k + 2 + num_starts), slice(k + 1, k + 1 + num_starts)
        weight = (is_answer[label] & (conversation[label] == conversation[:num_starts])).float()
        loss = p[before].sum(-1) * draft_logits.logsumexp(-1) - (p[before] * draft_logits).sum(-1)
        losses.append((weight * loss).sum() / weight.sum() * DEPTH_DECAY**k)
        is_right = vocabulary[draft_logits.argmax(-1)] == best[before]
        agreement.append(float((is_right * weight).sum() / weight.sum()))
        return feedback

    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    packing = Packing(conversation[:num_starts], starts, max(lengths))
    layer = drafter.layers[0]
    run_chains(
        drafter,
        F.embedding(ids, drafter.embed_tokens.weight.detach()),
        torch.cat(states),
        positions,
        packing,
        DEPTH,
        attend,
        tail,
        layer.project,
    )
    return torch.stack(losses).sum() / sum(DEPTH_DECAY**k for k in range(DEPTH)), agreement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--target-steps", type=int, default=1000)
    parser.add_argument("--drafter-steps", type=int, default=250)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the order of sums, and so the files, depend on it
    tokenizer = make_tokenizer()
    target = train_target(tokenizer, options.target_steps)
    target.to(torch.bfloat16).save_pretrained(options.out / "target")
    tokenizer.save_pretrained(options.out / "target")
    write_checkpoint(train_drafter(target.float(), tokenizer, options.drafter_steps), options.out / "drafter")


if __name__ == "__main__":
    main()
