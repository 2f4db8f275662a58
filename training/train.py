"""Trains EAGLE-3 and EAGLE-3.1 of one seed side by side: same rows, same target pass, same number of steps.

    python -m training.train --target FOLDER --data A.npz B.npz --out FOLDER --seed 0 --steps 9000

Does not know where the conversations come from, nor how the result is judged (`training.evaluate`). Objective: the
training-time test of EAGLE-3 (`training.chain`) to `--depth` with weights 0.8^k; soft cross-entropy against the target's
distribution over the draft vocabulary (not renormalised: a token that the drafter cannot name pulls nowhere).
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probes.drafter.algorithms.eagle3 import Eagle3
from training.attention import Packing, attend_flash, attend_plain
from training.chain import run_chains
from training.conversations import Conversations, Row, draft_vocabulary, rows
from training.llama import Llama
from training.write_checkpoint import demo_spec, write_checkpoint

KINDS = ("eagle3", "eagle3.1")
DEPTH_DECAY = 0.8  # weight of depth k is 0.8^(k-1), as in SafeAILab and SpecForge
PROMPT_WEIGHT = 0.1  # of tokens that the target did not write as an answer
MAX_CONVERSATIONS = 511  # in a row
WARM_UP_STEPS = 4  # before the step is captured
LOGIT_ROWS = 4096  # rows of full-vocabulary logits held at a time


@dataclass(frozen=True, kw_only=True)
class Recipe:
    seed: int
    steps: int
    depth: int = 7
    row_tokens: int = 16384  # tokens of a step
    draft_vocab_size: int = 6144
    intermediate_size: int = 1536
    learning_rate: float = 1e-3
    warmup_share: float = 0.02
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0


class RowTensors(NamedTuple):
    """A `Row` on the device, in shapes that never change: one CUDA graph serves every row."""

    ids: Tensor  # [token]
    positions: Tensor  # [token]
    conversation: Tensor  # int32 [token]
    is_response: Tensor  # bool [token]
    starts: Tensor  # int32 [MAX_CONVERSATIONS + 1], its last value repeated: conversations without tokens

    @classmethod
    def of(cls, row: Row) -> RowTensors:
        padding = MAX_CONVERSATIONS + 1 - len(row.starts)
        if padding < 0:
            raise ValueError(f"{len(row.starts) - 1} conversations in a row, at most {MAX_CONVERSATIONS} fit")
        starts = np.concatenate([row.starts, np.full(padding, row.starts[-1], dtype=np.int32)])
        return cls(*map(torch.from_numpy, (row.ids, row.positions, row.conversation, row.is_response, starts)))


class Lesson(NamedTuple):
    """One row as the drafters see it, on the device."""

    embeds: Tensor  # [token, hidden]
    aux: Tensor  # [token, fused]
    p: Tensor  # [token, draft_vocab]: the target's probability of the next token, sums to its mass inside the vocabulary
    best: Tensor  # [token]: the draft id of the target's argmax, -1 outside the vocabulary
    positions: Tensor  # [token]
    weight: Tensor  # [token]: loss weight of predicting this token
    conversation: Tensor  # [token]
    packing: Packing  # over the rows that are starts


class Trainee:
    """One drafter with its optimizer."""

    def __init__(self, kind: str, target: Llama, vocabulary: np.ndarray, recipe: Recipe, device: str) -> None:
        spec = demo_spec(
            kind,
            target.config,
            draft_vocab_size=recipe.draft_vocab_size,
            intermediate_size=recipe.intermediate_size,
        )
        torch.manual_seed(recipe.seed)  # the same for both kinds: norms draw nothing, so shared tensors start equal
        self.kind = kind
        self.drafter = Eagle3(spec)
        ids = torch.from_numpy(vocabulary)
        with torch.no_grad():
            self.drafter.d2t.copy_(ids - torch.arange(len(ids)))
            self.drafter.lm_head.weight.copy_(target.lm_head[ids.to(target.lm_head.device)])
            self.drafter.norm.weight.copy_(target.norm)
        self.drafter.embed_tokens = torch.nn.Embedding(
            0, spec.hidden_size
        )  # shared with the target, frozen, not stored
        self.drafter.to(device)
        self.parameters = [w for name, w in self.drafter.named_parameters() if name != "embed_tokens.weight"]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=torch.tensor(recipe.learning_rate, device=device),  # a tensor, so that a captured step reads its value
            betas=(0.9, 0.95),
            weight_decay=recipe.weight_decay,
            fused=device != "cpu",
            capturable=device != "cpu",
        )
        compiled = torch.compile if device != "cpu" else (lambda function: function)
        self.project = compiled(self.drafter.layers[0].project)
        self.finish = compiled(self._finish)

    def _finish(
        self, attended: Tensor, residual: Tensor, p: Tensor, weight: Tensor, best: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """-> (weighted mean cross-entropy, top-1 agreement with the target, the state fed back)."""
        logits, feedback = self.drafter.predict(self.drafter.layers[0].finish(attended, residual))
        logits, p = logits.float(), p.float()
        loss = p.sum(-1) * logits.logsumexp(-1) - (p * logits).sum(-1)
        total = weight.sum().clamp_min(1.0)
        is_answer = weight == 1.0
        agreement = ((logits.argmax(-1) == best) & is_answer).sum() / is_answer.sum().clamp_min(1)
        return (weight * loss).sum() / total, agreement, feedback

    def loss(self, lesson: Lesson, depth: int) -> tuple[Tensor, Tensor]:
        """-> (the loss over all depths, agreement [depth])."""
        num_starts = len(lesson.packing.conversation)
        losses: list[Tensor] = []
        agreements: list[Tensor] = []

        def tail(k: int, attended: Tensor, residual: Tensor) -> Tensor:
            label = slice(k + 2, k + 2 + num_starts)  # depth k+1 predicts token t0+k+2 from the state at t0+k+1
            is_inside = lesson.conversation[label] == lesson.conversation[:num_starts]
            before = slice(k + 1, k + 1 + num_starts)
            loss, agreement, feedback = self.finish(
                attended, residual, lesson.p[before], lesson.weight[label] * is_inside, lesson.best[before]
            )
            losses.append(loss * DEPTH_DECAY**k)
            agreements.append(agreement.detach())
            return feedback  # type: ignore[no-any-return]

        run_chains(
            self.drafter,
            lesson.embeds,
            lesson.aux,
            lesson.positions,
            lesson.packing,
            depth,
            attend_flash if lesson.embeds.is_cuda else attend_plain,
            tail,
            self.project,
        )
        return torch.stack(losses).sum() / sum(DEPTH_DECAY**k for k in range(depth)), torch.stack(agreements)

    def step(self, lesson: Lesson, recipe: Recipe) -> tuple[Tensor, Tensor]:
        is_cuda = lesson.embeds.is_cuda
        with torch.autocast("cuda" if is_cuda else "cpu", torch.bfloat16, enabled=is_cuda):
            loss, agreement = self.loss(lesson, recipe.depth)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, recipe.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), agreement


class Teacher:
    """Reads a row with the target once, for both drafters."""

    def __init__(self, target: Llama, vocabulary: np.ndarray, aux_layer_ids: tuple[int, ...]) -> None:
        self.target = target
        self.aux_layer_ids = aux_layer_ids
        device = target.embedding.device
        ids = torch.from_numpy(vocabulary).to(device)
        self.draft_head = target.lm_head[ids]
        self.draft_id = torch.full((len(target.lm_head),), -1, device=device)  # [vocab]
        self.draft_id[ids] = torch.arange(len(ids), device=device)
        self.reduce = torch.compile(_reduce) if device.type == "cuda" else _reduce

    @torch.no_grad()
    def lesson(self, row: RowTensors, depth: int, longest: int) -> Lesson:
        ids, positions, conversation = row.ids, row.positions, row.conversation
        num_starts = len(ids) - depth - 1
        whole = Packing(conversation, row.starts, longest)
        packing = Packing(conversation[:num_starts], row.starts.clamp_max(num_starts), longest)
        attend = attend_flash if ids.is_cuda else attend_plain

        def attend_text(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            nothing = k.new_empty(0, *k.shape)
            return attend(q, k, v, nothing, nothing, whole)

        states, aux = self.target.states(ids, positions, attend_text, capture=self.aux_layer_ids)
        p, best = [], []
        for part in states.split(LOGIT_ROWS):
            part_p, part_best = self.reduce(self.target.logits(part), F.linear(part, self.draft_head))
            p.append(part_p)
            best.append(part_best)
        weight = torch.where(row.is_response, 1.0, PROMPT_WEIGHT)
        return Lesson(
            self.target.embedding[ids],
            torch.cat(aux, dim=-1),
            torch.cat(p),
            self.draft_id[torch.cat(best)],
            positions,
            weight,
            conversation,
            packing,
        )


def _reduce(logits: Tensor, draft_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Full-vocabulary logits (float32) and those of the draft vocabulary -> (p over the draft vocabulary, argmax)."""
    lse = logits.logsumexp(-1, keepdim=True)
    return (draft_logits.float() - lse).exp().to(draft_logits.dtype), logits.argmax(-1)


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    warmup = max(1, round(recipe.warmup_share * recipe.steps))
    if step < warmup:
        return recipe.learning_rate * (step + 1) / warmup
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, recipe.steps - warmup)))


