"""What `probe` and `demo` share: progress on stderr, the run's summary (or one JSON object) on stdout."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from driftscope.cli.console import console, print_json
from driftscope.plan import Plan
from probes.conditions import Progress, SelfCheck
from probes.errors import printable, quotes_hidden

if TYPE_CHECKING:
    from driftscope.runs import Run

T = TypeVar("T")

LOG_SECONDS = 5.0
"""Without a terminal, a line of progress follows every new condition, and this interval."""


class MeasuredRun(BaseModel):
    """Where the run lies and how far it got."""

    path: str
    status: str
    engine: str
    num_prompts: int
    num_rounds: int
    num_depth_rows: int

    @classmethod
    def of(cls, run: Run) -> MeasuredRun:
        """As run.json says."""
        counts = run.info.counts
        return cls(
            path=str(run.path),
            status=run.status.value,
            engine=run.info.engine,
            num_prompts=counts.num_prompts,
            num_rounds=counts.num_rounds,
            num_depth_rows=counts.num_depth_rows,
        )


class MeasureOutput(BaseModel):
    """`probe --json` and `demo --json`. `self_check` is null when the run was there already."""

    schema_version: int = 1
    run: MeasuredRun
    self_check: SelfCheck | None


def make_run(plan: Plan, out: Path, *, resume: bool, overwrite: bool, as_json: bool) -> None:
    """Measures, then shows the run. With `resume`, a stopped run goes on and a complete one is only shown.

    Raises RunError `plan_differs` rather than mix two plans in one run.
    """
    from driftscope.runs import RunStatus, read_run

    check = measured_run(plan, out, resume=resume, overwrite=overwrite)
    run = read_run(out)
    if as_json:
        print_json(MeasureOutput(run=MeasuredRun.of(run), self_check=check))
        return
    from driftscope.cli.show_text import print_summary
    from driftscope.summary import summarise

    assert run.status == RunStatus.complete
    print_summary(console(), run, summarise(run))
    if check is not None:
        _say_check(check)


def measured_run(plan: Plan, out: Path, *, resume: bool, overwrite: bool) -> SelfCheck | None:
    """Measures what `out` lacks; None when it is complete already."""
    from driftscope.measure.run import measure
    from driftscope.runs.replace import successor

    is_there = out.exists() and not overwrite
    if is_there and resume and _is_complete(out, plan):
        _say(f"{out} is complete; --overwrite measures it again")
        return None
    is_replaced = out.exists() and overwrite
    try:
        with quotes_hidden(plan.keeps_texts_private):
            check = follow(
                lambda on_status, on_progress: measure(
                    plan,
                    out,
                    resume=resume and is_there,
                    overwrite=overwrite,
                    on_status=on_status,
                    on_progress=on_progress,
                )
            )
    except BaseException:
        if is_replaced and successor(out).exists():
            _say(f"{out} is kept as it was. What was measured so far: {successor(out)}")
        raise
    return check


def _is_complete(out: Path, plan: Plan) -> bool:
    from driftscope.runs import RunStatus, read_run

    run = read_run(out)
    return run.status == RunStatus.complete and run.info.plan == plan.stored()


def follow(work: Callable[[Callable[[str], None], Callable[[Progress], None]], T]) -> T:
    """Does `work(on_status, on_progress)` with its progress and time left on stderr -> what it returns."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # read when torch is first imported: threads that wait by spinning starve each other where the CPU is shared
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    columns = (
        TextColumn("{task.description}", markup=False),  # a name is a name
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    stderr = Console(stderr=True, highlight=False)
    is_log = not stderr.is_terminal  # a bar would leave nothing readable there: a line now and then instead
    last, said_at = "", 0.0
    with Bar(*columns, console=stderr, transient=True, disable=is_log) as bar:
        task = bar.add_task("starting", total=None)

        def on_progress(progress: Progress) -> None:
            nonlocal last, said_at
            bar.update(
                task, description=printable(progress.condition), completed=progress.num_done, total=progress.num_units
            )
            is_due = progress.condition != last or time.monotonic() - said_at >= LOG_SECONDS
            if is_log and is_due:
                said = f"{progress.num_done}/{progress.num_units} {printable(progress.condition)}"
                stderr.print(said, soft_wrap=True, markup=False)
                last, said_at = progress.condition, time.monotonic()

        return work(lambda text: bar.update(task, description=text), on_progress)


def _say(text: str) -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False).print(printable(text), soft_wrap=True, markup=False)


def _say_check(check: SelfCheck) -> None:
    if check.num_texts:
        _say(
            f"self-check: {check.num_identical} of {check.num_texts} live texts equal plain decoding token for token, "
            f"{check.num_first_differences_tied} differ first at a tie (largest gap {check.max_first_difference_gap:.2g})"
        )
    _say(f"ties (logit gap < 1e-4): {check.num_ties}; responses too short for a round: {check.num_too_short}")
    for note in check.notes:
        _say(f"note: {note}")
