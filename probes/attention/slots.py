"""The region of each slot, as the one-hot that masses are measured with. Knows nothing of templates or chains."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probes.record import TEXT_REGIONS

SLOT_REGIONS = ("sink", *TEXT_REGIONS)
"""Columns of the one-hot with which region masses are measured."""


def text_regions(prompt_region: np.ndarray, num_tokens: int) -> np.ndarray:
    """uint8 [token]: the prompt's own regions (index into TEXT_REGIONS), then `response` up to `num_tokens`."""
    region = np.full(num_tokens, TEXT_REGIONS.index("response"), np.uint8)
    region[: len(prompt_region)] = prompt_region
    return region


def slot_regions(region: np.ndarray, *, sink_slots: int, device: torch.device) -> Float[Tensor, "slot region"]:
    """One-hot over SLOT_REGIONS. A slot's region is that of its token x[t]; the first `sink_slots` are `sink`."""
    column = torch.as_tensor(region, dtype=torch.int64, device=device) + 1
    column[:sink_slots] = 0
    return torch.nn.functional.one_hot(column, len(SLOT_REGIONS)).float()
