"""Generated shards -> one training file and a few conversations held out of it.

    python -m training.prepare --data A.npz B.npz --prompts turns.jsonl --target FOLDER --hold-out 256 --out FOLDER

Drops exact duplicates, every conversation that contains a prompt of `--prompts` (the evaluation's), and every one whose
first user turn is also in the held-out part. Writes `train.npz` and `held_out.npz`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from training.conversations import IM_END, Conversations, response_mask


def first_prompt(ids: np.ndarray) -> bytes:
    """Everything before the first answer."""
    return ids[: int(np.argmax(response_mask(ids)))].tobytes()


def split(
    conversations: Conversations, banned: list[bytes], hold_out: int, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """-> (train, held out). `banned`: uint16 ids of texts that must not occur."""
    unique = {conversations[i].tobytes(): i for i in range(len(conversations))}
    kept = [conversations[i] for text, i in unique.items() if not any(turn in text for turn in banned)]
    order = np.random.default_rng(seed).permutation(len(kept))
    held_out = [kept[i] for i in order[:hold_out]]
    prompts = {first_prompt(ids) for ids in held_out}
    return [kept[i] for i in order[hold_out:] if first_prompt(kept[i]) not in prompts], held_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL with `turns`: kept out of training")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--hold-out", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    turns = [turn for line in options.prompts.read_text("utf-8").splitlines() for turn in json.loads(line)["turns"]]
    banned = [
        np.array([*tokenizer(turn, add_special_tokens=False)["input_ids"], IM_END], dtype=np.uint16).tobytes()
        for turn in turns
    ]
    train, held_out = split(Conversations.load(options.data), banned, options.hold_out, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    Conversations.of(train).save(options.out / "train.npz")
    Conversations.of(held_out).save(options.out / "held_out.npz")
    num_answer = sum(int(response_mask(ids).sum()) for ids in train)
    lengths = [len(ids) for ids in train]
    print(
        f"{len(train)} conversations to train on: {sum(lengths)} tokens, {num_answer} of answers, "
        f"{sum(n > 1024 for n in lengths)} longer than 1,024 tokens; {len(held_out)} held out"
    )


if __name__ == "__main__":
    main()
