"""The tensor parallel workers of one server: each above rank 0 leaves its heads in a folder, rank 0 takes them from there.

Files, because no worker may wait for another while it serves: what rank 0 waits for, its writing thread waits for, and not
for long. One file for each rank and request, renamed into place, without any token. Rank 0 makes the folder together with
its run and removes it when it writes no more; by that the others know that they may stop.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from driftscope.vllm_plugin.sampling import Sampler
from probes.vllm.ranks import split_columns
from probes.vllm.requests import RequestRounds

logger = logging.getLogger("driftscope.vllm_plugin")

PATIENCE_SECONDS = 5.0  # all ranks finish a request in the same step: what is not there by then does not come
STALE_SECONDS = 600.0  # nobody took it
POLL_SECONDS = 0.02


def heads_folder(out: Path, vllm_config: Any) -> Path:
    """Beside the run; the same for all workers of an engine, another for each engine."""
    rank = vllm_config.parallel_config.data_parallel_rank
    return out.with_name(f".{out.stem}-{vllm_config.instance_id}-dp{rank}-heads")


def _file(folder: Path, rank: int, request_id: str) -> Path:
    digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()  # a client's id: any characters
    return folder / f"{rank}-{digest[:32]}.npy"


def _failure_file(folder: Path, rank: int) -> Path:
    return folder / f"{rank}-failure.txt"


@dataclass(kw_only=True)
class SentHeads:
    """In a worker above rank 0. Called in its recorder's thread."""

    folder: Path
    rank: int
    sampler: Sampler
    num_failed: int = 0

    def write(self, rounds: RequestRounds) -> None:
        """What the disk does not take is left out: rank 0 counts that request as one without masses."""
        file = _file(self.folder, self.rank, rounds.request.request_id)
        unfinished = file.with_suffix(".new")
        try:
            with unfinished.open("wb") as output:
                np.save(output, split_columns(rounds.rows), allow_pickle=False)
            unfinished.rename(file)
        except FileNotFoundError:  # rank 0 made no run, or has ended it
            self.sampler.is_open = False
        except OSError:  # a full disk: it may have room for the next request's
            self.num_failed += 1
            if self.num_failed == 1:
                logger.exception("driftscope could not hand on a request's heads (more are counted by rank 0 only)")
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def fail(self, failure: str) -> None:
        """This rank's recorder is off."""
        if self.folder.is_dir():
            _failure_file(self.folder, self.rank).write_text(failure)


@dataclass(kw_only=True)
class TakenHeads:
    """In the worker of rank 0. Called in its writing thread."""

    folder: Path
    num_ranks: int
    _silent: set[int] = field(default_factory=set)  # ranks that left something out: not waited for again

    def open(self) -> None:
        """From now on the others send."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def take(self, request_id: str) -> list[np.ndarray | None]:
        """The rows of this request from each rank above 0; None where they did not come."""
        end = time.monotonic() + PATIENCE_SECONDS
        return [self._take(rank, request_id, end) for rank in range(1, self.num_ranks)]

    def _take(self, rank: int, request_id: str, end: float) -> np.ndarray | None:
        file = _file(self.folder, rank, request_id)
        while not file.exists():
            if rank in self._silent or _failure_file(self.folder, rank).exists() or time.monotonic() > end:
                self._silent.add(rank)
                return None
            time.sleep(POLL_SECONDS)
        self._silent.discard(rank)
        rows: np.ndarray = np.load(file, allow_pickle=False)
        file.unlink()
        return rows

    def failures(self) -> dict[int, str]:
        """Rank -> why its recorder is off."""
        files = {rank: _failure_file(self.folder, rank) for rank in range(1, self.num_ranks)}
        return {rank: file.read_text() for rank, file in files.items() if file.exists()}

    def sweep(self) -> None:
        """Removes what belongs to requests that rank 0 did not write."""
        for file in self.folder.glob("*.npy"):
            if time.time() - file.stat().st_mtime > STALE_SECONDS:
                file.unlink()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
