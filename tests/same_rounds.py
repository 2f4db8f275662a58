"""Two replays that computed the same rounds: columns equal but for the order of sums. For the GPU tests."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from probes.record import RoundBatch

ROUNDED_TO_HALF = ("draft_top_prob", "target_top_prob")
"""Two nearly equal probabilities may be rounded to neighbours: 2^-11 apart between 0.5 and 1."""


RANK_TOLERANCE = 0.01
"""Of a rank: far down a row, thousands of logits lie closer together than they are rounded. Ranks below 100 are equal."""


def assert_same_rounds(ours: RoundBatch, theirs: RoundBatch, *, atol: float, mass_atol: float) -> None:
    """`atol` of a column's largest value where that is above 1; integer columns are equal, ranks nearly."""
    for field in fields(RoundBatch):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(a, np.ndarray) and np.issubdtype(a.dtype, np.floating):
            largest = max(1.0, float(np.nanmax(np.abs(b), initial=0.0)))
            allowed = max(atol * largest, 2.0**-11 if field.name in ROUNDED_TO_HALF else 0.0)
            np.testing.assert_allclose(a, b, atol=allowed, rtol=0, err_msg=field.name)
        elif field.name == "target_rank_of_draft" and a is not None:
            assert (np.abs(a - b) <= np.floor(RANK_TOLERANCE * np.maximum(b, 0))).all(), field.name
        elif isinstance(a, np.ndarray):
            assert a.tolist() == b.tolist(), field.name
    for region, mass in ours.mass.items():
        np.testing.assert_allclose(mass, theirs.mass[region], atol=mass_atol, rtol=0, err_msg=region)
