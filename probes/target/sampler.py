"""Which token a target emits: the argmax, or a draw from its distribution that depends on seed, prompt and position alone.

The distribution is softmax(logits / temperature) over what top-k, then top-p leave, renormalised: vLLM's order
(`v1/sample/ops/topk_topp_sampler.py`, 0.33). Knows no drafter.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Key = tuple[str, int]
"""A prompt's id and the position of the token that is drawn."""


@dataclass(frozen=True)
class Sampling:
    """What is done to a target's logits before a token is drawn. At temperature 0 the argmax is taken, uncut."""

    temperature: float = 0.0
    top_k: int = 0  # keep only the k most probable tokens, ties with the last one included; 0 = all
    top_p: float = 1.0  # only the most probable tokens that together hold this much, at least one; 1 = all

    @property
    def is_cut(self) -> bool:
        """Whether tokens are left out."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)

    def cut(self, logits: Float[Tensor, "*row vocab"]) -> Float[Tensor, "*row vocab"]:
        """The logits as they are, -inf where top-k or top-p leave a token out."""
        if not self.is_cut:
            return logits
        num_ids = logits.shape[-1]
        if 0 < self.top_k < num_ids:
            least = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p < 1:
            ordered, order = logits.sort(dim=-1)  # ascending: the tail that holds at most 1 - top_p goes
            tail = (ordered.float() / self.temperature).softmax(dim=-1).cumsum(dim=-1)
            is_left_out = tail <= 1 - self.top_p
            is_left_out[..., -1] = False
            logits = logits.masked_fill(torch.zeros_like(is_left_out).scatter(-1, order, is_left_out), -torch.inf)
        return logits

    def probabilities(self, logits: Float[Tensor, "*row vocab"]) -> Float[Tensor, "*row vocab"]:
        """The distribution that is drawn from, float32 or wider; softmax of the raw logits at temperature 0."""
        wide = self.cut(logits).to(torch.promote_types(logits.dtype, torch.float32))
        return (wide / (self.temperature or 1.0)).softmax(dim=-1)


GREEDY = Sampling()


class Sampler:
    """Picks the emitted token.

    Draws are Gumbel-max with noise keyed by (seed, prompt, position), so the text of a prompt does not depend on which
    prompts share its batch, nor on whether a position is decoded alone or verified with others: plain sampling and live
    with greedy drafts give the same text at any temperature. Other draws at the same position (a draft, whether it is
    accepted) have streams of their own.
    """

    def __init__(self, temperature: float = 0.0, seed: int = 0, *, top_k: int = 0, top_p: float = 1.0) -> None:
        self.sampling = Sampling(temperature, top_k, top_p)
        self.seed = seed

    @property
    def temperature(self) -> float:
        return self.sampling.temperature

    def _generator(self, device: torch.device, key: Key, stream: str) -> torch.Generator:
        name = f"{self.seed}/{key[0]}/{key[1]}{stream}"
        return torch.Generator(device=device).manual_seed(zlib.crc32(name.encode()))

    def exponential(
        self, num_ids: int, keys: Sequence[Key], device: torch.device, *, stream: str = ""
    ) -> Float[Tensor, "row vocab"]:
        """Exponential noise E, a row for each key: argmax of probability / E is a draw."""
        noise = torch.empty(len(keys), num_ids, device=device)
        for row, key in enumerate(keys):
            noise[row].exponential_(generator=self._generator(device, key, stream))
        return noise

    def uniform(self, keys: Sequence[Key], device: torch.device, *, stream: str) -> Float[Tensor, "row"]:
        """Numbers in [0, 1), float64, one for each key."""
        drawn = [
            torch.rand(1, generator=self._generator(device, k, stream), device=device, dtype=torch.float64)
            for k in keys
        ]
        return torch.cat(drawn)

    def scores(self, logits: Float[Tensor, "row vocab"], keys: Sequence[Key]) -> Float[Tensor, "row vocab"]:
        """What is maximised, in logits; a row of `logits` for each key."""
        if self.temperature == 0:
            return logits
        noise = self.exponential(logits.shape[-1], keys, logits.device)
        return self.sampling.cut(logits).float() - self.temperature * noise.log()

    def __call__(self, logits: Float[Tensor, "row vocab"], keys: Sequence[Key]) -> Int[Tensor, "row"]:
        return self.scores(logits, keys).argmax(dim=-1)

    def gap(self, logits: Float[Tensor, "vocab"], key: Key, chosen: int, other: int) -> float:
        """How much nearer these two logits would have to be for `other` to be the choice.

        Without a cut the distance of their scores. With one, `other` may also have to come in or `chosen` to go out.
        """
        logits = logits.float()
        scores = logits
        if self.temperature > 0:
            noise = self.exponential(len(logits), [key], logits.device)[0]
            scores = logits - self.temperature * noise.log()
        if not self.sampling.is_cut:
            return float(scores[chosen] - scores[other])
        low, high = 0.0, 2 * float(logits.max() - logits.min()) + float((scores[chosen] - scores[other]).clamp_min(0))
        for _ in range(40):
            middle = (low + high) / 2
            moved = logits.clone()
            moved[other] += middle / 2
            moved[chosen] -= middle / 2
            is_other = int((self.sampling.cut(moved) + scores - logits).argmax()) == other
            low, high = (low, middle) if is_other else (middle, high)
        return high
