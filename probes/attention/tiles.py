"""Tile sizes and splits of the region-mass kernel, by dtype, head size and device (docs/performance.md has the sweep)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

MIN_TILES_PER_SPLIT = 4


class Blocks(NamedTuple):
    rows: int
    slots: int
    num_warps: int
    num_stages: int


def padded(head_dim: int) -> int:
    """The head size in a tile: a power of two that a matrix unit takes."""
    return max(16, _next_power_of_2(head_dim))


def choose_blocks(dtype: torch.dtype, head_dim: int, num_rows: int) -> Blocks:
    """Tile sizes by dtype, head size and whether there are few rows (decode: memory-bound) or many."""
    size = padded(head_dim)
    if dtype == torch.float32:
        rows = 64 if size <= 64 else 32
        return Blocks(max(16, min(rows, _next_power_of_2(num_rows))), 32, 4, 2)
    if num_rows <= 32:
        return Blocks(max(16, _next_power_of_2(num_rows)), 128 if size <= 128 else 64, 4, 3)
    if size <= 64:
        return Blocks(64, 64, 4, 3)
    return Blocks(128, 64, 8, 3) if size <= 128 else Blocks(64, 64, 8, 2)


def choose_splits(device: torch.device, num_programs: int, num_tiles: int) -> int:
    """Enough programs for two on each multiprocessor, none with less than a few tiles."""
    wanted = -(-2 * _num_multiprocessors(device) // max(num_programs, 1))
    return max(1, min(wanted, num_tiles // MIN_TILES_PER_SPLIT, 128))


@cache
def _num_multiprocessors(device: torch.device) -> int:
    """On a CPU (the interpreter): few."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
