"""Opening, listing and summarising runs of 1 and 10 million (round, depth) rows: time and memory.

`python -m benchmarks.runs [OUT] [--rows 1000000,10000000] [--folder F]`: synthetic runs with everything that a replay
records (2 drafters, 8 system prompts, K = 7, 9 heads, 12 regions). Every sample is a process of its own, with warm file
caches; the floor beside it is reading the run's bytes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.timing import summary, write
from tests.synthetic_run import DRAFTERS, make_info, make_records, write_run

SYSTEM_PROMPTS = ("default", "none", "short", "persona", "policy", "json_only", "tools", "german")
NUM_RESPONSE_TOKENS, DEPTH, NUM_HEADS = 252, 7, 9

CHILD = """
import json, sys, time
from pathlib import Path
what, path = sys.argv[1], Path(sys.argv[2])
from driftscope.runs import list_runs, read_run
from driftscope.summary import summarise
def peak_mib():  # ru_maxrss would hold the parent's
    return next(int(l.split()[1]) / 1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))
before = peak_mib()
begin = time.perf_counter()
if what == "open":
    run = read_run(path)
    run.info.counts.num_depth_rows
elif what == "list":
    assert list_runs(path.parent).runs
elif what == "summarise":
    assert summarise(read_run(path)).conditions
elif what == "one column":
    read_run(path).query("select depth, avg(draft_prob) from depths group by depth").to_pylist()
elif what == "read bytes":
    sum(len(file.read_bytes()) for file in path.rglob("*.parquet"))
seconds = time.perf_counter() - begin
after = peak_mib()
print(json.dumps({"seconds": seconds, "peak": after, "added": after - before}))
"""
PARTS = ("open", "list", "one column", "summarise", "read bytes")


def make_run(folder: Path, num_rows: int) -> tuple[Path, float | None]:
    """-> (the run, seconds that writing took; None where it was there already)."""
    path = folder / f"{num_rows}.drift"
    if path.exists():
        return path, None
    per_prompt = len(SYSTEM_PROMPTS) * len(DRAFTERS) * (NUM_RESPONSE_TOKENS - 1) * DEPTH
    records = make_records(
        num_prompts=max(1, round(num_rows / per_prompt)),
        system_prompts=SYSTEM_PROMPTS,
        num_response_tokens=NUM_RESPONSE_TOKENS,
        depth=DEPTH,
        num_heads=NUM_HEADS,
    )
    begin = time.perf_counter()
    write_run(path, records, make_info(depth=DEPTH, num_heads=NUM_HEADS))
    return path, time.perf_counter() - begin


def sample(what: str, path: Path) -> dict[str, float]:
    out = subprocess.run([sys.executable, "-c", CHILD, what, str(path)], capture_output=True, text=True, check=True)
    return dict(json.loads(out.stdout))


def rows_of(folder: Path, num_rows: int, num_repeats: int) -> list[dict[str, Any]]:
    path, write_seconds = make_run(folder, num_rows)
    num_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    counts = json.loads((path / "run.json").read_text())["counts"]
    print(
        f"{num_rows}: {num_bytes / 1e6:.0f} MB in {counts['num_parts']} parts, written in {write_seconds} s", flush=True
    )
    samples: dict[str, list[dict[str, float]]] = {part: [] for part in PARTS}
    for part in PARTS:
        sample(part, path)  # the file cache
    for _ in range(num_repeats):
        for part in PARTS:
            samples[part].append(sample(part, path))
    return [
        {
            "rows": counts["num_depth_rows"],
            "MB on disk": num_bytes / 1e6,
            "what": part,
            "ms": summary([s["seconds"] * 1e3 for s in samples[part]]),
            "added peak MiB": max(s["added"] for s in samples[part]),
            "peak MiB of the process": max(s["peak"] for s in samples[part]),
            "written in s": write_seconds if part == "open" else None,
        }
        for part in PARTS
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", default="runs/benchmarks")
    parser.add_argument("--rows", default="1000000,10000000")
    parser.add_argument(
        "--folder", default=None, help="where the runs are made, and kept; left out: a temporary folder"
    )
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        rows = []
        for num_rows in map(int, arguments.rows.split(",")):
            rows += rows_of(folder, num_rows, arguments.repeats)
            write(Path(arguments.out), "runs", rows, depth=DEPTH, heads=NUM_HEADS)


if __name__ == "__main__":
    main()
