"""Which token a target emits: the argmax, or a draw that depends on seed, prompt and position alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Sampler:
    """Picks the emitted token: argmax at temperature 0, else a draw from softmax(logits / temperature).

    Draws are Gumbel-max with noise keyed by (seed, prompt, position), so the text of a prompt does not depend on which
    prompts share its batch, nor on whether a position is decoded alone or verified with others: plain sampling and live
    give the same text at any temperature.
    """

    def __init__(self, temperature: float = 0.0, seed: int = 0) -> None:
        self.temperature = temperature
        self.seed = seed

    def scores(self, logits: Float[Tensor, "row vocab"], keys: Sequence[tuple[str, int]]) -> Float[Tensor, "row vocab"]:
        """What is maximised, in logits: `keys` holds for each row the prompt's id and the position of the token."""
        if self.temperature == 0:
            return logits
        noise = torch.empty(logits.shape, device=logits.device)
        generator = torch.Generator(device=logits.device)
        for row, (prompt_id, position) in enumerate(keys):
            generator.manual_seed(zlib.crc32(f"{self.seed}/{prompt_id}/{position}".encode()))
            noise[row].exponential_(generator=generator)
        return logits.float() - self.temperature * noise.log()

    def __call__(self, logits: Float[Tensor, "row vocab"], keys: Sequence[tuple[str, int]]) -> Int[Tensor, "row"]:
        return self.scores(logits, keys).argmax(dim=-1)
