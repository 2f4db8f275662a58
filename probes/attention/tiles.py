"""Tile sizes and splits of the region-mass kernel, by dtype, head size and device (docs/performance.md has the sweep)."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import torch

MIN_TILES_PER_SPLIT = 4
MAX_SPLITS = 128
TILES_PER_PROGRAM = 3
"""What a program costs beside its tiles, in tiles."""
SHARED_BYTES = 227 * 1024
"""A Hopper multiprocessor's. On another card the number of splits is further from the best, the result the same."""
MAX_WARPS = 8
"""That a multiprocessor's registers hold at 255 a thread."""


class Blocks(NamedTuple):
    rows: int
    slots: int
    num_warps: int
    num_stages: int

    def num_resident(self, dtype: torch.dtype, head_dim: int, *, is_paged: bool) -> int:
        """How many programs a multiprocessor holds: by the registers of large tiles, and by the tiles of K and V.

        A paged cache's K and V wait for their page numbers: Triton then holds one tile of two stages (3.6, 3.7), not of
        one.
        """
        num_tiles = max(1, (self.num_stages - 1) // 2) if is_paged else self.num_stages
        tile_bytes = 2 * self.slots * padded(head_dim) * dtype.itemsize
        return max(1, min(MAX_WARPS // self.num_warps, SHARED_BYTES // (num_tiles * tile_bytes)))


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


@lru_cache(maxsize=1024)
def choose_splits(device: torch.device, num_programs: int, num_tiles: int, num_resident: int = 1) -> int:
    """The fewest splits whose time is within a tenth of the shortest.

    Time is counted in tiles of the longest program, in as many waves as it takes with `num_resident` programs a
    multiprocessor: filling the pipeline, writing and merging count as some tiles more.
    """
    at_once = num_resident * _num_multiprocessors(device)
    most = max(1, min(num_tiles // MIN_TILES_PER_SPLIT, MAX_SPLITS))
    times = [-(-num_programs * n // at_once) * (-(-num_tiles // n) + TILES_PER_PROGRAM) for n in range(1, most + 1)]
    return 1 + next(i for i, time in enumerate(times) if time <= 1.1 * min(times))


@cache
def _num_multiprocessors(device: torch.device) -> int:
    """On a CPU (the interpreter): few."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
