"""What recording costs inside vLLM: an 8B-shaped target with dummy weights, stock and recorded engines in turn.

python -m benchmarks.vllm_overhead OUT [--variants stock,default,default,counts,heads,eager,dump] [--pairs 20] [--trace]

One stock engine and one for each variant on the same GPU, so that all stay warm, each in a process of its own beside the
one that gives it requests, as `vllm serve` has it. They answer the same batch in turn, in alternating order; a variant's
time and the stock engines' of the same turn are a pair. A variant that is named twice has two engines, `stock` a second
one: what two engines of the same differ by. Drafts are accepted by chance (`rejection_sample_method="synthetic"`), by the
same in every batch: each request has its seed.
Two costs: of a round, the time from step to step while all requests draft; and of the whole batch over its rounds, from the
requests' arrival to the last answer, which differs by chance from batch to batch (how they arrive at the engine).
Baselines: `eager` is stock without graphs and compilation; `dump` copies the drafter's queries and keys to the host at
every step (in eager mode, as tools do that look into vLLM) and leaves the softmax for later.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.vllm_trace import start_clock, start_trace, stop_trace, take_clock

DEPTH = 5
MAX_NUM_SEQS, MAX_MODEL_LEN = 16, 8704
KEY_CACHE_BYTES = 3 << 30  # fixed: engines that share a GPU cannot measure what memory is left
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 16384,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DRAFTER = TARGET | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
    "fc_norm": True,
    "norm_output": True,
}
LEVELS = ("counts", "default", "heads")
SLOW = ("eager", "dump")
LEAST_PAIRS = 6  # with fewer, no two of them are an interval of 95 %


@dataclass(frozen=True, kw_only=True)
class Load:
    concurrency: int
    prompt_tokens: int
    max_tokens: int

    def __str__(self) -> str:
        return f"concurrency {self.concurrency}, {self.prompt_tokens} prompt tokens"


LOADS = (
    Load(concurrency=1, prompt_tokens=512, max_tokens=128),
    Load(concurrency=16, prompt_tokens=512, max_tokens=128),
    Load(concurrency=1, prompt_tokens=8192, max_tokens=128),
)
GOALS = {("default", LOADS[0]): 2.0, ("default", LOADS[1]): 2.0, ("heads", LOADS[2]): 10.0}
"""What a level's round may cost at most, %: the upper end of the interval."""


