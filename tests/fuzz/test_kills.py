"""A writer that is killed again and again: what it makes in the end is what an uninterrupted one makes. 200 kills in
`make fuzz`, new runs and overwritings in turn."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from hypothesis import settings

from driftscope.runs import RunStatus, read_run, verify
from tests.synthetic_run import make_records, write_run

NUM_PROMPTS = 60
MAX_KILLS = 5  # of one run
WRITER = f"""
import sys, driftscope.runs.writer as w
from pathlib import Path
from driftscope.runs import BatchKey, RunWriter, read_run
from driftscope.runs.info import RunStatus
from probes.record import PromptRecord
from tests.synthetic_run import make_info, make_records
w.FLUSH_ROUNDS, w.FLUSH_COST_RATIO = 30, 0
path, overwrite = Path(sys.argv[1]), sys.argv[2] == "overwrite"
print("ready", flush=True)
if path.exists() and not overwrite:
    writer = RunWriter.resume(path)
else:
    writer = RunWriter(path, make_info(), overwrite=overwrite)
done = set(writer.complete_batches)
with writer:
    for record in make_records(num_prompts={NUM_PROMPTS}):
        if not isinstance(record, PromptRecord) and BatchKey(
            record.drafter, record.system_prompt, record.template, record.context_tokens, record.prompt_id
        ) in done:
            continue
        writer.write_batch(record)
"""


def _begun(path: Path, mode: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WRITER, str(path), mode]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


def test_a_run_whose_writer_was_killed_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    num_kills = 200 if settings().max_examples > 1_000 else 6
    whole = read_run(write_run(tmp_path / "whole.drift", make_records(num_prompts=NUM_PROMPTS)))
    former = read_run(write_run(tmp_path / "former.drift", make_records(num_prompts=2))).rounds()
    times = random.Random(0)
    number = 0
    while num_kills > 0:
        number += 1
        mode = "overwrite" if number % 3 == 0 else "new"
        path = tmp_path / f"{number}.drift"
        if mode == "overwrite":
            write_run(path, make_records(num_prompts=2))
        for _ in range(min(MAX_KILLS, num_kills)):
            process = _begun(path, mode)
            time.sleep(times.uniform(0.0, 0.5))
            process.send_signal(signal.SIGKILL)
            if process.wait() == 0:  # it had ended
                break
            num_kills -= 1
            if mode == "overwrite" and read_run(path).rounds().equals(former):
                assert read_run(path).status is RunStatus.complete
        assert _begun(path, mode).wait() == 0
        run = read_run(path)
        assert run.status is RunStatus.complete
        assert verify(path).is_sound
        for table in ("prompts", "rounds", "depths"):
            assert getattr(run, table)().equals(getattr(whole, table)()), (number, table)
