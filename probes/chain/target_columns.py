"""What the target's distribution says of each draft: probability, rank, overlap, candidates. Nothing waits for the device.

The target's row at position t+k serves every chain that has a depth there, so each row is made and read once for a block
of starts. Knows nothing of acceptance: which drafts have a label is given.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.chain.drafted import Drafted
from probes.drafter.model import Drafter
from probes.record import NUM_CANDIDATES
from probes.target.trace import BLOCK_ELEMENTS, TargetTrace
from probes.target.vocab_rows import has_vocab_kernel, overlap, row_statistics

KERNEL_BLOCKS = 4
"""So many blocks of rows are one where no float32 copy of the logits is made."""


class _Rows(NamedTuple):
    """The target's at the positions first+1 .. last+K, one row each; where it has none, 0."""

    log_p: Float[Tensor, "row depth"]  # of the draft that a chain makes here at each depth
    rank: Int[Tensor, "row depth"]
    top_token: Int[Tensor, "row _"]
    top_log_p: Float[Tensor, "row _"]
    p: Float[Tensor, "row draft_vocab"]


def target_columns(
    drafter: Drafter,
    trace: TargetTrace,
    starts: Int[Tensor, "round"],
    span: tuple[int, int],
    drafts: list[Drafted],
    has_label: Bool[Tensor, "round depth"],
) -> dict[str, Tensor]:
    """-> `RoundBatch` columns by name; NaN / -1 where there is no label. `span`: first and last of the ascending starts.

    p: after temperature, top-k and top-p when T > 0, else softmax of the raw logits (ranks are always of these); q, after
    temperature when T > 0, is 0 outside the draft vocabulary.
    """
    num_rounds, depth = has_label.shape
    first, last = span
    # 1) which row serves which (round, depth)
    row = starts[:, None] - first + torch.arange(depth, device=starts.device)  # [round, depth]
    depths = torch.arange(depth, device=starts.device).expand_as(row)
    token_at = torch.zeros(last - first + depth, depth, dtype=torch.int64, device=starts.device)
    token_at[row, depths] = torch.stack([d.token for d in drafts], dim=1)
    # 2) the rows, each looked at once
    found = _rows(trace, first + 1 - (trace.num_prompt_tokens - 1), token_at, drafter.target_ids())
    # 3) back to (round, depth)
    is_dense = last - first + 1 == num_rounds

    def overlap_at(k: int) -> Float[Tensor, "round"]:
        here = found.p[k : k + num_rounds] if is_dense else found.p[row[:, k]]
        return overlap(here, drafts[k].logits, drafts[k].lse)

    top_p = found.top_log_p[row].exp().half().float()  # [round, depth, candidate]
    return {
        "target_prob_of_draft": torch.where(has_label, found.log_p[row, depths].exp(), torch.nan),
        "target_rank_of_draft": torch.where(has_label, found.rank[row, depths], -1),
        "overlap": torch.where(has_label, torch.stack([overlap_at(k) for k in range(depth)], dim=1), torch.nan),
        "target_top_token": torch.where(has_label[..., None], found.top_token[row], -1),
        "target_top_prob": torch.where(has_label[..., None], top_p, torch.nan),
    }


def _rows(
    trace: TargetTrace, offset: int, token_at: Int[Tensor, "row depth"], ids: Int[Tensor, "draft_vocab"]
) -> _Rows:
    """`offset`: the trace's logits of row 0. `token_at`: the draft that each depth makes at each row."""
    num_rows, depth = token_at.shape
    device, num_ids = token_at.device, trace.logits.shape[-1]
    num_candidates = min(NUM_CANDIDATES, num_ids)
    rows = _Rows(
        log_p=torch.empty(num_rows, depth, device=device),
        rank=torch.empty(num_rows, depth, dtype=torch.int32, device=device),
        top_token=torch.empty(num_rows, num_candidates, dtype=torch.int32, device=device),
        top_log_p=torch.empty(num_rows, num_candidates, device=device),
        p=torch.empty(num_rows, len(ids), device=device),
    )
    num_known = max(0, min(num_rows, len(trace.logits) - offset))
    if num_known < num_rows:  # past the text, where no draft has a label
        for column in rows:
            column[num_known:] = 0
    temperature = trace.temperature or 1.0

    def over_temperature(x: Tensor) -> Tensor:
        return x if temperature == 1.0 else x.float() / temperature

    makes_no_copy = has_vocab_kernel(rows.p) and not trace.sampling.is_cut
    block = max(1, BLOCK_ELEMENTS * (KERNEL_BLOCKS if makes_no_copy else 1) // num_ids)
    for begin in range(0, num_known, block):
        logits = trace.logits[offset + begin : offset + min(begin + block, num_known)]  # [row of the block, vocab]
        at = slice(begin, begin + len(logits))
        of_draft = logits.gather(1, token_at[at])
        found = row_statistics(logits, num_candidates, threshold=of_draft, temperature=temperature)
        assert found.num_above is not None
        rows.rank[at] = found.num_above
        if trace.sampling.is_cut:
            logits = trace.sampling.cut(logits)
            of_draft = logits.gather(1, token_at[at])
            found = row_statistics(logits, num_candidates, temperature=temperature)
        lse = found.lse[:, None]
        torch.sub(over_temperature(of_draft), lse, out=rows.log_p[at])
        rows.top_token[at] = found.top_id
        torch.sub(found.top, lse, out=rows.top_log_p[at])
        torch.sub(over_temperature(logits[:, ids]), lse, out=rows.p[at]).exp_()
    return rows
