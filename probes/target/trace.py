"""A finished text and what the target computed on it. Knows no model: a text is read or written by `probes.target.model`.

Logits of all positions of a long text would be tens of gigabytes (128K tokens x 128K ids in bfloat16: 34 GB), so they may
be kept as the states that the output head reads, and computed for the positions that are looked at; a short text's are
computed once on a CUDA device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.target.sampler import GREEDY, Sampling
from probes.target.vocab_rows import row_statistics

TIE_LOGIT_GAP = 1e-4
"""Two logits closer than this are a tie: another order of the same sums may pick either token."""

BLOCK_ELEMENTS = 1 << 26
"""Logits looked at together (256 MiB in float32)."""


MAX_KEPT_BYTES = 1 << 31
"""Logits of a text on a CUDA device that are kept: every drafter and the text's own choices look at them."""


@dataclass(frozen=True)
class HeadLogits:
    """Logits by position, computed when indexed: `head` maps the states that it reads to them. Where they are kept, all are
    computed at the first look.
    """

    states: Float[Tensor, "position hidden"]
    head: Callable[[Tensor], Tensor]
    num_ids: int
    num_together: int = 0  # positions of all texts that were read with this one, where it is not alone: kept as one

    def __len__(self) -> int:
        return len(self.states)

    def part(self, rows: slice) -> HeadLogits:
        return replace(self, states=self.states[rows], num_together=max(len(self), self.num_together))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.states), self.num_ids

    @property
    def is_kept(self) -> bool:
        num_bytes = max(len(self), self.num_together) * self.num_ids * self.states.element_size()
        return self.states.is_cuda and num_bytes <= MAX_KEPT_BYTES

    @cached_property
    def _kept(self) -> Float[Tensor, "position vocab"]:
        return self.head(self.states)

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        return self._kept[index] if self.is_kept else self.head(self.states[index])


class Choices(NamedTuple):
    """What the target would choose after each position, and how it likes the text."""

    best: Int[Tensor, "position"]
    gap: Float[Tensor, "position"]  # between the two best logits
    text_logprob: Float[Tensor, "position"]  # of the text's next token, at temperature 1


@dataclass(frozen=True, kw_only=True)
class TargetTrace:
    """N tokens: prompt P, response, continuation past the end.

    `logits[i]` are those at position P-1+i: they predict token P+i. Without a response the first axis has length 0.
    """

    token_ids: Int[Tensor, "token"]
    num_prompt_tokens: int
    num_response_tokens: int
    finish_reason: str  # "stop" | "length" | "forced"
    aux: dict[int, Float[Tensor, "slot hidden"]]  # at least N-1 rows
    logits: Float[Tensor, "position vocab"] | HeadLogits
    is_forced: bool = False
    sampling: Sampling = GREEDY

    @property
    def temperature(self) -> float:
        return self.sampling.temperature

    def beginning(self, num_prompt_tokens: int, num_tokens: int) -> TargetTrace:
        """The first `num_tokens` tokens of a forced text, as a text of their own whose response is forced too.

        What is computed at a position depends on no later one. `num_prompt_tokens` is at least this text's: it has no
        logits before. Nothing is copied.
        """
        first = num_prompt_tokens - self.num_prompt_tokens
        num_response_tokens = num_tokens - num_prompt_tokens
        rows = slice(first, first + num_response_tokens)
        return replace(
            self,
            token_ids=self.token_ids[:num_tokens],
            num_prompt_tokens=num_prompt_tokens,
            num_response_tokens=num_response_tokens,
            aux={index: states[:num_tokens] for index, states in self.aux.items()},
            logits=self.logits.part(rows) if isinstance(self.logits, HeadLogits) else self.logits[rows],
        )

    @cached_property
    def choices(self) -> Choices:
        """The choices at every position that has logits; computed once, some rows at a time."""
        num_rows, num_ids = len(self.logits), self.logits.shape[-1]
        device = self.token_ids.device
        choices = Choices(
            torch.empty(num_rows, dtype=torch.int64, device=device),
            torch.empty(num_rows, device=device),
            torch.empty(num_rows, device=device),
        )
        text = self.token_ids[self.num_prompt_tokens : self.num_prompt_tokens + num_rows]
        block = max(1, BLOCK_ELEMENTS // num_ids)
        for begin in range(0, num_rows, block):
            rows = slice(begin, begin + block)
            logits = self.logits[rows]
            found = row_statistics(logits, 2)
            choices.best[rows] = found.top_id[:, 0]
            choices.gap[rows] = found.top[:, 0] - found.top[:, 1]
            choices.text_logprob[rows] = logits.gather(1, text[rows, None])[:, 0].float() - found.lse
        return choices

    @property
    def num_ties(self) -> int:
        """Response positions whose two best logits are closer than TIE_LOGIT_GAP."""
        return int((self.choices.gap < TIE_LOGIT_GAP).sum()) if len(self.logits) else 0
