"""`driftscope bench`: tokens per second without speculation, with each drafter, with and without recording."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftscope.cli.console import Json, Markdown, one_form, print_json
from driftscope.cli.plan_options import plan_options
from driftscope.plan import flag, make_plan
from probes.errors import InputError

if TYPE_CHECKING:
    from driftscope.bench.bench_result import BenchOptions


@plan_options(
    (
        "target",
        "drafter",
        "prompts",
        "num_prompts",
        "depth",
        "max_new_tokens",
        "temperature",
        "dtype",
        "trust_remote_code",
    )
)
def bench(
    plan: Annotated[Path | None, typer.Argument(help="Plan file, as for `probe`; its first condition is used.")] = None,
    *,
    given: dict[str, Any],
    concurrency: Annotated[str, typer.Option(metavar="N,...", help="Requests in the engine at once.")] = "1,4,16",
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions of each engine at each concurrency.")] = 5,
    recording: Annotated[
        list[str] | None,
        typer.Option(metavar="off|LEVEL", help="off, counts, default, heads. Repeatable. [off, default]"),
    ] = None,
    in_turn: Annotated[
        bool, typer.Option("--in-turn", help="Run one engine at a time, if all do not fit; then nothing alternates.")
    ] = False,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of GPU memory of each engine. [0.9 shared among those that run at once]")
    ] = None,
    markdown: Markdown = False,
    json: Json = False,
) -> None:
    """Time vLLM on the same prompts: no speculation, each drafter, recorded and not; repetitions alternate.

    A [vllm] table in the plan gives engine options. docs/production.md says what the numbers mean. If it ends early
    (Ctrl-C, SIGTERM, an engine that ended), it prints what it has and its exit code is 1.
    """
    from driftscope.bench.run import bench as timed
    from driftscope.cli.bench_text import as_markdown, print_result
    from driftscope.plan_files import read_plan

    one_form(json, markdown)
    options = read_plan(plan, trust_remote_code=given.get("trust_remote_code", False)) if plan is not None else {}
    checked = make_plan(options | {"engine": "vllm"}, given, where=str(plan or "driftscope bench"))
    asked = _asked(
        concurrency=concurrency,
        repetitions=repetitions,
        recording=recording or ["off", "default"],
        is_together=not in_turn,
        gpu_memory_utilization=gpu_memory_utilization,
    )
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


def _asked(**options: Any) -> BenchOptions:
    """Raises InputError naming the option."""
    from pydantic import ValidationError

    from driftscope.bench.bench_result import BenchOptions

    try:
        return BenchOptions(**options)
    except ValidationError as error:
        raise InputError(
            f"{error.errors(include_url=False)[0]['msg']}",
            code="bad_option",
            where=flag(str(error.errors()[0]["loc"][0])),
            remedy="For instance --concurrency 1,4,16 --gpu-memory-utilization 0.3.",
        ) from error
