"""Two who write one run at the same moment: one writes, the other is told, no round is lost. 200 pairs in `make fuzz`."""

from __future__ import annotations

import multiprocessing
import shutil
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path

from hypothesis import settings

from driftscope.runs import RunWriter, read_run, recover, verify
from probes.errors import RunError
from tests.synthetic_run import make_batch, make_info, make_prompt, write_run

STARTS = 29  # rounds of a synthetic response of 30 tokens
ATTEMPTS = {
    "new": lambda path: RunWriter(path, make_info()),
    "resume": RunWriter.resume,
    "overwrite": lambda path: RunWriter(path, make_info(), overwrite=True),
}
REFUSALS = {"run_is_being_written", "run_exists", "run_vanished", "run_not_found", "not_a_run"}
PAIRS = [
    ("new", "new"),
    ("resume", "resume"),
    ("resume", "recover"),
    ("overwrite", "resume"),
    ("overwrite", "overwrite"),
]


def _work(name: str, told: Connection, barrier: Barrier) -> None:
    """In a process of its own: does what it is told at the same moment as another -> how it ended."""
    while (asked := told.recv()) is not None:
        kind, path = asked
        barrier.wait()
        try:
            if kind == "recover":
                recover(path)
            else:
                prompt = make_prompt(name, seed=ord(name))
                with ATTEMPTS[kind](path) as writer:
                    writer.write_batch(prompt)
                    writer.write_batch(make_batch(prompt))
            told.send("done")
        except RunError as error:
            told.send(error.code)
        except BaseException as error:  # what a user would see as a traceback
            told.send(f"{type(error).__name__}: {error}")


def test_of_two_at_once_one_writes_and_the_other_is_told(tmp_path: Path) -> None:
    num_pairs = 200 if settings().max_examples > 1_000 else 20
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    pipes, workers = [], []
    for name in "ab":
        ours, theirs = context.Pipe()
        worker = context.Process(target=_work, args=(name, theirs, barrier), daemon=True)
        worker.start()
        theirs.close()  # so that its death ends the waiting for it
        pipes.append(ours)
        workers.append(worker)
    for number in range(num_pairs):
        kinds = PAIRS[number % len(PAIRS)]
        path = tmp_path / f"{number}.drift"
        if kinds[0] != "new":
            prompt = make_prompt("before", seed=7)
            write_run(path, iter([prompt, make_batch(prompt)]))
        for pipe, kind in zip(pipes, kinds, strict=True):
            pipe.send((kind, path))
        ends = [pipe.recv() for pipe in pipes]
        assert set(ends) <= {"done", *REFUSALS}, (kinds, ends)
        assert "done" in ends, (kinds, ends)
        _check(path, kinds, ends)
        shutil.rmtree(path)
    assert list(tmp_path.iterdir()) == []  # nor is anything left beside the runs
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send(None)
        worker.join()


def _check(path: Path, kinds: tuple[str, str], ends: list[str]) -> None:
    """What the run holds is what those wrote who were not refused."""
    assert verify(path).is_sound, (kinds, ends)
    run = read_run(path)
    found = set(run.rounds()["prompt_id"].to_pylist())
    wrote = {n for n, kind, end in zip("ab", kinds, ends, strict=True) if kind != "recover" and end == "done"}
    if "overwrite" in kinds:  # one took the other's place, whole
        assert found & {"a", "b"}, (kinds, ends)
        assert found <= {"a", "b", "before"}, (kinds, ends)
    else:
        assert found == wrote | ({"before"} if kinds[0] != "new" else set()), (kinds, ends)
    assert run.rounds().num_rows == STARTS * len(found)