def write_models(folder: Path) -> tuple[str, str]:
    for name, config in (("target", TARGET), ("drafter", DRAFTER)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    return str(folder / "target"), str(folder / "drafter")


# a worker: one engine, measured on request


def work(engine_name: str, folder: Path) -> None:
    """Reads loads from stdin, a JSON object a line, answers with times; the first answer says that it is ready."""
    from vllm import SamplingParams

    from probes.vllm.engine import engine

    variant = engine_name.split()[0]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM and its children print to stdout
    target, drafter = write_models(folder)
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions of this module are called in the engine's process
    is_eager = variant in SLOW
    sizes = [1, 2, 4, 6, 8, 12, 16, 24, 48, 96]
    options: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": MAX_MODEL_LEN,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": KEY_CACHE_BYTES,
        "speculative_config": {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5},
        "additional_config": {"benchmark": engine_name},  # compiled for itself: what differs by chance then shows
        **({"enforce_eager": True} if is_eager else {"compilation_config": {"cudagraph_capture_sizes": sizes}}),
    }
    level = variant if variant in LEVELS else None
    with engine(
        target,
        drafter,
        depth=DEPTH,
        dtype="bfloat16",
        level=level,
        max_num_seqs=MAX_NUM_SEQS,
        options=options,
    ) as running:
        if variant == "dump":
            running.llm.collective_rpc(dump_queries_and_keys)
        running.llm.collective_rpc(start_clock)
        print(json.dumps(running.llm.collective_rpc(settings_of)[0]), file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            load = Load(**asked["load"])
            generator = np.random.default_rng(load.prompt_tokens)
            prompts = [
                {"prompt_token_ids": generator.integers(3, 30000, load.prompt_tokens).tolist()}
                for _ in range(load.concurrency)
            ]
            sampling = [
                SamplingParams(
                    temperature=0.0,
                    seed=seed,
                    max_tokens=load.max_tokens,
                    ignore_eos=True,
                    detokenize=False,
                    extra_args={"driftscope": f"request {seed}"},
                )
                for seed in range(load.concurrency)
            ]
            before = running.counters()
            if asked["has_trace"]:
                running.llm.collective_rpc(start_trace)
            begin = time.perf_counter()
            running.llm.generate(prompts, sampling, use_tqdm=False)
            seconds = time.perf_counter() - begin
            [clock] = running.llm.collective_rpc(take_clock)
            [trace] = running.llm.collective_rpc(stop_trace) if asked["has_trace"] else [None]
            rounds = (running.counters().num_drafts - before.num_drafts) / load.concurrency
            running.take()
            status = running.status()
            [num_dumped] = running.llm.collective_rpc(take_dumped) if variant == "dump" else [0]
            answer = {
                "seconds": seconds,
                "rounds": rounds,
                "begin": begin,
                **clock,
                "status": status and asdict(status),
                "dumped_elements": num_dumped,
                "trace": trace,
            }
            print(json.dumps(answer), file=answers, flush=True)


def settings_of(worker: Any) -> dict[str, object]:
    from probes.vllm.settings import runner_settings

    return runner_settings(worker.model_runner)


def dump_queries_and_keys(worker: Any) -> None:
    """From now on, after each attention of the drafter its queries and all of its keys go to the host."""
    from probes.vllm.depth_writer import key_view
    from probes.vllm.settings import drafter_model

    kept = worker.dumped = []
    for layer in drafter_model(worker.model_runner).model.layers:
        attention = layer.self_attn.attn
        _, keys_of = key_view(attention)
        forward = attention.impl.forward

        def dumping(module: Any, query: Any, key: Any, value: Any, cache: Any, metadata: Any, *a, **kw):
            result = forward(module, query, key, value, cache, metadata, *a, **kw)  # noqa: B023
            if metadata is not None:
                keys = keys_of(cache)  # noqa: B023
                block_slots = keys.shape[1]
                for row, length in enumerate(metadata.seq_lens.tolist()):
                    blocks = metadata.block_table[row, : -(-length // block_slots)].long()
                    kept.append((query[row : row + 1].cpu(), keys[blocks].cpu()))
            return result

        attention.impl.forward = dumping


def take_dumped(worker: Any) -> int:
    """How many elements were dumped since the last call."""
    count = sum(q.numel() + k.numel() for q, k in worker.dumped)
    worker.dumped.clear()
    return count


# the parent: who is measured when


class Worker:
    def __init__(self, name: str, folder: Path) -> None:
        """`name`: the variant, and a number where it has several engines."""
        self.name, self.variant = name, name.split()[0]
        self._begin = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.vllm_overhead", str(folder), "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / f"{name}.log").open("w"),
            text=True,
        )
        self.settings: dict = {}

    def wait_until_ready(self) -> None:
        self.settings = self._answer()
        print(f"{self.name}: ready after {time.monotonic() - self._begin:.0f} s", flush=True)

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine {self.name} ended; see its log")
        return json.loads(line)

    def measure(self, load: Load, *, has_trace: bool = False) -> dict:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"load": asdict(load), "has_trace": has_trace}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()


