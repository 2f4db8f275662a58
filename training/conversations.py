"""Conversations as token ids: stored flat, read back, their responses found, degenerate ones recognised, packed.

Does not know the target or the drafters. A conversation is the chat template's output: the role markers are special
tokens that generation never samples, so the responses can be found in the ids again and no mask is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

IM_START, IM_END = 1, 2
ASSISTANT = (IM_START, 520, 9531, 198)  # "<|im_start|>assistant\n" in SmolLM2's ids


@dataclass(frozen=True, kw_only=True)
class Conversations:
    """`ids` of all, one after the other; conversation i is ids[offsets[i]:offsets[i + 1]]."""

    ids: np.ndarray  # uint16 [token]
    offsets: np.ndarray  # int64 [conversation + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @classmethod
    def of(cls, conversations: Sequence[np.ndarray]) -> Conversations:
        lengths = [len(ids) for ids in conversations]
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        ids = np.concatenate(conversations) if conversations else np.zeros(0)
        return cls(ids=ids.astype(np.uint16), offsets=offsets)

    @classmethod
    def load(cls, paths: Sequence[Path]) -> Conversations:
        """All conversations of these .npz files (arrays `flat` and `off`)."""
        flats, lengths = [], []
        for path in paths:
            with np.load(path) as file:
                flats.append(file["flat"])
                lengths.append(np.diff(file["off"]))
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)]).astype(np.int64)
        return cls(ids=np.concatenate(flats), offsets=offsets)

    def save(self, path: Path) -> None:
        np.savez(path, flat=self.ids, off=self.offsets)


def response_mask(ids: np.ndarray) -> np.ndarray:
    """bool [token]: which tokens an assistant wrote, the closing `<|im_end|>` included."""
    mask = np.zeros(len(ids), dtype=bool)
    is_header = np.ones(max(len(ids) - len(ASSISTANT) + 1, 0), dtype=bool)
    for i, token in enumerate(ASSISTANT):
        is_header &= ids[i : i + len(is_header)] == token
    ends = np.flatnonzero(ids == IM_END)
    for begin in np.flatnonzero(is_header) + len(ASSISTANT):
        later = ends[ends >= begin]
        mask[begin : later[0] + 1 if len(later) else len(ids)] = True
    return mask


@dataclass(frozen=True, kw_only=True)
class Row:
    """Conversations packed one after the other into a fixed number of tokens; the last one is cut."""

    ids: np.ndarray  # int64 [token]
    positions: np.ndarray  # int64 [token], from 0 in each conversation
    conversation: np.ndarray  # int32 [token], which of the row's conversations
    is_response: np.ndarray  # bool [token]
    starts: np.ndarray  # int32 [conversation + 1], as attention over packed sequences wants them
    longest: int


def rows(conversations: Conversations, num_tokens: int, seed: int) -> Iterator[Row]:
    """Endless rows of `num_tokens` tokens in a new random order each epoch."""
    generator = np.random.default_rng(seed)
    held: list[np.ndarray] = []
    total = 0
    while True:
        for i in generator.permutation(len(conversations)):
            held.append(conversations[i])
            total += len(held[-1])
            if total >= num_tokens:
                held[-1] = held[-1][: len(held[-1]) - (total - num_tokens)]
                yield pack(held)
                held, total = [], 0


def pack(conversations: Sequence[np.ndarray]) -> Row:
    """One row of these conversations."""
    lengths = np.array([len(ids) for ids in conversations])
    return Row(
        ids=np.concatenate(conversations).astype(np.int64),
        positions=np.concatenate([np.arange(n) for n in lengths]),
        conversation=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
        is_response=np.concatenate([response_mask(ids) for ids in conversations]),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        longest=int(lengths.max()),
    )


def draft_vocabulary(conversations: Conversations, size: int) -> np.ndarray:
    """The `size` ids that responses use most, ascending int64; ties go to the smaller id."""
    counts = np.zeros(1 << 16, dtype=np.int64)
    for i in range(len(conversations)):
        ids = conversations[i]
        counts += np.bincount(ids[response_mask(ids)], minlength=len(counts))
    most = np.argsort(-counts, kind="stable")[:size]
    return np.sort(most)
