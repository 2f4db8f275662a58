"""The draft vocabulary's map: d2t (offset: target id = draft id + d2t[draft id]) checked against itself and t2d.

In every producer read d2t is an offset and t2d a mask over the target's ids with exactly draft_vocab_size true entries.
Engines check nothing; a wrong map costs almost all acceptance without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from probes.checkpoint.safetensors_file import TensorEntry, read_rows
from probes.checkpoint.spec import Finding
from probes.errors import CheckpointError

MIN_EQUAL_PAIRS = 4  # of neighbouring rows of lm_head: fewer could be unused ids with the same initial weights

STORE_OFFSETS = "Store d2t - arange(len(d2t)); every engine adds the row number"

IntArray = np.ndarray[Any, np.dtype[Any]]


def check_vocab_map(
    d2t: IntArray | None, t2d: IntArray | None, *, vocab_size: int, draft_vocab_size: int, where: str
) -> list[Finding]:
    """What is wrong with the map. d2t: integer [draft_vocab]; t2d: bool or 0/1 [vocab].

    Raises CheckpointError when d2t leads outside the target's vocabulary; everything else is a Finding.
    """
    in_t2d = None if t2d is None else np.flatnonzero(t2d)
    if d2t is None:
        if draft_vocab_size == vocab_size:
            return []
        hint = "t2d is there: d2t = nonzero(t2d) - arange" if in_t2d is not None else "Copy d2t from training"
        first = f"engines take the first {draft_vocab_size} target ids, almost surely not what was trained"
        what = f"no d2t, but only {draft_vocab_size} of {vocab_size} ids are drafted: {first}"
        return [_finding("d2t_missing", what, where, hint)]
    d2t = d2t.astype(np.int64)
    ids = np.arange(draft_vocab_size, dtype=np.int64) + np.clip(d2t, -vocab_size, vocab_size)  # clipped: no overflow
    _check_range(d2t, ids, vocab_size, where)
    return list(_doubts(d2t, ids, in_t2d, vocab_size, where))


def _is_rising(d2t: IntArray) -> bool:
    return bool(np.all(d2t[1:] > d2t[:-1]))


def _check_range(d2t: IntArray, ids: IntArray, vocab_size: int, where: str) -> None:
    """Raises CheckpointError where a row's target id is none of the target's."""
    outside = (ids < 0) | (ids >= vocab_size)
    if not outside.any():
        return
    row = int(np.flatnonzero(outside)[0])
    if _is_rising(d2t) and d2t[0] >= 0 and d2t[-1] < vocab_size:
        raise CheckpointError(
            f"d2t holds target ids, not offsets: row {row} would mean target id {row + int(d2t[row])} of {vocab_size}",
            code="d2t_absolute",
            where=where,
            remedy=STORE_OFFSETS,
        )
    raise CheckpointError(
        f"d2t leads outside the target's vocabulary at {int(outside.sum())} of {len(ids)} rows, first at "
        f"row {row}: {row} + {int(d2t[row])} is not in 0..{vocab_size - 1}",
        code="d2t_out_of_range",
        where=where,
        remedy="Copy d2t from training again; check that this is the drafter's target",
    )


def _doubts(d2t: IntArray, ids: IntArray, in_t2d: IntArray | None, vocab_size: int, where: str) -> Iterator[Finding]:
    """What is wrong with a map whose target `ids` [draft_vocab] are all the target's; `in_t2d`: those that t2d marks."""
    size, num_reached = len(ids), len(np.unique(ids))
    is_consistent = in_t2d is not None and np.array_equal(in_t2d, np.sort(ids))
    if in_t2d is None and _is_rising(d2t) and 2 < size < vocab_size:
        what = "d2t rises at every row, which offsets hardly ever do: it may hold target ids"
        remedy = "Compare with training; as offsets, store d2t - arange(len(d2t))"
        yield _finding("d2t_maybe_absolute", what, where, remedy, severity="warning")
    elif in_t2d is not None and np.array_equal(in_t2d, d2t) and not is_consistent:
        what = "d2t holds target ids, not offsets: it equals the ids marked in t2d"
        yield _finding("d2t_absolute", what, where, STORE_OFFSETS)
    elif in_t2d is not None and not is_consistent:
        shared = len(np.intersect1d(in_t2d, ids))
        what = f"t2d marks {len(in_t2d)} target ids, d2t reaches {num_reached}, only {shared} are the same"
        yield _finding(
            "t2d_disagrees", what, where, "One of the two is from another vocabulary: copy both from training"
        )
    if size < vocab_size and not np.any(d2t):
        said = " (t2d says the same)" if is_consistent else ", almost surely a buffer that was never filled"
        what = f"d2t is all zero: only the first {size} of {vocab_size} target ids are drafted{said}"
        remedy = "Copy d2t from training, unless the drafter was trained on the first ids"
        yield _finding("d2t_all_zero", what, where, remedy)
    if num_reached != size:
        what = f"d2t maps {size} rows to {num_reached} target ids: some ids are reached twice"
        yield _finding("d2t_not_increasing", what, where, "Copy d2t from training")
    elif np.any(np.diff(ids) < 0):
        what = "the target ids of the rows do not rise; producers write them in ascending order"
        remedy = "Check that the rows of lm_head are in the same order"
        yield _finding("d2t_not_increasing", what, where, remedy, severity="warning")


def check_lm_head_rows(d2t: IntArray, lm_head: TensorEntry) -> list[Finding]:
    """Whether lm_head was cut to the draft vocabulary by d2t itself in place of the target ids.

    TorchSpec's post-hoc pruning takes rows lm_head[d2t]: where neighbours have the same offset, it took one row twice.
    Reads a few rows.
    """
    same = np.flatnonzero(d2t[1:] == d2t[:-1])[:MIN_EQUAL_PAIRS]
    if len(same) < MIN_EQUAL_PAIRS or not np.any(d2t):
        return []
    for row in same:
        first, second = read_rows(lm_head, int(row), 2)
        if first != second:
            return []
    return [
        _finding(
            "lm_head_cut_by_offsets",
            f"rows {int(same[0])} and {int(same[0]) + 1} of `{lm_head.name}` are equal, and so are other neighbours with "
            "the same offset in d2t: lm_head was cut with the offsets, lm_head[d2t], in place of the target ids",
            str(lm_head.path),
            "Cut the full lm_head again with arange(len(d2t)) + d2t",
        )
    ]


def _finding(code: str, message: str, where: str, remedy: str, severity: str = "error") -> Finding:
    return Finding(code=code, severity=severity, message=message, where=where, remedy=remedy)
