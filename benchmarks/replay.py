"""Replay against one plain target prefill of the same text, and against the live loop.

`python -m benchmarks.replay [OUT] [--shapes ...] [--lengths ...] [--device cpu] [--profile]`, random weights. "plain" is
the target's own forward pass, keys and values kept and the last position's logits, in one piece; a replay is everything:
the target's pass in chunks with its states, the drafter on every slot, all K depths with all that is recorded, on the host.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.models import SHAPES, prompt_record, random_drafter, random_target, random_text
from benchmarks.timing import summary, synchronize, time_in_turn, write
from probes.chain.live import LiveOptions, run_live_batch
from probes.chain.replay import replay
from probes.drafter.model import Drafter
from probes.target.family import new_cache
from probes.target.model import Target
from probes.target.sampler import Sampler

DEPTH = 7
LAST_TOKENS = 512
LIVE_ROUNDS = 48


def plain_prefill(target: Target, text: np.ndarray) -> None:
    ids = torch.as_tensor(text, dtype=torch.int64, device=target.device)[None]
    with torch.inference_mode():
        target.model(
            input_ids=ids, **{target.cache_argument: new_cache(target.config)}, use_cache=True, logits_to_keep=1
        )


def whole_replay(
    target: Target, drafters: list[Drafter], text: np.ndarray, num_starts: int | None, depth: int = DEPTH
) -> int:
    """-> number of starts. `num_starts`: the response's tokens; None: all but the first token is response."""
    trace = target.read(text, 1 if num_starts is None else len(text) - num_starts)
    prompt = prompt_record(trace)
    return sum(len(replay(d, trace, prompt, name="d", depth=depth).start) for d in drafters)


def prefill_flops(shape: str, num_tokens: int) -> float:
    """Products of the layers and of causal attention; the head is left out (one position)."""
    c = SHAPES[shape]
    head_dim = c.hidden_size // c.num_attention_heads
    attention = c.hidden_size * (2 * c.hidden_size + 2 * c.num_key_value_heads * head_dim)
    layer = 2 * (attention + 3 * c.hidden_size * c.intermediate_size) * num_tokens
    return c.num_hidden_layers * (layer + 4 * c.hidden_size * num_tokens * (num_tokens + 1) / 2)


def replay_flops(shape: str, drafter: Drafter, num_tokens: int, num_starts: int, depth: int = DEPTH) -> float:
    """What a replay adds to the prefill and cannot avoid: fc and k, v of every slot, K drafter steps of every start, the
    target's head on every position that has a draft."""
    spec, c = drafter.spec, SHAPES[shape]
    hidden, kv = spec.hidden_size, spec.num_kv_heads * spec.head_dim
    slot = spec.num_aux * spec.target_hidden_size * hidden + 2 * hidden * 2 * kv
    q = spec.num_heads * spec.head_dim
    step = 2 * hidden * (q + 2 * kv) + q * hidden + 3 * hidden * spec.intermediate_size + hidden * spec.draft_vocab_size
    mean_context = num_tokens - num_starts / 2
    attention = 2 * q * mean_context * depth * num_starts
    head = c.hidden_size * c.vocab_size * num_starts
    return 2 * (slot * num_tokens + step * num_starts * depth + attention + head)


def num_repeats(num_tokens: int, device: str) -> int:
    if device == "cpu":
        return 3
    return 7 if num_tokens <= 8192 else 3 if num_tokens <= 32768 else 1


