"""The recorder's kernels, each alone in a CUDA graph, at an 8B drafter's shape: what a step of vLLM gets beside its own.

`python -m benchmarks.recorder_kernels [OUT]` on a CUDA device. Masses against the time in which their keys can be read at
the measured copy bandwidth. `--tune`: other ways to share out their slots, printed only.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import captured, copy_bandwidth, per_call, summary, table, time_in_turn, write
from probes.record import REGIONS
from probes.vllm import norms_triton, ring_triton
from probes.vllm.boundaries import Boundaries, Queries
from probes.vllm.masses_triton import TILES, Tiles, launch, make_scratch
from probes.vllm.transport import SERIAL_MASK

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SLOTS = 32, 8, 128, 16
HIDDEN, NUM_AUX, DEPTH = 4096, 3, 5
SHAPES = ((1, 512), (16, 512), (1, 8192), (16, 8192))
NUM_REPEATS = 21


def masses(num_rows: int, num_slots: int, *, is_mean: bool = True, tiles: Tiles = TILES) -> Callable[[], None]:
    """The masses of one depth, `num_rows` requests of `num_slots` slots."""
    num_blocks = num_slots // BLOCK_SLOTS
    device = torch.device("cuda")
    position = torch.full((num_rows,), num_slots - 1, device=device)
    rows = torch.arange(num_rows, device=device)
    cache = _random(num_rows * num_blocks, KV_HEADS, BLOCK_SLOTS, 2 * HEAD_DIM)
    queries = Queries(
        q=_random(num_rows, HEADS, HEAD_DIM),
        rows=rows,
        positions=position,
        num_rows=num_rows,
        keys=cache.transpose(1, 2)[..., :HEAD_DIM],
        block_table=torch.randperm(num_rows * num_blocks, device=device).int().view(num_rows, -1),
        scale=HEAD_DIM**-0.5,
        window=None,
    )
    boundaries = Boundaries(
        slot=rows.int(),
        num_prompt_tokens=torch.full((num_rows,), num_slots - 100, dtype=torch.int32, device=device),
        region=None if is_mean else torch.zeros(num_rows, num_slots, dtype=torch.uint8, device=device),
        num_sink_slots=1,
    )
    mass = torch.zeros(num_rows, DEPTH, 1, 1 if is_mean else HEADS, len(REGIONS), device=device)
    return partial(
        launch,
        queries,
        boundaries,
        start=(position - 2).int(),
        step=torch.tensor(2, device=device),
        layer=0,
        mass=mass,
        entropy=torch.zeros(mass.shape[:-1], device=device),
        scratch=make_scratch(num_rows, HEADS, device, tiles=tiles),
        tiles=tiles,
    )


def mass_rows() -> list[dict[str, Any]]:
    bandwidth = copy_bandwidth()
    found = []
    for num_rows, num_slots in SHAPES:
        levels = {name: masses(num_rows, num_slots, is_mean=name == "default") for name in ("default", "heads")}
        times = _times(levels)
        key_bytes = num_rows * num_slots * KV_HEADS * HEAD_DIM * 2
        found.append(
            {"requests": num_rows, "slots": num_slots, "keys at copy bandwidth, us": key_bytes / bandwidth * 1e6}
            | {f"masses, {name}, us": time for name, time in times.items()}
        )
    return found


def others(num_rows: int) -> dict[str, Callable[[], None]]:
    """What else is launched in a step, by kernel; some of it at each depth."""
    device = torch.device("cuda")
    states, rows = _random(num_rows, HIDDEN), torch.arange(num_rows, device=device)
    step, count = torch.tensor(DEPTH - 1, device=device), torch.zeros((), dtype=torch.int64, device=device)
    columns = torch.zeros(num_rows, 64, device=device)
    words, ring = (torch.zeros(*shape, num_rows, 200, dtype=torch.int32, device=device) for shape in ((), (16,)))
    concat, gains = _random(num_rows, NUM_AUX * HIDDEN), _random(NUM_AUX, HIDDEN)
    gathered = torch.empty(NUM_AUX, num_rows, HIDDEN, dtype=torch.bfloat16, device=device)
    weight = _random(HIDDEN, NUM_AUX * HIDDEN).unflatten(1, (NUM_AUX, -1)).permute(1, 2, 0)
    terms = torch.zeros(NUM_AUX, num_rows, HIDDEN, device=device)
    norms, share, energy = columns[:, :DEPTH], columns[:, 8 : 8 + NUM_AUX], columns[:, 16 : 16 + NUM_AUX]
    drafts = torch.zeros(num_rows, DEPTH, dtype=torch.int64, device=device)

    def multiply() -> None:
        torch.bmm(gathered, weight, out_dtype=torch.float32)

    return {
        "put_norms": partial(norms_triton.put_norms, states, rows, step, norms, num_rows),
        "residual_norms": partial(norms_triton.residual_norms, states, states, columns[:, 0]),
        "gather_states": partial(norms_triton.gather_states, concat, rows, gains, 1e-5, gathered, energy),
        "fc by layer (library)": multiply,
        "fusion_shares": partial(norms_triton.fusion_shares, terms, share, energy),
        "begin_round": partial(
            ring_triton.begin_round, rows, rows, count, words[:, 0], words[:, 1], num_rows, SERIAL_MASK
        ),
        "keep_rows": partial(
            ring_triton.keep_rows, words, ring, count, step, drafts, num_rows, last=DEPTH - 1, first_draft=8
        ),
    }


def tune() -> None:
    for num_rows, num_slots in SHAPES:
        found = []
        for splits, share, block, warps in itertools.product((16, 32), (64, 128, 256), (32, 64, 128), (1, 2, 4)):
            if share < block:
                continue
            tiles = Tiles(num_splits=splits, min_share=share, block=block, num_warps=warps)
            [time] = _times({"": masses(num_rows, num_slots, tiles=tiles)}, num_repeats=7).values()
            found.append({"splits": splits, "least": share, "block": block, "warps": warps, "us": time["median"]})
        found.sort(key=lambda row: row["us"])
        print(f"\n{num_rows} x {num_slots}, chosen {TILES}\n{table(found)}", flush=True)


def _times(calls: dict[str, Callable[[], None]], num_repeats: int = NUM_REPEATS) -> dict[str, dict[str, Any]]:
    """Microseconds of a call, replayed from a graph."""
    graphs = {name: captured(call) for name, call in calls.items()}
    samples = per_call(time_in_turn(graphs, num_repeats, num_warmups=3, num_inner=10))
    return {name: summary([sample * 1e3 for sample in those]) for name, those in samples.items()}


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("out", nargs="?", type=Path, default=Path("runs/recorder_kernels"))
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    if options.tune:
        tune()
        return
    write(options.out, "recorder_masses", mass_rows())
    rows = [
        {"kernel": name, "requests": num_rows, "us": time}
        for num_rows in (1, 16)
        for name, time in _times(others(num_rows)).items()
    ]
    write(options.out, "recorder_kernels", rows)


if __name__ == "__main__":
    main()
