"""`driftscope bench`: tokens per second without speculation, with each drafter, with and without recording."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from driftscope.cli.console import Json, print_json
from driftscope.cli.probe import named_paths, need_models, numbers
from probes.errors import InputError


class RecordingWord(StrEnum):
    """Of the engines that are compared."""

    off = "off"
    counts = "counts"
    default = "default"
    heads = "heads"


def bench(
    plan: Annotated[
        Path | None, typer.Argument(help="Plan file, as of `probe`; its conditions' first is used.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Folder or Hub id; `demo`: the built-in one.")] = None,
    drafter: Annotated[list[str] | None, typer.Option(metavar="NAME=PATH", help="Repeatable.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="Prompt file, SPEED-Bench included; left out: built-in user turns.")
    ] = None,
    num_prompts: Annotated[int | None, typer.Option(help="Only the first so many prompts.")] = None,
    concurrency: Annotated[str, typer.Option(metavar="N,...", help="Requests in the engine at once.")] = "1,4,16",
    repetitions: Annotated[int, typer.Option(min=1, help="Of each engine at each concurrency.")] = 5,
    recording: Annotated[
        list[RecordingWord] | None, typer.Option(help="Repeatable: off, counts, default, heads. [off, default]")
    ] = None,
    in_turn: Annotated[
        bool, typer.Option("--in-turn", help="One engine at a time, where all do not fit; nothing alternates then.")
    ] = False,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Of each engine. [0.9 shared among those that run at once]")
    ] = None,
    depth: Annotated[int | None, typer.Option(help="K, drafts in a round. [7]")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest response, in tokens. [128]")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of the target. [0]")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16. [float32]")] = None,
    trust_remote_code: Annotated[
        bool | None, typer.Option("--trust-remote-code", help="Let the target's repository run its own code.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print GitHub-flavoured Markdown.")] = False,
    json: Json = False,
) -> None:
    """Time vLLM on the same prompts: no speculation, each drafter, recorded and not; repetitions alternate.

    A [vllm] table in the plan gives engine options. docs/production.md says what the numbers mean. Ended early (Ctrl-C,
    SIGTERM, an engine that ended), it prints what it has, and its exit code is 1.
    """
    from pydantic import ValidationError

    from driftscope.bench.bench_result import BenchOptions
    from driftscope.bench.run import bench as timed
    from driftscope.cli.bench_text import as_markdown, print_result
    from driftscope.plan import make_plan, read_plan

    if json and markdown:
        raise InputError(
            "--json and --markdown exclude each other", code="usage", where="command line", remedy="choose one"
        )
    given = {
        "target": target,
        "drafter": named_paths(drafter, "--drafter", ()),
        "prompts": prompts,
        "num_prompts": num_prompts,
        "depth": depth,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "dtype": dtype,
        "trust_remote_code": trust_remote_code,
    }
    options: dict[str, Any] = {} if plan is None else read_plan(plan, trust_remote_code=bool(trust_remote_code))
    options |= {name: value for name, value in given.items() if value is not None}
    need_models(options, where=str(plan or "driftscope bench"))
    checked = make_plan(options | {"engine": "vllm"}, where="command line" if plan is None else str(plan))
    try:
        asked = BenchOptions(
            concurrency=numbers(concurrency, "--concurrency", "1,4,16"),
            repetitions=repetitions,
            recording=[word.value for word in recording or (RecordingWord.off, RecordingWord.default)],
            is_together=not in_turn,
            gpu_memory_utilization=gpu_memory_utilization,
        )
    except ValidationError as error:
        raise InputError(
            f"{error.errors(include_url=False)[0]['msg']}",
            code="bad_option",
            where="--" + str(error.errors()[0]["loc"][0]).replace("_", "-"),
            remedy="for instance --concurrency 1,4,16 --gpu-memory-utilization 0.3",
        ) from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended by another program as by Ctrl-C
    result = timed(checked, asked, on_status=lambda text: print(text, file=sys.stderr, flush=True))
    if json:
        print_json(result)
    elif markdown:
        sys.stdout.write(as_markdown(result))
    else:
        print_result(result)
    if result.ended_early is not None:
        raise typer.Exit(1)
