"""A step's begin on a GPU and its rows into the ring, in one kernel each, inside of the CUDA graphs: the host of a replayed
graph does neither.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def begin_round(
    positions: Tensor, rows: Tensor, count: Tensor, start: Tensor, serial: Tensor, num_rows: int, mask: int
) -> None:
    """count += 1; serial[i] = count, start[i] = positions[rows[i]], both [row] views of the same words."""
    _begin_round[(1,)](positions, rows, count, start, serial, start.stride(0), num_rows, MASK=mask, BLOCK=128)


def keep_rows(
    words: Tensor,
    ring: Tensor,
    count: Tensor,
    step: Tensor,
    drafts: Tensor,
    num_rows: int,
    *,
    last: int,
    first_draft: int,
) -> None:
    """At depth `last` alone: ring[count % steps, :num_rows] = words[:num_rows], the drafts in the words from `first_draft`.

    `words` int32 [row, word], `ring` int32 [step, row, word], `drafts` int64 [row, depth].
    """
    num_words = words.shape[1]
    _keep_rows[(num_rows, triton.cdiv(num_words, BLOCK))](
        words,
        ring,
        count,
        step,
        drafts,
        words.stride(0),
        ring.stride(0),
        drafts.stride(0),
        num_words,
        ring.shape[0],
        LAST=last,
        FIRST_DRAFT=first_draft,
        NUM_DRAFTS=last + 1,
        BLOCK=BLOCK,
    )


@triton.jit
def _begin_round(
    positions_ptr,
    rows_ptr,
    count_ptr,
    start_ptr,
    serial_ptr,
    row_stride,
    num_rows,
    MASK: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    count = tl.load(count_ptr) + 1
    tl.store(count_ptr, count)
    for first in range(0, num_rows, BLOCK):
        row = first + tl.arange(0, BLOCK)
        is_row = row < num_rows
        token = tl.load(rows_ptr + row, mask=is_row, other=0).to(tl.int64)
        position = tl.load(positions_ptr + token, mask=is_row, other=0)
        tl.store(start_ptr + row * row_stride, position.to(tl.int32), mask=is_row)
        tl.store(serial_ptr + row * row_stride, tl.zeros([BLOCK], tl.int32) + (count & MASK).to(tl.int32), mask=is_row)


@triton.jit
def _keep_rows(
    words_ptr,
    ring_ptr,
    count_ptr,
    step_ptr,
    drafts_ptr,
    row_stride,
    ring_stride,
    draft_stride,
    num_words,
    num_steps,
    LAST: tl.constexpr,  # noqa: N803
    FIRST_DRAFT: tl.constexpr,  # noqa: N803
    NUM_DRAFTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    if tl.load(step_ptr) == LAST:
        row = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_word = at < num_words
        value = tl.load(words_ptr + row * row_stride + at, mask=is_word, other=0)
        is_draft = (at >= FIRST_DRAFT) & (at < FIRST_DRAFT + NUM_DRAFTS)
        draft = tl.load(drafts_ptr + row * draft_stride + at - FIRST_DRAFT, mask=is_draft, other=0)
        value = tl.where(is_draft, draft.to(tl.int32), value)
        slot = tl.load(count_ptr) % num_steps
        tl.store(ring_ptr + slot * ring_stride + row * row_stride + at, value, mask=is_word)
