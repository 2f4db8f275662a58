"""speculators' `acceptance.csv` (scripts/evaluate): one row for each subset, here for each category of prompts.

Columns as its perf_utils.acceptance_csv_columns writes them; `acceptance_at_pos_i` counts from position 0 and divides by
all rounds, as vLLM does; `acceptance_length` includes the bonus token.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from driftscope.import_export.condition import Walk, categories

ALL = "all"
NO_CATEGORY = "uncategorised"


def acceptance_csv(walk: Walk) -> str:
    """The file's text."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    positions = [f"acceptance_at_pos_{i}" for i in range(walk.depth)]
    writer.writerow(
        ["subset", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_length", *positions]
    )
    for name, groups in _subsets(walk):
        weight = walk.num_rounds[groups]
        num_rounds = int(weight.sum())
        writer.writerow(
            [
                name,
                num_rounds,
                int((walk.num_drafts[groups] * weight).sum()),
                int((walk.accepted_drafts[groups] * weight).sum()),
                walk.tokens_per_round(groups),
                *(count / num_rounds for count in walk.accepted_at(groups)),
            ]
        )
    return text.getvalue()


def _subsets(walk: Walk) -> list[tuple[str, np.ndarray]]:
    """Categories; prompts without one as a subset of their own, all as one where none has any."""
    has_none = np.array([name is None for name in walk.category])
    if has_none.all():
        return [(ALL, has_none)]
    subsets = [(name, walk.category == name) for name in categories(walk)]
    return [*subsets, (NO_CATEGORY, has_none)] if has_none.any() else subsets
