"""The slots that each of a row of queries sees: query i sees first+i .. last+i.

One row of queries, affine in i, is all that a chain needs: a causal prefix, with or without a window, whose edge moves by
one slot a query. No torch.
"""

from __future__ import annotations

from typing import NamedTuple


class Band(NamedTuple):
    """Query i sees the slots max(0, first + i) .. last + i, both included."""

    first: int
    last: int

    @classmethod
    def causal(cls, last: int, *, query_position: int, window: int | None) -> Band:
        """Query i stands at position query_position + i and sees slots up to last + i, of them only the last `window`.

        A window of W shows a query at position p the slots j > p - W.
        """
        first = -(1 << 60) if window is None else query_position - window + 1
        return cls(first, last)

    @property
    def is_empty(self) -> bool:
        """The window ends before the first slot: no query sees any."""
        return self.first > self.last
