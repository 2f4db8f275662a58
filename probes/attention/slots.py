"""The region of each slot, as masses are measured with. Knows nothing of templates or chains."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from probes.record import TEXT_REGIONS

SLOT_REGIONS = ("sink", *TEXT_REGIONS)
"""What a slot can be for the kernel: columns of the measured masses."""


def text_regions(prompt_region: np.ndarray, num_tokens: int) -> np.ndarray:
    """uint8 [token]: the prompt's own regions (index into TEXT_REGIONS), then `response` up to `num_tokens`."""
    region = np.full(num_tokens, TEXT_REGIONS.index("response"), np.uint8)
    region[: len(prompt_region)] = prompt_region
    return region


def slot_regions(region: np.ndarray, *, sink_slots: int, device: torch.device) -> UInt8[Tensor, "slot"]:
    """Index into SLOT_REGIONS. A slot's region is that of its token x[t]; the first `sink_slots` are `sink`."""
    column = torch.as_tensor(region, dtype=torch.uint8)
    if device.type == "cuda":  # from pinned memory the copy waits for nothing
        column = column.pin_memory()
    column = column.to(device, non_blocking=True) + 1
    column[:sink_slots] = 0
    return column
