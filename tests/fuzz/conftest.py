"""Random and hostile files, read in a process of their own: a result or a DriftscopeError, in bounded time and memory.

`make test` runs hypothesis' usual hundred inputs per test; `make fuzz` (`--hypothesis-profile=fuzz`) well over ten thousand
in all. A failing input is shrunk and printed by hypothesis.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.fuzz.reader import MEASURING

ANSWER_SECONDS = 60  # a hang, even on a busy machine: inputs are a few kB and take milliseconds
FUZZ_ANSWER_SECONDS = 20  # in `make fuzz`, which has the machine for itself
MAX_GROWTH_MIB = 256
MAX_MEASURING_GROWTH_MIB = 2_048
COUNT = pytest.StashKey[dict[str, int]]()


class Reader:
    """The reading process; started again after a hang. `arguments`: those of tests.fuzz.reader."""

    def __init__(
        self, *arguments: str, max_growth_mib: float = MAX_GROWTH_MIB, answer_seconds: float | None = None
    ) -> None:
        self.arguments, self.max_growth_mib = arguments, max_growth_mib
        self.answer_seconds = answer_seconds or ANSWER_SECONDS
        self.process: subprocess.Popen[str] | None = None
        self.rss_at_start_mib = 0.0
        self.count: dict[str, int] = {}

    def __call__(self, kind: str, path: Path | str, **more: Any) -> str:
        """-> "read" or "refused". Fails the test for a crash, a hang or more memory than the bound."""
        answer = self.ask({"kind": kind, "path": str(path), **more})
        assert answer["outcome"] != "crashed", answer["text"]
        growth = answer["rss_mib"] - self.rss_at_start_mib
        if growth > self.max_growth_mib:
            self.stop()  # its peak would be held against the next input
            raise AssertionError(f"reading took {growth:.0f} MiB")
        self.count[answer["outcome"]] = self.count.get(answer["outcome"], 0) + 1
        return str(answer["outcome"])

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self.process or self._start()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # dead: it has no answer either
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        line = self._line(process)
        if not line:
            self.stop()
            return {"outcome": "crashed", "text": f"no answer within {self.answer_seconds} s, or dead", "rss_mib": 0.0}
        return dict(json.loads(line))

    def _start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.reader", *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        if self._line(self.process).strip() != "ready":
            self.stop()
            pytest.exit("the reading process does not start", returncode=1)
        self.rss_at_start_mib = self.ask({"kind": "misbehave", "path": "crash"})["rss_mib"]
        return self.process

    def _line(self, process: subprocess.Popen[str]) -> str:
        """The next line, which comes whole; "" when none comes in time or the process is gone."""
        assert process.stdout is not None
        is_there, _, _ = select.select([process.stdout], [], [], self.answer_seconds)
        return process.stdout.readline() if is_there else ""

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="session")
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    is_fuzz = settings().max_examples > 1_000
    yield from _reader(request, Reader(answer_seconds=FUZZ_ANSWER_SECONDS if is_fuzz else None))


@pytest.fixture(scope="session")
def measurer(request: pytest.FixtureRequest) -> Iterator[Reader]:
    """One that measures, seconds a run; torch and duckdb keep some memory of every run."""
    yield from _reader(request, Reader(MEASURING, max_growth_mib=MAX_MEASURING_GROWTH_MIB, answer_seconds=600))


def _reader(request: pytest.FixtureRequest, reader: Reader) -> Iterator[Reader]:
    yield reader
    reader.stop()
    count = request.config.stash.setdefault(COUNT, {})
    for outcome, number in reader.count.items():
        count[outcome] = count.get(outcome, 0) + number


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(COUNT, {})
    if count:
        said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
        terminalreporter.write_line(f"fuzz: {sum(count.values())} inputs ({said})")
