"""How time and memory of a replay grow: with the text's length, K, the number of drafters, and of interventions.

`python -m benchmarks.growth [OUT] [--shape ...] [--device cpu]`, random weights; every position of the text is a start,
one target pass serves all drafters and interventions. An intervention is timed as one more set of chains (acceptance only).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.models import SHAPES, prompt_record, random_drafter, random_target, random_text
from benchmarks.timing import summary, time_in_turn, write
from probes.chain.replay import replay
from probes.drafter.model import Drafter
from probes.interventions.acceptance import ChainChange, accept
from probes.target.model import Target

DEPTH = 7


def measure(target: Target, drafters: list[Drafter], text: np.ndarray, depth: int, num_interventions: int) -> None:
    """One pass of the target, then every drafter's replay and its interventions."""
    trace = target.read(text, 1)
    prompt = prompt_record(trace)
    for drafter in drafters:
        replay(drafter, trace, prompt, name="d", depth=depth)
        for _ in range(num_interventions):
            accept(drafter, trace, depth=depth, change=ChainChange(rescales_feedback=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", default="runs/benchmarks")
    parser.add_argument("--device", default="cuda", help="cpu: float32, and memory is not seen")
    parser.add_argument("--tokens", type=int, default=8192, help="of the text where not its length grows")
    parser.add_argument("--shape", default="SmolLM2-135M", choices=SHAPES)
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384,32768")
    arguments = parser.parse_args()
    target = random_target(
        arguments.shape, arguments.device, torch.float32 if arguments.device == "cpu" else torch.bfloat16
    )
    drafters = [random_drafter(arguments.shape, target, seed) for seed in range(4)]
    cases: dict[tuple[str, int], Callable[[], Any]] = {}
    for length in map(int, arguments.lengths.split(",")):
        text = random_text(arguments.shape, length)
        cases["length", length] = partial(measure, target, drafters[:1], text, DEPTH, 0)
    text = random_text(arguments.shape, arguments.tokens)
    for depth in (1, 3, 5, 7, 11, 15):
        cases["K", depth] = partial(measure, target, drafters[:1], text, depth, 0)
    for num in (1, 2, 3, 4):
        cases["drafters", num] = partial(measure, target, drafters[:num], text, DEPTH, 0)
    for num in (0, 1, 2, 4, 8):
        cases["interventions", num] = partial(measure, target, drafters[:1], text, DEPTH, num)
    peaks: dict[str, int] = {}
    samples = time_in_turn({str(case): function for case, function in cases.items()}, 5, peaks=peaks)
    rows = [
        {
            "target": arguments.shape,
            "grows": what,
            "to": to,
            "ms": summary(samples[str((what, to))]),
            "peak MiB": peaks[str((what, to))] / 2**20 if peaks else None,
        }
        for what, to in cases
    ]
    write(
        Path(arguments.out),
        f"growth_{arguments.shape}_{arguments.device}",
        rows,
        tokens=arguments.tokens,
        depth=DEPTH,
        drafters=1,
        interventions=0,
    )


if __name__ == "__main__":
    main()
