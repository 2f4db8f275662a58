"""`python -m benchmarks.fault_bench FOLDER --prompt-set A [--pair tiny] [--device cuda --jobs 14]`: measure, judge, print.

Every case is a run of its own in FOLDER/SET/CASE, so a stopped bench goes on where it ended, and cases can run side by
side. Printed is GitHub-flavoured Markdown. Several sets may be given; what is there already is only read.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from benchmarks.fault_bench.cases import PAIRS, Case, cases_of
from benchmarks.fault_bench.prompts import SETS
from benchmarks.fault_bench.run import Answer, Options, run_case, run_named
from benchmarks.fault_bench.table import confusion, counts, judged, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt-set", choices=SETS, nargs="+", default=["A"])
    parser.add_argument("--pair", choices=PAIRS, nargs="+", default=list(PAIRS))
    parser.add_argument("--case", action="append", help="only cases whose name holds this")
    parser.add_argument("--prompts", type=int, default=20, dest="num_prompts")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--depth", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, a process each")
    arguments = parser.parse_args()
    cases = [case for name in arguments.pair for case in cases_of(PAIRS[name]())]
    if arguments.case:
        cases = [case for case in cases if any(part in case.name for part in arguments.case)]
    work = [
        (
            case,
            Options(
                folder=str(arguments.folder),
                prompt_set=prompt_set,
                num_prompts=arguments.num_prompts,
                max_new_tokens=arguments.max_new_tokens,
                depth=arguments.depth,
                device=arguments.device,
            ),
        )
        for prompt_set in arguments.prompt_set
        for case in cases
    ]
    answers = _all(work, arguments.jobs)
    found = judged(answers, {case.name: case.base for case in cases})
    print("\n\n".join([table(found), confusion(found), counts(found)]))


def _all(work: list[tuple[Case, Options]], jobs: int) -> list[Answer]:
    """In the order of `work`, whatever the order in which they end."""
    begun, by_place = time.monotonic(), {}

    def say(place: int) -> None:
        case, options = work[place]
        sys.stderr.write(f"{time.monotonic() - begun:6.0f} s  {options.prompt_set} {case.name}\n")
        sys.stderr.flush()

    if jobs == 1:
        for place, (case, options) in enumerate(work):
            by_place[place] = run_case(case, options)
            say(place)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process a core is quicker than all on all cores
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            futures = {
                pool.submit(run_named, case.pair.name, case.name, options): place
                for place, (case, options) in enumerate(work)
            }
            for future in as_completed(futures):
                by_place[futures[future]] = future.result()
                say(futures[future])
    return [answer for place in sorted(by_place) for answer in by_place[place]]


if __name__ == "__main__":
    main()