@contextmanager
def workers(variants: Sequence[str], folder: Path) -> Iterator[list[Worker]]:
    started: list[Worker] = []
    try:
        for index, variant in enumerate(variants):
            number = variants[: index + 1].count(variant)
            started.append(Worker(variant if number == 1 else f"{variant} {number}", folder))
        for worker in started:
            worker.wait_until_ready()
        yield started
    finally:
        for worker in started:
            worker.close()


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch's times. A full step verifies drafts of all requests."""

    round_us: float  # from one full step to the next, the mean
    launch_us: float  # of which the engine's thread was inside of the model runner, launching
    wait_us: float  # and of which it waited for a step's tokens: near 0 where the device waits for the host
    batch_us: float  # the batch's time over its rounds
    parts_ms: tuple[float, float, float]  # up to the first full step, to the last one, to the end

    @staticmethod
    def of(answer: dict, load: Load) -> Batch:
        """From what a worker answers."""
        steps, waits = np.array(answer["steps"]), np.array(answer["waits"]).reshape(-1, 2)
        tokens, requests, begins = steps[:, 0], steps[:, 1], steps[:, 2]
        is_full = (requests == load.concurrency) & (tokens == load.concurrency * (DEPTH + 1))
        first, last = np.flatnonzero(is_full)[[0, -1]]
        begin, end = answer["begin"], answer["begin"] + answer["seconds"]
        parts = np.diff([begin, begins[first], begins[last], end]) * 1e3
        is_within = (begins[first] <= waits[:, 0]) & (waits[:, 0] < begins[last])
        inside = (steps[:, 3] - steps[:, 2]) + (steps[:, 5] - steps[:, 4])
        return Batch(
            round_us=float(begins[last] - begins[first]) / (last - first) * 1e6,
            launch_us=float(inside[first:last].mean()) * 1e6,
            wait_us=float(waits[is_within, 1].sum()) / (last - first) * 1e6,
            batch_us=answer["seconds"] / answer["rounds"] * 1e6,
            parts_ms=(float(parts[0]), float(parts[1]), float(parts[2])),
        )


def compare(engines: Sequence[Worker], load: Load, *, num_pairs: int, deadline: float) -> list[dict]:
    """Costs in % of every engine but the first, which is stock: the median of the pairs' ratios, with an interval that
    assumes no distribution, as one batch in many takes a third longer for reasons of the machine's. A pair's first is the
    mean of all stock engines of that turn, for a second stock engine the first one's. After `deadline`, of
    `time.monotonic`, no turn begins, but LEAST_PAIRS there are.
    """
    for engine in engines:
        engine.measure(load)  # fills the prefix cache
    batches: dict[str, list[Batch]] = {engine.name: [] for engine in engines}
    status: dict[str, dict] = {}
    for turn in range(num_pairs):
        if turn >= LEAST_PAIRS and time.monotonic() > deadline:
            break
        for engine in engines if turn % 2 == 0 else reversed(engines):
            answer = engine.measure(load)
            batches[engine.name].append(Batch.of(answer, load))
            if answer["status"]:
                status[engine.name] = answer["status"]
    for name, of in status.items():
        if of["failure"] or not of["num_written"]:
            raise RuntimeError(f"{name} did not record what it was timed with: {of}")
    first, *others = engines
    every_stock = [engine.name for engine in engines if engine.variant == first.variant]
    results = []
    for engine in others:
        stocks = [first.name] if engine.variant == first.variant else every_stock
        result = {
            "variant": engine.name,
            "load": asdict(load),
            "num_pairs": len(batches[engine.name]),
            **{of: _cost(batches, stocks, engine.name, of) for of in ("round_us", "batch_us")},
            **{of: _median(batches[engine.name], of) for of in ("launch_us", "wait_us")},
        }
        print(json.dumps(result), flush=True)
        compared = {name: [asdict(b) for b in batches[name]] for name in (*stocks, engine.name)}
        results.append(result | {"recorder": status.get(engine.name), "batches": compared})
    return results


def _cost(batches: dict[str, list[Batch]], stocks: Sequence[str], name: str, of: str) -> dict[str, Any]:
    stock = np.mean([[getattr(b, of) for b in batches[s]] for s in stocks], axis=0)
    variant = np.array([getattr(b, of) for b in batches[name]])
    percent = (variant / stock - 1) * 100
    return {
        "stock": float(np.median(stock)),
        "variant": float(np.median(variant)),
        "percent": float(np.median(percent)),
        "interval_percent": median_interval(percent),
    }


def _median(batches: Sequence[Batch], of: str) -> float:
    return float(np.median([getattr(b, of) for b in batches]))


