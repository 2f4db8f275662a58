"""tokens_per_round of trained drafters on prompts that were held out of training: which seed to ship.

    python -m training.evaluate --target FOLDER --prompts turns.jsonl [--conversations A.npz] --drafters RUN/eagle3 ...

The target answers each prompt greedily (float32, default system prompt, `--max-new-tokens` and then past the stop so that
the last rounds have labels); then every position of the answer is the start of a chain, all computed together
(`training.chain`). `dense` is over all starts, `walk` over the rounds an engine would make. `driftscope probe` measures
the same and much more; this is the short form that the recipe needs on a GPU, without run folders.

Does not know how the drafters were trained.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from driftscope.stats.degenerate import is_degenerate
from probes.checkpoint.read import read_spec
from probes.checkpoint.tensors import load_tensors
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from training.attention import Packing, attend_plain
from training.chain import run_chains
from training.conversations import ASSISTANT, IM_END, Conversations, pack
from training.llama import Llama

BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A prompt with the target's greedy answer, run past its end."""

    ids: np.ndarray  # int64 [token]: prompt, answer, `depth` or more tokens past its end
    num_prompt_tokens: int  # P
    num_tokens: int  # L, without what follows the end
    is_degenerate: bool


@dataclass(frozen=True, kw_only=True)
class Score:
    """Of one drafter over all answers that are not degenerate. tokens_per_round counts the bonus token."""

    dense_rounds: int
    dense_tokens_per_round: float
    walk_rounds: int
    walk_tokens_per_round: float
    acceptance_marginal: list[float]  # over dense starts
    acceptance_conditional: list[float]


