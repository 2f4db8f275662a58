"""Several tensor parallel workers: each records its own attention heads, everything else alike; joined on the host.

No worker waits for another inside a step: there is no collective that a failed recorder could leave the others in. A round
is known by its request and its slot t, which no request has twice. Knows nothing of vLLM, devices or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.lib.recfunctions import repack_fields

from probes.vllm.recorder import RecorderStatus
from probes.vllm.requests import RequestRounds
from probes.vllm.rows import MEASURED, column_of

BY_HEAD = tuple(name for name in MEASURED if "head" in column_of(name).axes)
SPLIT_COLUMNS = (*BY_HEAD, "input_share_embed")
"""What no single worker knows: it has the query heads, and the rows of q, k and v, of its rank."""


def split_columns(rows: np.ndarray) -> np.ndarray:
    """What `joined` needs of a rank's `RequestRounds.rows`, without any token."""
    names = [name for name in ("start", *SPLIT_COLUMNS, "input_energy") if name in (rows.dtype.names or ())]
    return repack_fields(rows[names])


def joined(rounds: RequestRounds, others: Sequence[np.ndarray | None]) -> RequestRounds:
    """Rank 0's rounds with the heads of all ranks, in their order.

    `others`: of each other rank its `RequestRounds.rows` of this request (or their `split_columns`), None where they are
    missing. Heads that are not all there make SPLIT_COLUMNS unmeasured in this request: the mean of half is not the mean.
    """
    layout = rounds.layout
    if layout.num_ranks == 1 or layout.level == "counts":
        return rounds
    others = [None if rows is None else rows[: len(rounds.rows)] for rows in others]
    reason = _mismatch(rounds, others)
    if reason:
        return replace(rounds, unmeasured={**rounds.unmeasured, **dict.fromkeys(SPLIT_COLUMNS, reason)})
    by_rank = [rounds.rows, *(rows for rows in others if rows is not None)]
    whole = replace(layout, num_heads=layout.num_heads * layout.num_ranks, num_ranks=1)
    rows = np.zeros(len(rounds.rows), whole.dtype)
    for name in layout.dtype.names or ():
        if name in BY_HEAD:
            parts = [part[name] for part in by_rank]  # [round, depth, layer, head, ...]
            is_by_head = layout.level == "heads"
            rows[name] = np.concatenate(parts, axis=3) if is_by_head else np.mean(parts, axis=0)
        elif name == "input_share_embed":
            energy = np.stack([part["input_energy"] for part in by_rank])  # [rank, round, depth]
            shares = np.stack([part[name] for part in by_rank])
            rows[name] = (shares * energy).sum(axis=0) / energy.sum(axis=0)
        else:
            rows[name] = rounds.rows[name]
    return replace(rounds, layout=whole, rows=rows)


def _mismatch(rounds: RequestRounds, others: Sequence[np.ndarray | None]) -> str:
    """Why the ranks' heads cannot be put together, "" where they can."""
    missing = [rank for rank, rows in enumerate(others, start=1) if rows is None or len(rows) < len(rounds.rows)]
    missing += range(len(others) + 1, rounds.layout.num_ranks)
    if missing:
        return f"the heads of {_ranks(missing)} are missing"
    same = ("start", "draft_token")
    different = [
        rank
        for rank, rows in enumerate(others, start=1)
        if rows is not None
        and not all(np.array_equal(rows[n], rounds.rows[n]) for n in same if n in (rows.dtype.names or ()))
    ]
    return f"{_ranks(different)} drafted other tokens than rank 0" if different else ""


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def overall(statuses: Sequence[RecorderStatus]) -> RecorderStatus:
    """What a run says of the recorders of all ranks, in their order: rank 0's counts, and every rank's failures."""
    if len(statuses) == 1:
        return statuses[0]
    failures = [f"rank {rank}: {status.failure}" for rank, status in enumerate(statuses) if status.failure is not None]
    return replace(
        statuses[0],
        num_dropped_steps=max(status.num_dropped_steps for status in statuses),
        num_failures=sum(status.num_failures for status in statuses),
        failure="; ".join(failures) or None,
    )
