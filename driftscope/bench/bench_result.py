"""What `driftscope bench` is asked and what it answers (`--json`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from driftscope.plan import COMMAS, Positive

NO_DRAFTER = "none"
"""The variant without speculation."""

MAX_HALF_WIDTH = 0.05  # of a ratio's interval, as a share of the ratio: above it is called "not resolved"
MAX_IDLE_LOAD = (
    0.25  # processes that want to run, for each core, before anything is started: above it the machine is busy
)


class BenchOptions(BaseModel):
    """Beside the plan: what is timed, and how often."""

    model_config = ConfigDict(frozen=True)

    concurrency: Annotated[list[Positive], COMMAS] = Field([1, 4, 16], min_length=1)
    repetitions: Positive = 5
    recording: list[Literal["off", "counts", "default", "heads"]] = Field(["off", "default"], min_length=1)
    is_together: bool = True  # all engines at once, so that repetitions alternate; False: one after the other
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)  # of each engine; None: 0.9 shared among them


class Variant(BaseModel):
    """One engine."""

    model_config = ConfigDict(frozen=True)

    drafter: str = NO_DRAFTER  # a name, or "none"
    recording: str = "off"  # or the level

    def __str__(self) -> str:
        return self.drafter if self.recording == "off" else f"{self.drafter}, recording {self.recording}"


class Estimate(BaseModel):
    """With its 95 % interval; None where there are too few units."""

    estimate: float | None
    low: float | None = None
    high: float | None = None
    num_units: int = 0  # prompts or repetitions

    @property
    def is_resolved(self) -> bool:
        if self.estimate is None or self.low is None or self.high is None:
            return False
        return (self.high - self.low) / 2 <= MAX_HALF_WIDTH * abs(self.estimate)


class Ratio(Estimate):
    """A rate divided by the baseline's."""

    baseline: str  # the variant
    resolved: bool  # the interval's half-width is at most 5 % of the ratio


class Row(BaseModel):
    """One variant at one concurrency."""

    variant: Variant
    concurrency: int
    user_tokens_per_s: Estimate  # tokens of a response over the time from its request's start to its end; over prompts
    total_tokens_per_s: Estimate  # all tokens over the wall time of a repetition; over repetitions
    user_speedup: Ratio | None = None  # to no speculation; None for that itself
    total_speedup: Ratio | None = None
    user_recording: Ratio | None = None  # recording to the same drafter without; None where it is not recorded
    total_recording: Ratio | None = None
    tokens_per_round: float | None = None  # vLLM's counters: accepted / drafts + 1
    num_texts: int = 0
    num_texts_equal: int | None = None  # token for token to those without speculation


class Machine(BaseModel):
    """What it ran on."""

    cpu: str
    num_cores: int
    gpu: str | None = None
    load_before: float  # processes that wanted to run for each core, 1 minute's mean, before the engines started
    platform: str
    packages: dict[str, str] = Field(default_factory=dict)


class BenchResult(BaseModel):
    """The whole answer."""

    schema_version: int = 1
    machine: Machine
    plan: dict[str, Any]
    options: BenchOptions
    num_prompts: int
    rows: list[Row]
    ended_early: str | None = None  # why, where not all repetitions were made: rows are of those that were
    warnings: list[str] = Field(default_factory=list)
