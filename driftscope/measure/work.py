"""One measurement to make, for either kind of engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from driftscope.measure.describe import Loaded, run_info
from driftscope.plan import Plan
from driftscope.runs import BatchKey, read_run
from driftscope.runs.writer import RunWriter
from driftscope.summary import summarise, write_summary
from probes.conditions import Job, Progress
from probes.record import PromptConditionKey


@dataclass(frozen=True, kw_only=True)
class Work:
    plan: Plan
    job: Job  # of the plan, its files read
    out: Path  # the run
    notes: list[str]  # on what was read
    resume: bool
    overwrite: bool
    on_status: Callable[[str], None]
    on_progress: Callable[[Progress], None]

    def open_writer(self, loaded: Loaded) -> RunWriter:
        """The new run, or the stopped one that goes on."""
        if self.resume:
            return RunWriter.resume(self.out, plan=self.plan.stored())
        info = run_info(self.plan, self.job, loaded, self.notes)
        return RunWriter(self.out, info, overwrite=self.overwrite)

    def summarise(self) -> None:
        """Write the finished run's summary."""
        run = read_run(self.out)
        write_summary(run, summarise(run))


def is_done_in(writer: RunWriter) -> Callable[[str, PromptConditionKey, str], bool]:
    """-> whether (drafter, condition, prompt id) is on disk."""
    done = frozenset(writer.complete_batches)
    return lambda drafter, condition, prompt_id: BatchKey(drafter, *condition, prompt_id) in done