def traces(started: Sequence[Worker]) -> list[dict]:
    """Of one batch, per round in microseconds."""
    found = []
    for load in LOADS:
        for worker in started:
            if worker.variant in SLOW:
                continue
            worker.measure(load)  # fills the prefix cache
            answer = worker.measure(load, has_trace=True)
            of, rounds = answer["trace"], answer["rounds"]
            print(
                f"{worker.name}, {load}: a round of {answer['seconds'] / rounds * 1e6:.0f} us, the device busy for "
                f"{of['busy_us'] / rounds:.0f}, short gaps of {of['gaps_us'] / rounds:.0f}, "
                f"{of['num_kernels'] / rounds:.0f} kernels of "
                f"{of['kernels_us'] / rounds:.0f}, the recorder's "
                f"{ {n: round(us / rounds, 1) for n, us in of['recorder_us'].items()} }",
                flush=True,
            )
            found.append({"variant": worker.name, "load": asdict(load)} | answer)
    return found


def comparisons(engines: Sequence[Worker], num_pairs: int) -> list[tuple[list[Worker], Load, int]]:
    """What is measured, in order: who, with what, in how many pairs."""
    fast = [engine for engine in engines if engine.variant not in SLOW]
    slow = [engine for engine in engines if engine.variant in SLOW]
    found = [(fast, load, num_pairs) for load in LOADS]
    found += [
        ([engines[0], *slow], load, max(LEAST_PAIRS, num_pairs // 4)) for load in LOADS if load.prompt_tokens <= 512
    ]
    return [(who, load, n) for who, load, n in found if len(who) > 1]


def median_interval(values: np.ndarray) -> tuple[float, float]:
    """Of the median of what these are a sample of, at least 95 %: two order statistics, by the sign test."""
    n = len(values)
    rank = int(stats.binom.ppf(0.025, n, 0.5))
    ordered = np.sort(values)
    return float(ordered[max(rank - 1, 0)]), float(ordered[min(n - rank, n - 1)])


def table(results: Sequence[dict]) -> str:
    lines = [
        "| variant | load | stock, us a round | variant, us a round | cost of a round, % | of the batch, % | goal |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        goal = GOALS.get((r["variant"].split()[0], Load(**r["load"])))
        a_round = r["round_us"]
        verdict = (
            "" if goal is None else f"<= {goal:.0f}: {'met' if a_round['interval_percent'][1] <= goal else 'not met'}"
        )
        lines.append(
            f"| {r['variant']} | {Load(**r['load'])} | {a_round['stock']:.0f} | {a_round['variant']:.0f} "
            f"| {_percent(a_round)} | {_percent(r['batch_us'])} | {verdict} |"
        )
    return "\n".join(lines)


def _percent(cost: dict) -> str:
    low, high = cost["interval_percent"]
    resolved = "" if high - low < 2 else ", not resolved"
    return f"{cost['percent']:+.2f} ({low:+.2f} .. {high:+.2f}{resolved})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("out", type=Path, help="folder for results.json, table.md and the engines' logs")
    parser.add_argument("--variants", default="default,heads")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--concurrency", type=int, help="only the loads of so many requests at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="of measuring: begin nothing after so many")
    parser.add_argument(
        "--trace", action="store_true", help="at the end, each engine's kernels by time, into trace.json"
    )
    parser.add_argument("--wait-for", type=Path, help="a file: measure only once it is there")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.out / "models" / options.worker)
        return
    import torch

    options.out.mkdir(parents=True, exist_ok=True)
    results: list[dict] = []
    with workers(["stock", *options.variants.split(",")], options.out) as started:
        while options.wait_for is not None and not options.wait_for.exists():
            time.sleep(0.5)
        deadline = time.monotonic() + options.seconds
        for engines, load, num_pairs in comparisons(started, options.pairs):
            if options.concurrency not in (None, load.concurrency):
                continue
            if time.monotonic() > deadline:
                break
            results += compare(engines, load, num_pairs=num_pairs, deadline=deadline)
            settings = {worker.name: worker.settings for worker in started}
            report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "settings": settings}
            (options.out / "results.json").write_text(json.dumps(report | {"results": results}, indent=1))
            (options.out / "table.md").write_text(table(results) + "\n")
        if options.trace:
            (options.out / "trace.json").write_text(json.dumps(traces(started), indent=1))
    print(table(results), flush=True)


if __name__ == "__main__":
    main()