def prompts_from_turns(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The first user turn of each line of a MT-Bench style file, in the chat template's default form."""
    prompts = []
    for line in path.read_text(encoding="utf-8").splitlines():
        message = [{"role": "user", "content": json.loads(line)["turns"][0]}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        prompts.append(list(tokenizer(text, add_special_tokens=False)["input_ids"]))
    return prompts


def prompts_from_conversations(conversations: Conversations, count: int) -> list[list[int]]:
    """The first `count` conversations, each up to and including its first assistant header."""
    prompts = []
    for i in range(min(count, len(conversations))):
        ids = conversations[i].tolist()
        header = next(j for j in range(len(ids)) if tuple(ids[j : j + len(ASSISTANT)]) == ASSISTANT)
        prompts.append(ids[: header + len(ASSISTANT)])
    return prompts


@torch.no_grad()
def answer(folder: Path, prompts: list[list[int]], *, max_new_tokens: int, depth: int, device: str) -> list[Answer]:
    """Greedy answers in float32, batched with padding on the left."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    model.generation_config.eos_token_id = None  # runs on past the stop
    answers: list[Answer] = []
    for begin in range(0, len(prompts), BATCH):
        batch = prompts[begin : begin + BATCH]
        width = max(map(len, batch))
        ids = torch.tensor([[IM_END] * (width - len(p)) + p for p in batch], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch], device=device)
        written = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens + depth, pad_token_id=IM_END
        )
        for prompt, row in zip(batch, written.cpu().numpy(), strict=True):
            new = row[width:]
            stops = np.flatnonzero(new[:max_new_tokens] == IM_END)
            length = int(stops[0]) + 1 if len(stops) else max_new_tokens
            answers.append(
                Answer(
                    ids=np.concatenate([prompt, new[: length + depth]]).astype(np.int64),
                    num_prompt_tokens=len(prompt),
                    num_tokens=len(prompt) + length,
                    is_degenerate=is_degenerate(new[:length]),
                )
            )
    return answers


@torch.no_grad()
def score(target: Llama, drafters: list[Drafter], answers: list[Answer], depth: int) -> list[Score]:
    """One Score for each drafter; all share the target's pass."""
    device = target.embedding.device
    dense: list[list[np.ndarray]] = [[] for _ in drafters]
    walk: list[list[int]] = [[] for _ in drafters]
    for item in answers:
        if item.is_degenerate or item.num_tokens - item.num_prompt_tokens < 2:
            continue
        row = pack([item.ids])
        ids, positions = torch.from_numpy(row.ids).to(device), torch.from_numpy(row.positions).to(device)
        whole = _packing(len(ids), device)

        def attend_text(layer: int, q: Tensor, k: Tensor, v: Tensor, whole: Packing = whole) -> Tensor:
            nothing = k.new_empty(0, *k.shape)
            return attend_plain(q, k, v, nothing, nothing, whole)

        aux_layer_ids = drafters[0].spec.aux_layer_ids
        _, aux = target.states(ids, positions, attend_text, capture=aux_layer_ids)
        num_starts = item.num_tokens - 2  # the last start is L - 3
        for i, drafter in enumerate(drafters):
            drafts = _drafts(drafter, target.embedding[ids], torch.cat(aux, dim=-1), positions, num_starts, depth)
            label = torch.stack([ids[k + 2 : k + 2 + num_starts] for k in range(depth)])
            accepted = (drafts == label).long().cumprod(dim=0).sum(dim=0).cpu().numpy()  # [start]
            first = item.num_prompt_tokens - 1
            dense[i].append(accepted[first:])
            t = first
            while t < num_starts:
                walk[i].append(int(accepted[t]))
                t += int(accepted[t]) + 1
    return [_score(np.concatenate(d), np.array(w), depth) for d, w in zip(dense, walk, strict=True)]


def _drafts(drafter: Drafter, embeds: Tensor, aux: Tensor, positions: Tensor, num_starts: int, depth: int) -> Tensor:
    """[depth, start] target ids: what each chain drafts while its earlier drafts are the text."""
    layer, drafts = drafter.layers[0], []

    def tail(k: int, attended: Tensor, residual: Tensor) -> Tensor:
        logits, feedback = drafter.predict(layer.finish(attended, residual))
        drafts.append(drafter.to_target_ids(logits.argmax(-1)))
        return feedback

    packing = _packing(num_starts, embeds.device)
    run_chains(drafter, embeds, aux, positions, packing, depth, attend_plain, tail, layer.project)
    return torch.stack(drafts)


def _packing(num_rows: int, device: torch.device) -> Packing:
    return Packing(
        torch.zeros(num_rows, dtype=torch.int32, device=device),
        torch.tensor([0, num_rows], dtype=torch.int32, device=device),
        num_rows,
    )


def _score(dense: np.ndarray, walk: np.ndarray, depth: int) -> Score:
    reached = np.array([(dense >= k).sum() for k in range(depth + 1)])
    return Score(
        dense_rounds=len(dense),
        dense_tokens_per_round=round(float(dense.mean()) + 1, 4),
        walk_rounds=len(walk),
        walk_tokens_per_round=round(float(walk.mean()) + 1, 4),
        acceptance_marginal=[round(float(n / len(dense)), 4) for n in reached[1:]],
        acceptance_conditional=[round(float(b / max(1, a)), 4) for a, b in itertools.pairwise(reached)],
    )


def load_drafter(folder: Path, target: Llama) -> Drafter:
    spec = read_spec(str(folder), target_config=target.config)
    device = target.embedding.device
    return Eagle3.load(
        spec,
        load_tensors(str(folder), spec, device=device),
        target_embedding=target.embedding,
        device=device,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with `turns`")
    parser.add_argument("--conversations", type=Path, help="conversations left out of training; their first user turns")
    parser.add_argument("--count", type=int, default=64, help="of those")
    parser.add_argument("--drafters", type=Path, nargs="+", required=True)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    sets = {"written prompts": prompts_from_turns(options.prompts, tokenizer)}
    if options.conversations:
        held_out = Conversations.load([options.conversations])
        sets["self-written prompts"] = prompts_from_conversations(held_out, options.count)
    target = Llama(options.target, device=options.device, dtype=torch.float32)
    drafters = [load_drafter(folder, target) for folder in options.drafters]
    lines = []
    for name, prompts in sets.items():
        answers = answer(
            options.target, prompts, max_new_tokens=options.max_new_tokens, depth=options.depth, device=options.device
        )
        num_degenerate = sum(item.is_degenerate for item in answers)
        for folder, result in zip(options.drafters, score(target, drafters, answers, options.depth), strict=True):
            line = {
                "prompts": name,
                "num_prompts": len(prompts),
                "num_degenerate": num_degenerate,
                "drafter": str(folder),
                **vars(result),
            }
            lines.append(json.dumps(line))
            print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