class Classroom:
    """Both trainees with their teacher: one step on one row. On CUDA the whole step is one graph, captured once.

    Step by step the launches of some 2,000 small kernels take longer than the kernels do.
    """

    def __init__(self, target: Llama, vocabulary: np.ndarray, recipe: Recipe, longest: int) -> None:
        self.recipe, self.longest = recipe, longest
        device = target.embedding.device
        self.trainees = [Trainee(kind, target, vocabulary, recipe, str(device)) for kind in KINDS]
        self.teacher = Teacher(target, vocabulary, self.trainees[0].drafter.spec.aux_layer_ids)
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.device = device
        self.num_steps = 0
        self.row: RowTensors | None = None  # where the graph reads
        self.graph: torch.cuda.CUDAGraph | None = None
        self.results: list[tuple[Tensor, Tensor]] = []  # where it writes: (loss, agreement [depth]) of each kind

    def step(self, row: RowTensors, learning_rate: float) -> list[tuple[Tensor, Tensor]]:
        if self.stream is None:
            self._set(row, learning_rate)
            self.results = self._step()
            return self.results
        self.stream.wait_stream(torch.cuda.current_stream())  # which made the weights
        with torch.cuda.stream(self.stream):
            self._set(row, learning_rate)
            if self.num_steps < WARM_UP_STEPS:
                self.results = self._step()
            else:
                if self.graph is None:
                    self.graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(self.graph, stream=self.stream):
                        self.results = self._step()
                self.graph.replay()
        self.num_steps += 1
        return self.results

    def _set(self, row: RowTensors, learning_rate: float) -> None:
        if self.row is None:
            self.row = RowTensors(*(tensor.to(self.device) for tensor in row))
        else:
            for kept, new in zip(self.row, row, strict=True):
                kept.copy_(new)
        for trainee in self.trainees:
            for group in trainee.optimizer.param_groups:
                group["lr"].fill_(learning_rate)

    def _step(self) -> list[tuple[Tensor, Tensor]]:
        assert self.row is not None
        lesson = self.teacher.lesson(self.row, self.recipe.depth, self.longest)
        return [trainee.step(lesson, self.recipe) for trainee in self.trainees]