def rows_of(shape: str, lengths: list[int], device: str) -> Iterator[dict[str, Any]]:
    target = random_target(shape, device, torch.float32 if device == "cpu" else torch.bfloat16)
    drafter = random_drafter(shape, target)
    live_rate = live_rounds_per_second(shape, target, drafter)
    for num_tokens in lengths:
        text = random_text(shape, num_tokens)
        parts = {
            "plain": partial(plain_prefill, target, text),
            "read": partial(target.read, text, num_tokens - LAST_TOKENS),
            "last": partial(whole_replay, target, [drafter], text, LAST_TOKENS),
            "all": partial(whole_replay, target, [drafter], text, None),
        }
        if num_tokens > 32768:
            del parts["read"]
        peaks: dict[str, int] = {}
        # the longest are long enough to need no warm-up but the shorter lengths
        samples = time_in_turn(parts, num_repeats(num_tokens, device), num_warmups=int(num_tokens <= 8192), peaks=peaks)
        ms = {name: summary(s) for name, s in samples.items()}
        num_all = num_tokens - 2
        floors = {
            name: 1 + replay_flops(shape, drafter, num_tokens, n) / prefill_flops(shape, num_tokens)
            for name, n in (("last", LAST_TOKENS - 1), ("all", num_all))
        }

        def ratio(name: str) -> dict[str, Any]:
            return summary([a / b for a, b in zip(samples[name], samples["plain"], strict=True)])  # noqa: B023

        added = ms["all"]["median"] - ms["plain"]["median"]
        yield (
            {
                "target": shape,
                "tokens": num_tokens,
                "plain prefill ms": ms["plain"],
                "plain TFLOP/s": prefill_flops(shape, num_tokens) / ms["plain"]["median"] / 1e9,
                "read in chunks ms": ms.get("read"),
                "last 512 ms": ms["last"],
                "last 512 / plain": ratio("last"),
                "its floor by FLOP": floors["last"],
                "all ms": ms["all"],
                "all / plain": ratio("all"),
                "its floor by FLOP ": floors["all"],
                "added us a start": added * 1e3 / num_all,
                "positions/s": num_all / ms["all"]["median"] * 1e3,
                "live rounds/s": live_rate,
                "times live": num_all / ms["all"]["median"] * 1e3 / live_rate,
                "peak GiB plain": peaks["plain"] / 2**30 if peaks else None,
                "peak GiB last": peaks["last"] / 2**30 if peaks else None,
                "peak GiB all": peaks["all"] / 2**30 if peaks else None,
            }
        )


def live_rounds_per_second(shape: str, target: Target, drafter: Drafter) -> float:
    """The draft-verify loop of this package on a prompt of 2,048 tokens, without the prefill and without the record.

    A random drafter is hardly ever right, so a round makes one token, and a replay's position is a round's worth.
    """
    text = random_text(shape, 2048)
    times: list[float] = []
    for num_rounds in (4, LIVE_ROUNDS, 4, LIVE_ROUNDS):
        synchronize()
        begin = time.perf_counter()
        options = LiveOptions(depth=DEPTH, max_new_tokens=num_rounds + 2, sampler=Sampler())
        run_live_batch(drafter, target, [text], ["0"], options)
        synchronize()
        times.append(time.perf_counter() - begin)
    return (LIVE_ROUNDS - 4) / (min(times[1], times[3]) - min(times[0], times[2]))


def profile(shape: str, num_tokens: int) -> None:
    """Where the time goes: kernels by their share of a whole replay of all positions."""
    from torch.profiler import ProfilerActivity, profile, record_function

    target = random_target(shape)
    drafter = random_drafter(shape, target)
    text = random_text(shape, num_tokens)
    whole_replay(target, [drafter], text, None)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found, record_function("whole"):
        trace = target.read(text, 1)
        synchronize()
        read = time.perf_counter()
        replay(drafter, trace, prompt_record(trace), name="d", depth=DEPTH)
        synchronize()
        print(f"{shape} {num_tokens}: replay after reading {1e3 * (time.perf_counter() - read):.1f} ms (profiled)")
    print(
        found.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=90), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", default="runs/benchmarks")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--lengths", default="")
    parser.add_argument("--device", default="cuda", help="cpu: float32, and memory is not seen")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for shape in arguments.shapes.split(","):
        lengths = {"Llama-3.1-8B": [2048, 8192, 32768, 131072], "SmolLM2-135M": [2048, 8192]}[shape]
        lengths = [int(n) for n in arguments.lengths.split(",")] if arguments.lengths else lengths
        if min(lengths) <= LAST_TOKENS:
            parser.error(f"--lengths: more than {LAST_TOKENS} tokens each, as so many are starts in one column")
        if arguments.profile:
            profile(shape, lengths[-1])
        else:
            for row in rows_of(shape, lengths, arguments.device):
                rows.append(row)
                write(Path(arguments.out), f"replay_{arguments.device}", rows, depth=DEPTH)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
