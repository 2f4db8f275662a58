"""Starts the engines, asks them in turn, collects the times. Imports neither torch nor vLLM."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import driftscope
from driftscope.bench.bench_result import MAX_IDLE_LOAD, BenchOptions, BenchResult, Machine, Variant
from driftscope.bench.results import Sample, rows_of, unresolved, whole_repetitions
from driftscope.check.pair import read_pair
from driftscope.plan import Plan
from driftscope.plan_files import read_job
from probes.errors import InputError, quotes_hidden

GPU_MEMORY_SHARE = 0.9  # of the GPU, for all engines together


def variants_of(plan: Plan, options: BenchOptions) -> list[Variant]:
    """Without speculation first, then each drafter with each recording."""
    return [Variant(), *(Variant(drafter=d, recording=r) for d in plan.drafter for r in options.recording)]


def bench(plan: Plan, options: BenchOptions, *, on_status: Callable[[str], None] = lambda text: None) -> BenchResult:
    """Interrupted, or where an engine ends, after a repetition: the result of those that were made, `ended_early`.

    Raises CheckpointError for models that cannot be read, InputError where an engine does not start or ends before.
    """
    with quotes_hidden(plan.keeps_texts_private):
        job, _ = read_job(plan)
    for drafter in job.drafters.values():
        read_pair(job.target, drafter)
    load_before = os.getloadavg()[0] / (os.cpu_count() or 1)
    variants = variants_of(plan, options)
    groups = [variants] if options.is_together else [[variant] for variant in variants]
    samples: list[Sample] = []
    said: dict[str, Any] = {}
    ended_early = None
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as folder:
        try:
            for group in groups:
                with _workers(group, plan, options, Path(folder), on_status) as workers:
                    said = workers[0].said
                    for sample in _interleaved(workers, options, on_status):
                        samples.append(sample)  # what was made stands when the next one fails
        except (KeyboardInterrupt, InputError) as error:
            samples = whole_repetitions(samples)
            if not samples:
                raise
            ended_early = str(error) or "interrupted"
    machine = Machine(
        cpu=processor(),
        num_cores=os.cpu_count() or 1,
        gpu=said["machine"]["gpu"],
        load_before=load_before,
        platform=platform.platform(),
        packages={"driftscope": driftscope.__version__, **said["machine"]["packages"]},
    )
    order = [(concurrency, variant) for concurrency in options.concurrency for variant in variants]
    rows = sorted(rows_of(samples), key=lambda row: order.index((row.concurrency, row.variant)))
    return BenchResult(
        machine=machine,
        plan=plan.stored(),
        options=options,
        num_prompts=len(said["prompt_ids"]),
        rows=rows,
        ended_early=ended_early,
        warnings=_warnings(machine, options, rows),
    )


def _warnings(machine: Machine, options: BenchOptions, rows: Sequence[Any]) -> list[str]:
    warnings = []
    if machine.load_before > MAX_IDLE_LOAD:
        warnings.append(
            f"the machine was busy before the engines started (load {machine.load_before:.2f} a core): do not quote this"
        )
    if machine.gpu is None:
        warnings.append(
            "run on a CPU: it shows that the engines run and answer alike; speculation's gain there says nothing of a GPU, "
            "where verifying several tokens costs about as much as one"
        )
    if not options.is_together:
        warnings.append("engines ran one after the other: drift of the machine between them is in the ratios")
    if (num := unresolved(rows)) > 0:
        warnings.append(
            f"{num} ratios are not resolved (half-width above 5 %, or fewer than 5 units): repeat more often"
        )
    return warnings


def _interleaved(
    workers: Sequence[_Worker], options: BenchOptions, on_status: Callable[[str], None]
) -> Iterator[Sample]:
    """Each repetition asks every engine, in an order that turns by one each time; a first one is not counted."""
    for concurrency in options.concurrency:
        for repetition in range(options.repetitions + 1):
            turn = repetition % len(workers)
            for worker in [*workers[turn:], *workers[:turn]]:
                on_status(f"concurrency {concurrency}, repetition {repetition}: {worker.variant}")
                answer = worker.ask({"concurrency": concurrency, "repetition": repetition})
                if repetition > 0:
                    yield Sample(variant=worker.variant, concurrency=concurrency, **answer)


@dataclass
class _Worker:
    variant: Variant
    process: subprocess.Popen[str]
    log: Path
    said: dict[str, Any]

    def ask(self, load: dict[str, int]) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(load) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said is in its log
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            lines = self.log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise InputError(
                f"the engine ended: {lines[-1]}",  # a traceback ends with what went wrong
                code="engine_ended",
                where=str(self.variant),
                remedy="lower --gpu-memory-utilization, use --in-turn, or see docs/production.md",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def _workers(
    variants: Sequence[Variant],
    plan: Plan,
    options: BenchOptions,
    folder: Path,
    on_status: Callable[[str], None],
) -> Iterator[list[_Worker]]:
    """Started one after the other: an engine measures what memory is left."""
    share = options.gpu_memory_utilization or round(GPU_MEMORY_SHARE / len(variants), 3)
    engine_options = {
        "enable_prefix_caching": False,  # a repetition is the same work again
        "max_num_seqs": max(options.concurrency),
        "gpu_memory_utilization": share,
        **plan.vllm,
    }
    with ExitStack() as stack:
        workers: list[_Worker] = []
        stack.callback(_end, workers)
        for index, variant in enumerate(variants):
            on_status(f"starting vLLM: {variant}")
            job = folder / f"job-{index}.json"
            asked = {
                "plan": plan.model_dump(mode="json", exclude_unset=True),
                "variant": variant.model_dump(),
                "options": engine_options,
            }
            job.write_text(json.dumps(asked))
            log = job.with_suffix(".log")
            process = subprocess.Popen(
                [sys.executable, "-m", "driftscope.bench.worker", str(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(log.open("w")),
                text=True,
                start_new_session=True,  # a Ctrl-C is for this process, which then ends them in order
            )
            workers.append(_Worker(variant, process, log, {}))
            workers[-1].said = workers[-1].answer()
        yield workers


def _end(workers: Sequence[_Worker]) -> None:
    """All at the same time, in order, as nothing more can be asked of them; those that still start are killed."""
    for worker in workers:
        if not worker.said:
            _kill(worker.process)
        elif worker.process.stdin is not None:
            with suppress(BrokenPipeError):  # what could not be given to one that has ended
                worker.process.stdin.close()
    end = time.monotonic() + 30
    for worker in workers:
        try:
            worker.process.wait(timeout=max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            _kill(worker.process)
            worker.process.wait()


def _kill(process: subprocess.Popen[str]) -> None:
    """With the engine that it started, a process of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def processor() -> str:
    """This machine's processor by name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
