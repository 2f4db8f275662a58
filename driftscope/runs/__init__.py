"""Runs on disk, `NAME.drift/`: write, read, list, recover, verify. `schema` says which columns.

Knows no engine, no statistics beyond what a record says of itself, no display. Importing it imports no torch.
"""

from driftscope.runs.info import Counts, DrafterInfo, Provenance, RunInfo, RunStatus, TargetInfo
from driftscope.runs.listing import RunEntry, RunList, list_runs
from driftscope.runs.reader import Run, read_run
from driftscope.runs.recover import Recovery, recover
from driftscope.runs.schema import BatchKey, PromptKey
from driftscope.runs.verify import Verification, verify
from driftscope.runs.writer import RunWriter

__all__ = [
    "BatchKey",
    "Counts",
    "DrafterInfo",
    "PromptKey",
    "Provenance",
    "Recovery",
    "Run",
    "RunEntry",
    "RunInfo",
    "RunList",
    "RunStatus",
    "RunWriter",
    "TargetInfo",
    "Verification",
    "list_runs",
    "read_run",
    "recover",
    "verify",
]
