"""What a draft step, a verify and a plain step cost on this machine, by batch size and context length.

Costs do not depend on what a text says, so texts are random tokens. Target and drafter run as the live loop runs them: the
target eagerly, the draft as one CUDA graph where there is a device. Knows no acceptance.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from probes.chain.draft_loop import DraftInputs, DraftLoop
from probes.chain.live import Stopwatch
from probes.chain.step import SlotCache, prefill
from probes.drafter.model import Drafter
from probes.target.model import Target
from probes.target.prefix import Prefix

NUM_WARMUPS = 2


@dataclass(frozen=True, kw_only=True)
class MeasuredCost:
    """Medians in microseconds over `num_repeats`, greedy drafts; one round of `batch_size` requests."""

    drafter: str
    batch_size: int
    context_tokens: int  # that every request has when the round starts
    draft_us: tuple[float, ...]  # of draft step k; step 1 also reads the new slots, the later ones are alike
    verify_us: tuple[float, ...]  # of K' + 1 tokens of each request, K' = 1..K
    plain_us: float  # of one token of each request
    num_repeats: int


@torch.inference_mode()
def measure_costs(
    target: Target,
    drafters: Sequence[tuple[str, Drafter]],
    *,
    depth: int,
    batch_sizes: Sequence[int],
    context_tokens: Sequence[int],
    num_repeats: int = 5,
    on_status: Callable[[str], None] = lambda text: None,
) -> tuple[list[MeasuredCost], list[str]]:
    """-> (costs, a note for each context whose larger batches did not fit into the device's memory).

    Raises InputError when a context does not fit into the target's positions.
    """
    target.check_length(max(context_tokens) + depth + 1, "measuring costs")
    text = np.random.default_rng(0).integers(0, target.config.vocab_size, max(context_tokens)).astype(np.int32)
    found: list[MeasuredCost] = []
    notes: list[str] = []
    prefix: Prefix | None = None
    slots: dict[str, SlotCache] = {}
    for num_tokens in sorted(set(context_tokens)):
        prefix = target.prefill(text[:num_tokens], prefix=prefix)
        ids = torch.as_tensor(prefix.token_ids, dtype=torch.int64, device=target.device)
        slots = {name: prefill(drafter, ids, prefix.aux, cache=slots.get(name)) for name, drafter in drafters}
        for batch_size in sorted(set(batch_sizes)):
            on_status(f"measuring costs: batch {batch_size}, context {num_tokens}")
            try:
                found += _at(target, drafters, prefix, slots, batch_size, depth, num_repeats)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                notes.append(f"costs: batch {batch_size} does not fit into memory at a context of {num_tokens} tokens")
                break
    return found, notes


def _at(
    target: Target,
    drafters: Sequence[tuple[str, Drafter]],
    prefix: Prefix,
    slots: Mapping[str, SlotCache],
    batch_size: int,
    depth: int,
    num_repeats: int,
) -> Iterator[MeasuredCost]:
    cache = prefix.fork(batch_size)
    token_ids = torch.zeros(batch_size, depth + 1, dtype=torch.int64, device=target.device)

    def verify(num_tokens: int) -> Callable[[], None]:
        def run() -> None:
            target.forward(token_ids[:, :num_tokens], cache, num_logits=num_tokens)
            cache.crop(-num_tokens)

        return run

    parts = {f"verify {n}": verify(n) for n in range(1, depth + 2)}
    for name, drafter in drafters:
        parts[f"first {name}"] = _drafting(drafter, prefix, slots[name], batch_size, depth, 1)
        parts[f"all {name}"] = _drafting(drafter, prefix, slots[name], batch_size, depth, depth)
    us = medians_in_turn(parts, num_repeats, target.device)
    for name, _ in drafters:
        first = us[f"first {name}"]
        later = (us[f"all {name}"] - first) / (depth - 1) if depth > 1 else 0.0
        yield MeasuredCost(
            drafter=name,
            batch_size=batch_size,
            context_tokens=len(prefix.token_ids),
            draft_us=(first, *(max(later, 0.0) for _ in range(depth - 1))),
            verify_us=tuple(us[f"verify {n}"] for n in range(2, depth + 2)),
            plain_us=us["verify 1"],
            num_repeats=num_repeats,
        )


def _drafting(
    drafter: Drafter, prefix: Prefix, cache: SlotCache, batch_size: int, depth: int, num_steps: int
) -> Callable[[], None]:
    """The first `num_steps` of a draft of `depth`, after a round that accepted every draft."""
    num_tokens = len(prefix.token_ids)
    ids = torch.as_tensor(prefix.token_ids, dtype=torch.int64, device=drafter.norm.weight.device)
    loop = DraftLoop(drafter, [cache] * batch_size, depth=num_steps, num_slots=num_tokens + 2 * depth + 2)
    last = drafter.features(prefix.aux, slice(num_tokens - 1, num_tokens))
    inputs = DraftInputs(
        token_ids=ids[-1].expand(batch_size, depth + 1),
        features=last.expand(batch_size, depth + 1, -1),
        first=torch.full((batch_size,), num_tokens - 1, device=ids.device),
        num_new=torch.full((batch_size,), depth + 1, device=ids.device),
        noise=None,
    )

    def run() -> None:
        loop.draft(inputs, num_slots=num_tokens + 2 * depth + 1)

    return run


def medians_in_turn(parts: dict[str, Callable[[], None]], num_repeats: int, device: torch.device) -> dict[str, float]:
    """Microseconds of each, one after the other in every repeat, so that a drift of the clocks hits all alike."""
    for part in parts.values():
        for _ in range(NUM_WARMUPS):
            part()
    clock = Stopwatch(device)
    for _ in range(num_repeats):
        for part in parts.values():
            clock.mark()
            part()
    clock.mark()
    laps = clock.laps_us()
    return {name: statistics.median(laps[i :: len(parts)]) for i, name in enumerate(parts)}
