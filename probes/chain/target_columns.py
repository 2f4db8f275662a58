"""What the target's distribution says of each draft: probability, rank, overlap, candidates. Nothing waits for the device.

The target's row at position t+k serves every chain that has a depth there, so each row is made and read once for a block
of starts. Knows nothing of acceptance: which drafts have a label is given.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from probes.chain.drafted import Drafted
from probes.drafter.model import Drafter
from probes.record import NUM_CANDIDATES
from probes.target.trace import BLOCK_ELEMENTS, TargetTrace
from probes.target.vocab_rows import has_vocab_kernel, overlap, row_statistics

KERNEL_BLOCKS = 4
"""So many blocks of rows are one where no float32 copy of the logits is made."""


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
    device, num_ids = starts.device, trace.logits.shape[-1]
    num_rows = last - first + depth  # positions first+1 .. last+K
    offset = first + 1 - (trace.num_prompt_tokens - 1)
    row = starts[:, None] - first + torch.arange(depth, device=device)  # [round, depth]
    depths = torch.arange(depth, device=device).expand_as(row)
    token_at = torch.zeros(num_rows, depth, dtype=torch.int64, device=device)
    token_at[row, depths] = torch.stack([d.token for d in drafts], dim=1)

    num_candidates = min(NUM_CANDIDATES, num_ids)
    ids = drafter.target_ids()
    log_p = torch.empty(num_rows, depth, device=device)
    rank = torch.empty(num_rows, depth, dtype=torch.int32, device=device)
    top_token = torch.empty(num_rows, num_candidates, dtype=torch.int32, device=device)
    top_log_p = torch.empty(num_rows, num_candidates, device=device)
    p = torch.empty(num_rows, len(ids), device=device)
    num_known = max(0, min(num_rows, len(trace.logits) - offset))
    if num_known < num_rows:  # past the text, where no draft has a label
        for column in (log_p, rank, top_token, top_log_p, p):
            column[num_known:] = 0

    def over_temperature(x: Tensor) -> Tensor:
        return x if temperature == 1.0 else x.float() / temperature

    makes_no_copy = has_vocab_kernel(p) and not trace.sampling.is_cut
    block = max(1, BLOCK_ELEMENTS * (KERNEL_BLOCKS if makes_no_copy else 1) // num_ids)
    temperature = trace.temperature or 1.0
    for begin in range(0, num_known, block):
        logits = trace.logits[offset + begin : offset + min(begin + block, num_known)]
        at = slice(begin, begin + len(logits))
        of_draft = logits.gather(1, token_at[at])
        found = row_statistics(logits, num_candidates, threshold=of_draft, temperature=temperature)
        rank[at] = found.num_above
        if trace.sampling.is_cut:
            logits = trace.sampling.cut(logits)
            of_draft = logits.gather(1, token_at[at])
            found = row_statistics(logits, num_candidates, temperature=temperature)
        lse = found.lse[:, None]
        torch.sub(over_temperature(of_draft), lse, out=log_p[at])
        top_token[at] = found.top_id
        torch.sub(found.top, lse, out=top_log_p[at])
        torch.sub(over_temperature(logits[:, ids]), lse, out=p[at]).exp_()

    is_dense = last - first + 1 == num_rounds

    def overlap_at(k: int) -> Tensor:
        here = p[k : k + num_rounds] if is_dense else p[row[:, k]]
        return overlap(here, drafts[k].logits, drafts[k].lse)

    return {
        "target_prob_of_draft": torch.where(has_label, log_p[row, depths].exp(), torch.nan),
        "target_rank_of_draft": torch.where(has_label, rank[row, depths], -1),
        "overlap": torch.where(has_label, torch.stack([overlap_at(k) for k in range(depth)], dim=1), torch.nan),
        "target_top_token": torch.where(has_label[..., None], top_token[row], -1),
        "target_top_prob": torch.where(has_label[..., None], top_log_p[row].exp().half().float(), torch.nan),
    }
