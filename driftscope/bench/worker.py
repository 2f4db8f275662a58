"""One engine in a process of its own: reads loads from stdin, a JSON object a line, answers with times.

python -m driftscope.bench.worker JOB.json

At every moment `concurrency` requests are in the engine: a new one is given when another ends, so there is no tail but the
last. A request's time runs from when it is given to its last token.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftscope.bench.bench_result import NO_DRAFTER, Variant
from driftscope.plan import Plan, make_plan
from driftscope.plan_files import read_job
from probes.errors import quotes_hidden

if TYPE_CHECKING:
    from probes.conditions import Job
    from probes.vllm.engine import Engine


def work(job_file: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM and its children print to stdout
    given = json.loads(job_file.read_text())
    plan, variant = make_plan(given["plan"], where="bench"), Variant(**given["variant"])
    with quotes_hidden(plan.keeps_texts_private):
        job, _ = read_job(plan)
        prompts = prompts_of_job(job)
    with _engine(job, variant, given["options"]) as running:
        _say(answers, {"prompt_ids": [name for name, _ in prompts], "machine": _machine()})
        for line in sys.stdin:
            load = json.loads(line)
            counted = running.counters()
            answer = _measure(running.llm, prompts, load["concurrency"], plan, load["repetition"])
            counted = running.counters() - counted
            running.take()
            status = running.status()
            if status is not None and status.failure is not None:
                raise RuntimeError(f"the recorder failed: {status.failure}")
            answer |= {"num_drafts": counted.num_drafts, "num_accepted": counted.num_accepted}
            _say(answers, answer)


def prompts_of_job(job: Job) -> list[tuple[str, list[int]]]:
    """(prompt id, token ids) under the first condition; responses that came along are left out."""
    from probes.conditions import prompt_conditions, prompts_of
    from probes.prompt.rendering import insert_context
    from probes.prompt.under_condition import render_or_take
    from probes.target.source import target_tokenizer

    job = replace(job, prompts=[replace(p, response=None, response_token_ids=None) for p in job.prompts])
    tokenizer = target_tokenizer(job.target, trust_remote_code=job.trust_remote_code)
    condition = next(iter(prompt_conditions(job)))
    length = condition.context_tokens
    document = insert_context(job.documents, length, tokenizer) if length else None
    return [
        (p.prompt_id, render_or_take(tokenizer, p, condition, document).token_ids.tolist())
        for p in prompts_of(job, condition)
    ]


def _engine(job: Job, variant: Variant, options: dict[str, Any]) -> AbstractContextManager[Engine]:
    from probes.vllm.engine import engine

    return engine(
        job.target,
        None if variant.drafter == NO_DRAFTER else job.drafters[variant.drafter],
        depth=job.depth,
        dtype=job.dtype,
        level=None if variant.recording == "off" else variant.recording,
        trust_remote_code=job.trust_remote_code,
        options=options,
    )


def _measure(
    llm: Any, prompts: Sequence[tuple[str, list[int]]], concurrency: int, plan: Plan, repetition: int
) -> dict[str, Any]:
    from vllm import SamplingParams

    engine = llm.llm_engine
    waiting = deque(prompts)
    begun: dict[str, float] = {}
    seconds, tokens, digests = ({name: value for name, _ in prompts} for value in (0.0, 0, ""))
    begin = time.perf_counter()
    while waiting or begun:
        while waiting and len(begun) < concurrency:
            name, ids = waiting.popleft()
            sampling = SamplingParams(
                temperature=plan.temperature,
                seed=plan.seed if plan.temperature > 0 else None,
                max_tokens=plan.max_new_tokens,
                detokenize=False,
                extra_args={"driftscope": name},
            )
            key = f"{concurrency}/{repetition}/{name}"
            begun[key] = time.perf_counter()
            engine.add_request(key, {"prompt_token_ids": ids}, sampling)
        for output in engine.step():
            if output.finished:
                name = output.request_id.split("/", 2)[2]
                seconds[name] = time.perf_counter() - begun.pop(output.request_id)
                ids = output.outputs[0].token_ids
                tokens[name] = len(ids)
                digests[name] = hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()
    return {
        "wall_seconds": time.perf_counter() - begin,
        "seconds": list(seconds.values()),
        "tokens": list(tokens.values()),
        "digests": list(digests.values()),
    }


def _machine() -> dict[str, Any]:
    import torch

    from probes.vllm.versions import vllm_version

    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {"vllm": vllm_version(), "torch": torch.__version__},
    }


def _say(answers: Any, value: dict[str, Any]) -> None:
    print(json.dumps(value), file=answers, flush=True)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
