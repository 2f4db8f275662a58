"""What several prompts have in common, computed once."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache


@dataclass(frozen=True)
class Prefix:
    """Tokens that several prompts share, computed once; never changed, `fork` before use."""

    token_ids: np.ndarray  # int32 [token]
    cache: DynamicCache
    aux: dict[int, Float[Tensor, "token hidden"]]

    def fork(self, num_copies: int = 1) -> DynamicCache:
        cache = copy.deepcopy(self.cache)
        if num_copies > 1:
            cache.batch_repeat_interleave(num_copies)
        return cache
