"""Runs whose differences are known: accepted drafts are given start by start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from driftscope.runs import Run, RunInfo, read_run
from probes.record import Record
from tests.synthetic_run import make_batch, make_info, make_prompt, write_run

NUM_STARTS = 29  # P-1 .. L-3 of a response of 30 tokens
K = 4

Cell = tuple[str, str, int]  # drafter, system prompt, context tokens
Accepted = Callable[[Cell, int], np.ndarray]


def noise(prompt: int, seed: int = 0) -> np.ndarray:
    """Accepted drafts of every start, 1..3; the same for the same prompt and seed."""
    return np.random.default_rng([seed, prompt]).integers(1, 4, NUM_STARTS)


def equal(cell: Cell, prompt: int) -> np.ndarray:
    """Every condition accepts the same."""
    return noise(prompt)


def worse_in(cells: Mapping[Cell, float]) -> Accepted:
    """One draft less in that share of the starts of these cells."""

    def accepted(cell: Cell, prompt: int) -> np.ndarray:
        lost = np.random.default_rng([7, prompt]).random(NUM_STARTS) < cells.get(cell, 0.0)
        return noise(prompt) - lost

    return accepted


def write(
    path: Path,
    accepted: Accepted = equal,
    *,
    prompts: Sequence[int] = range(12),
    drafters: Sequence[str] = ("eagle3",),
    system_prompts: Sequence[str] = ("default",),
    contexts: Sequence[int] = (0,),
    loops: Sequence[int] = (),
    ids: str = "p{}",
    messages: Callable[[str, int], Sequence[Mapping[str, str]]] | None = None,
    is_forced: bool = False,
    engine: str = "replay",
    depth: int = K,
    info: RunInfo | None = None,
) -> Run:
    """One condition for each drafter, system prompt and context; `loops`: prompts with degenerate responses."""

    def records() -> Iterator[Record]:
        for system in system_prompts:
            for context in contexts:
                for number in prompts:
                    prompt = make_prompt(
                        ids.format(number),
                        system_prompt=system,
                        context_tokens=context,
                        is_loop=number in loops,
                        is_forced=is_forced,
                        seed=number,
                    )
                    if messages is not None:
                        prompt = replace(prompt, messages=tuple(messages(system, number)))
                    yield prompt
                    for drafter in drafters:
                        given = accepted((drafter, system, context), number)
                        yield make_batch(prompt, drafter=drafter, engine=engine, depth=depth, accepted_drafts=given)

    return read_run(write_run(path, records(), info or run_info(engine=engine, depth=depth)))


def run_info(**options: Any) -> RunInfo:
    """run.json of a run that says how it drafted."""
    return make_info(**options).model_copy(update={"temperature": 0.0, "acceptance_rule": "greedy drafts"})


def walk_sums(accepted: np.ndarray) -> tuple[int, int]:
    """Tokens and rounds of the walk over a replay's starts."""
    tokens = rounds = start = 0
    while start < len(accepted):
        tokens += int(accepted[start]) + 1
        rounds += 1
        start += int(accepted[start]) + 1
    return tokens, rounds
