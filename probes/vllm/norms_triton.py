"""Norms and fusion shares on a GPU in one kernel each, because a launch costs more than the arithmetic.

All capturable into CUDA graphs; float32 sums whatever the states are. The plain torch forms stand in `probe`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

MOST_AT_ONCE = 4096  # numbers of a row that are read together: one after the other, each read waits for memory


def _tile(size: int) -> dict[str, int]:
    """For rows of `size` numbers that are summed."""
    block = min(MOST_AT_ONCE, triton.next_power_of_2(size))
    return {"BLOCK": block, "num_warps": max(4, block // 512)}


def put_norms(
    states: Tensor,
    rows: Tensor | None,
    step: Tensor,
    out: Tensor,
    num_rows: int,
    *,
    values: Tensor | None = None,
    value_out: Tensor | None = None,
) -> None:
    """out[i, step] = ||states[rows[i]]||, `states` [token, hidden], `out` [row, depth] (a view).

    With `values` float32 [token] also value_out[i, step] = values[rows[i]].
    """
    assert value_out is None or value_out.stride(0) == out.stride(0)  # columns of the same rows
    _put_norms[(num_rows,)](
        states,
        rows if rows is not None else step,
        step,
        out,
        values if values is not None else out,
        value_out if value_out is not None else out,
        states.stride(0),
        out.stride(0),
        out.stride(1),
        value_out.stride(1) if value_out is not None else 0,
        states.shape[1],
        HAS_ROWS=rows is not None,
        HAS_VALUES=values is not None,
        **_tile(states.shape[1]),
    )


def residual_norms(branch: Tensor, residual: Tensor, out: Tensor) -> None:
    """out[token] = ||branch + residual||."""
    _residual_norms[(branch.shape[0],)](
        branch, residual, out, branch.stride(0), residual.stride(0), branch.shape[1], **_tile(branch.shape[1])
    )


def gather_states(
    concat: Tensor, rows: Tensor, gains: Tensor | None, eps: float, states: Tensor, aux_norm: Tensor
) -> None:
    """states[i, row] = RMSNorm_i(g_i) of the token rows[row], and aux_norm[row, i] = ||g_i||.

    `concat` [token, aux * target_hidden], `gains` [aux, target_hidden] (None: no norm), `states` [aux, row, target_hidden].
    """
    num_aux, num_rows, size = states.shape
    _gather_states[(num_rows, num_aux)](
        concat,
        rows,
        gains if gains is not None else concat,
        states,
        aux_norm,
        concat.stride(0),
        *states.stride()[:2],
        aux_norm.stride(0),
        size,
        eps,
        HAS_GAINS=gains is not None,
        **_tile(size),
    )


def fusion_shares(terms: Tensor, share: Tensor, energy: Tensor) -> None:
    """From W_i g_i, float32 [aux, row, hidden], to the two columns [row, aux]."""
    num_aux, num_rows, hidden = terms.shape
    _fusion_shares[(num_rows,)](
        terms,
        share,
        energy,
        *terms.stride()[:2],
        share.stride(0),
        hidden,
        NUM_AUX=num_aux,
        NUM_AUX_PADDED=triton.next_power_of_2(num_aux),
        BLOCK=1024,
        num_warps=8,
    )


@triton.jit
def _square_sum(row_ptr, size, BLOCK: tl.constexpr):  # noqa: N803
    """The sum of the squares of a row's entries, float32."""
    total = 0.0
    for first in range(0, size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + at, mask=at < size, other=0.0).to(tl.float32)
        total += tl.sum(x * x, axis=0)
    return total


@triton.jit
def _put_norms(
    states_ptr,
    rows_ptr,
    step_ptr,
    out_ptr,
    values_ptr,
    value_out_ptr,
    state_stride,
    out_row_stride,
    out_depth_stride,
    value_depth_stride,
    hidden,
    HAS_ROWS: tl.constexpr,  # noqa: N803
    HAS_VALUES: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    token = row.to(tl.int64)
    if HAS_ROWS:
        token = tl.load(rows_ptr + row).to(tl.int64)
    step = tl.load(step_ptr)
    if HAS_VALUES:
        tl.store(value_out_ptr + row * out_row_stride + step * value_depth_stride, tl.load(values_ptr + token))
    total = _square_sum(states_ptr + token * state_stride, hidden, BLOCK)
    tl.store(out_ptr + row * out_row_stride + step * out_depth_stride, tl.sqrt(total))


@triton.jit
def _residual_norms(
    branch_ptr,
    residual_ptr,
    out_ptr,
    branch_stride,
    residual_stride,
    hidden,
    BLOCK: tl.constexpr,  # noqa: N803
):
    token = tl.program_id(0).to(tl.int64)
    total = 0.0
    for first in range(0, hidden, BLOCK):
        at = first + tl.arange(0, BLOCK)
        is_inside = at < hidden
        x = tl.load(branch_ptr + token * branch_stride + at, mask=is_inside, other=0.0).to(tl.float32)
        x += tl.load(residual_ptr + token * residual_stride + at, mask=is_inside, other=0.0).to(tl.float32)
        total += tl.sum(x * x, axis=0)
    tl.store(out_ptr + token, tl.sqrt(total))


@triton.jit
def _gather_states(
    concat_ptr,
    rows_ptr,
    gains_ptr,
    states_ptr,
    aux_norm_ptr,
    token_stride,
    state_aux_stride,
    state_row_stride,
    out_row_stride,
    size,
    eps,
    HAS_GAINS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row, aux = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token = tl.load(rows_ptr + row).to(tl.int64)
    source = concat_ptr + token * token_stride + aux * size
    target = states_ptr + aux * state_aux_stride + row * state_row_stride
    total = _square_sum(source, size, BLOCK)
    tl.store(aux_norm_ptr + row * out_row_stride + aux, tl.sqrt(total))
    scale = 1.0
    if HAS_GAINS:
        scale = 1.0 / tl.sqrt(total / size + eps)
    for first in range(0, size, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(source + at, mask=at < size, other=0.0).to(tl.float32) * scale
        if HAS_GAINS:
            x *= tl.load(gains_ptr + aux * size + at, mask=at < size, other=0.0).to(tl.float32)
        tl.store(target + at, x.to(states_ptr.dtype.element_ty), mask=at < size)


@triton.jit
def _fusion_shares(
    terms_ptr,
    share_ptr,
    energy_ptr,
    term_aux_stride,
    term_row_stride,
    out_row_stride,
    hidden,
    NUM_AUX: tl.constexpr,  # noqa: N803
    NUM_AUX_PADDED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    aux = tl.arange(0, NUM_AUX_PADDED)
    is_aux = aux < NUM_AUX
    along = tl.zeros([NUM_AUX_PADDED], tl.float32)
    square = tl.zeros([NUM_AUX_PADDED], tl.float32)
    for first in range(0, hidden, BLOCK):
        at = first + tl.arange(0, BLOCK)
        mask = is_aux[:, None] & (at < hidden)[None, :]
        place = terms_ptr + row * term_row_stride + aux[:, None] * term_aux_stride + at[None, :]
        x = tl.load(place, mask=mask, other=0.0)
        along += tl.sum(x * tl.sum(x, axis=0)[None, :], axis=1)
        square += tl.sum(x * x, axis=1)
    energy = tl.sqrt(square)
    at_row = row * out_row_stride + aux
    tl.store(share_ptr + at_row, along / tl.sum(along, axis=0), mask=is_aux)
    tl.store(energy_ptr + at_row, energy / tl.sum(energy, axis=0), mask=is_aux)
