"""Ratios of sums. What is accepted at a depth is counted by `driftscope.quantities`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ratios(numerator: Sequence[float] | np.ndarray, denominator: Sequence[float] | np.ndarray) -> list[float | None]:
    """Elementwise ratio; None where the denominator is 0."""
    return [float(n / d) if d else None for n, d in zip(numerator, denominator, strict=True)]
