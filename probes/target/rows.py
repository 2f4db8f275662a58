"""Several texts in one batch of a target's cache: padded where they differ in length, each rolled back on its own.

Padding stands between what all texts share and the rest, masked, out of everybody's sight; the texts' last tokens stand in
one column, so that new ones are appended for all at once. A text that takes back more tokens than the others moves to the
right instead. Knows nothing of sampling or drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from probes.errors import InputError

if TYPE_CHECKING:
    from probes.target.model import Target
    from probes.target.prefix import Prefix

States = dict[int, Float[Tensor, "row token hidden"]]


class TargetRows:
    """All texts begin with `prefix`; the rest of each, at least one token, is read by `begin`.

    `num_tokens` [row]: tokens in the cache, which has `num_columns` columns.
    """

    def __init__(self, target: Target, prompts: Sequence[np.ndarray], prefix: Prefix) -> None:
        self.target = target
        self.num_shared = len(prefix.token_ids)
        self.num_tokens = [len(p) for p in prompts]
        self._prompts = prompts
        self._cache: DynamicCache = prefix.fork(len(prompts))
        self.num_columns = max(self.num_tokens)

    @property
    def is_padded(self) -> bool:
        return any(n != self.num_columns for n in self.num_tokens)

    def check_padding(self, num_new_tokens: int) -> None:
        """Raises InputError where these texts, grown by `num_new_tokens`, cannot share a batch."""
        if self.is_padded and not self.target.can_pad(self.num_columns + num_new_tokens):
            raise InputError(
                "this target's windows or positions would count padding as text",
                code="prompts_of_unequal_length",
                where=f"target of the family {self.target.config.model_type}",
                remedy="write prompts of one length at a time",
            )

    def begin(self) -> tuple[Float[Tensor, "row vocab"], States, list[int]]:
        """-> (logits of the last position, states of the columns from the prefix on, each row's first column there)."""
        width = self.num_columns - self.num_shared
        firsts = [self.num_columns - n for n in self.num_tokens]
        ids = torch.zeros(len(self._prompts), width, dtype=torch.int64)
        for row, (prompt, first) in enumerate(zip(self._prompts, firsts, strict=True)):
            ids[row, first:] = torch.as_tensor(prompt[self.num_shared :], dtype=torch.int64)
        mask = self._mask()
        pads = self._tensor(firsts)[:, None]
        positions = torch.arange(self.num_shared, self.num_columns, device=self.target.device) - pads
        logits, states = self.target.forward(
            ids.to(self.target.device),
            self._cache,
            position_ids=positions.clamp_min(max(0, self.num_shared - 1)),
            attention_mask=mask,
        )
        return logits[:, -1], states, firsts

    def extend(self, token_ids: Int[Tensor, "row token"]) -> tuple[Float[Tensor, "row token vocab"], States]:
        """Appends tokens to every text -> (logits after each, states)."""
        num_new = token_ids.shape[1]
        positions = self._tensor(self.num_tokens)[:, None] + torch.arange(num_new, device=self.target.device)
        self.num_columns += num_new
        self.num_tokens = [n + num_new for n in self.num_tokens]
        return self.target.forward(
            token_ids, self._cache, num_logits=num_new, position_ids=positions, attention_mask=self._mask()
        )

    def roll_back(self, num_tokens: Sequence[int]) -> None:
        """Takes the last `num_tokens` off each text. With unequal numbers the cache must be one that `can_shift`."""
        least = min(num_tokens)
        if least:  # crop(0) empties the cache before transformers 5.17
            self._cache.crop(-least)
            self.num_columns -= least
        self.num_tokens = [n - back for n, back in zip(self.num_tokens, num_tokens, strict=True)]
        moves = [back - least for back in num_tokens]
        if any(moves):
            column = torch.arange(self.num_columns, device=self.target.device)
            source = (column - self._tensor(moves)[:, None]).clamp_min(self.num_shared)
            source = torch.where(column < self.num_shared, column, source)[:, None, :, None]  # [row, 1, column, 1]
            for layer in self._cache.layers:
                assert isinstance(layer, DynamicLayer)
                assert layer.keys is not None
                assert layer.values is not None
                layer.keys = layer.keys.gather(2, source.expand_as(layer.keys))
                layer.values = layer.values.gather(2, source.expand_as(layer.values))

    def keep(self, rows: Sequence[int]) -> None:
        """Only these texts, in order, go on."""
        if len(rows) == len(self.num_tokens):
            return
        self._cache.batch_select_indices(self._tensor(rows))
        self.num_tokens = [self.num_tokens[row] for row in rows]

    def _tensor(self, values: Sequence[int]) -> Int[Tensor, "row"]:
        return torch.tensor(values, dtype=torch.int64, device=self.target.device)

    def _mask(self) -> Int[Tensor, "row _"] | None:
        """1 for text, 0 for padding; None without padding."""
        if not self.is_padded:
            return None
        column = torch.arange(self.num_columns, device=self.target.device)
        begin = self.num_shared + self.num_columns - self._tensor(self.num_tokens)[:, None]
        return ((column < self.num_shared) | (column >= begin)).long()


def can_shift(cache: DynamicCache) -> bool:
    """Whether a text's keys and values may move to the right: every layer keeps these two, by slot, and nothing else."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)