def train(
    target: Llama, conversations: Conversations, recipe: Recipe, out: Path, *, log_every: int = 100, save_every: int = 0
) -> list[dict[str, object]]:
    """Writes `out/{kind}` for both kinds and `out/log.jsonl`; returns the log's rows."""
    vocabulary = draft_vocabulary(conversations, recipe.draft_vocab_size)
    classroom = Classroom(target, vocabulary, recipe, int(np.diff(conversations.offsets).max()))
    supply = _ahead(conversations, recipe)
    out.mkdir(parents=True, exist_ok=True)
    log: list[dict[str, object]] = []
    begun = time.monotonic()
    with (out / "log.jsonl").open("w", encoding="utf-8") as file:
        for step in range(recipe.steps):
            results = classroom.step(supply.get(), learning_rate(recipe, step))
            is_last = step == recipe.steps - 1
            is_looked_at = step % log_every == 0 or is_last or (save_every and (step + 1) % save_every == 0)
            if is_looked_at and target.embedding.is_cuda:
                torch.cuda.synchronize()  # results are written on the classroom's stream
            if step % log_every == 0 or is_last:
                entry: dict[str, object] = {"step": step, "seconds": round(time.monotonic() - begun, 2)}
                for trainee, (loss, agreement) in zip(classroom.trainees, results, strict=True):
                    entry[trainee.kind] = {
                        "loss": round(loss.item(), 4),
                        "agreement": [round(a, 4) for a in agreement.tolist()],
                    }
                log.append(entry)
                file.write(json.dumps(entry) + "\n")
                file.flush()
                print(json.dumps(entry), flush=True)
            if is_last or (save_every and (step + 1) % save_every == 0):
                for trainee in classroom.trainees:
                    write_checkpoint(trainee.drafter, out / trainee.kind)
    return log


def _ahead(conversations: Conversations, recipe: Recipe) -> queue.Queue[RowTensors]:
    """Rows packed by a second thread, a few ahead of the device."""
    ready: queue.Queue[RowTensors] = queue.Queue(maxsize=8)

    def fill() -> None:
        supply = rows(conversations, recipe.row_tokens, recipe.seed)
        for _ in range(recipe.steps):
            ready.put(RowTensors.of(next(supply)))

    threading.Thread(target=fill, daemon=True).start()
    return ready


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--depth", type=int, default=Recipe.depth)
    parser.add_argument("--row-tokens", type=int, default=Recipe.row_tokens)
    parser.add_argument("--draft-vocab-size", type=int, default=Recipe.draft_vocab_size)
    parser.add_argument("--intermediate-size", type=int, default=Recipe.intermediate_size)
    parser.add_argument("--learning-rate", type=float, default=Recipe.learning_rate)
    parser.add_argument("--save-every", type=int, default=0)
    options = parser.parse_args()
    recipe = Recipe(
        seed=options.seed,
        steps=options.steps,
        depth=options.depth,
        row_tokens=options.row_tokens,
        draft_vocab_size=options.draft_vocab_size,
        intermediate_size=options.intermediate_size,
        learning_rate=options.learning_rate,
    )
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    target = Llama(options.target, device=options.device, dtype=dtype, is_compiled=options.device != "cpu")
    conversations = Conversations.load(options.data)
    print(f"{len(conversations)} conversations, {len(conversations.ids)} tokens; {recipe}", flush=True)
    train(target, conversations, recipe, options.out, save_every=options.save_every)


if __name__ == "__main__":
    main()
