"""A process that reads what it is told to, under a limit on its memory, and says what came of it.

Run as `python -m tests.fuzz.reader`. One JSON object a line on stdin: {"kind", "path", ...}; one a line on stdout:
{"outcome": "read" | "refused" | "crashed", "text", "rss_mib"}. Knows nothing of how its input was made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from probes.errors import DriftscopeError

MARGIN_MIB = 512
"""Address space beyond what the process has after its imports; the inputs are a few kB to a few MB."""


MAX_MESSAGE_CHARACTERS = 20_000  # a message may quote a long name; it does not pour a file out


def read(kind: str, path: str, request: dict[str, Any]) -> str:
    """Reads `path` as a user's command would; returns something that shows that it did."""
    from driftscope.check import check_pair
    from driftscope.plan import make_plan, read_plan
    from driftscope.prompts import read_prompts
    from probes.checkpoint.read import read_spec

    if kind == "drafter":
        return json.dumps(dataclasses.asdict(read_spec(path, target_config=request["target_config"])))[:200]
    if kind == "check":
        return check_pair(request["target"], path).model_dump_json()[:200]
    if kind == "plan":
        plan = make_plan(read_plan(Path(path)), where=path)
        named = (plan.target, plan.reference_target, *plan.drafter.values())
        if not any(name is not None and name.startswith("demo") for name in named):  # a conversion of 270 MB
            plan.job()
        return plan.model_dump_json()[:200]
    if kind == "prompts":
        file = read_prompts(Path(path), format=request["format"])
        with contextlib.suppress(DriftscopeError):  # there may be no answer in it
            read_prompts(Path(path), format=request["format"], every_turn=True)
        return " ".join(file.report())[:200]
    if kind == "run":
        return read_as(request["command"], path)
    if kind == "misbehave":  # the tests of this harness
        return misbehave(path)
    raise ValueError(kind)


RUN_COMMANDS = ("show", "verify", "list", "advise", "compare", "diagnose", "report", "export", "profile")


def read_as(command: str, path: str) -> str:
    """What the command line's `command` computes and prints of a run."""
    from driftscope.cli import main

    with tempfile.TemporaryDirectory() as out:
        arguments = {
            "show": ["show", path],
            "verify": ["runs", "verify", path],
            "list": ["runs", "list", str(Path(path).parent)],
            "advise": ["advise", path],
            "compare": ["compare", path, "--by", "drafter"],
            "diagnose": ["diagnose", path, "--no-interventions"],
            "report": ["report", path, "-o", f"{out}/r.html"],
            "export": ["export", path, "--to", "csv", "-o", f"{out}/tables"],
            "profile": ["export", path, "--to", "speculation-profile", "-o", f"{out}/profile", "--drafter", "eagle3"],
        }[command]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(arguments)
    if code == DriftscopeError.exit_code:
        raise DriftscopeError(said.getvalue(), code="refused")
    return said.getvalue()[:200]


def misbehave(how: str) -> str:
    if how == "crash":
        raise ZeroDivisionError("on purpose")
    if how == "hang":
        time.sleep(3600)
    held = []
    for _ in range(100):  # "hog"
        held.append(bytearray(64 << 20))
    return str(len(held))


IMPORTED = (
    *("duckdb", "pyarrow.parquet", "pyarrow.dataset", "scipy.stats", "plotly.graph_objects", "plotly.io", "jinja2"),
    *("driftscope.check", "driftscope.prompts", "driftscope.diagnosis.diagnose", "driftscope.report.page"),
)
"""What reading imports on the way is no memory of the input."""


def limit_memory() -> None:
    """No more address space than now and MARGIN_MIB: what exceeds it is a MemoryError here, not a dead machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (MARGIN_MIB << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    with contextlib.suppress(DriftscopeError):  # what this imports in turn
        read_as("list", "/nonexistent/a.drift")
    limit_memory()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            outcome, text = "read", read(request["kind"], request["path"], request)
        except DriftscopeError as error:
            is_complete = bool(error.code and 0 < len(error.message) < MAX_MESSAGE_CHARACTERS)
            outcome, text = ("refused", str(error)) if is_complete else ("crashed", f"a poor message: {error!r}"[:1500])
        except BaseException:
            outcome, text = "crashed", traceback.format_exc()[-1500:]  # a RecursionError has thousands of lines
        rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"outcome": outcome, "text": text, "rss_mib": rss_mib}), flush=True)


if __name__ == "__main__":
    main()
