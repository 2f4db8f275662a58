"""Work beside the drafter's own operations: on a branch of the CUDA graph that is being captured, else in line.

What the recorder computes is small and waits for memory most of its time; the drafter's matrix products hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Branch:
    """One side stream. What `run` started is done, for what follows on the stream of the caller, after `join`."""

    def __init__(self, device: torch.device) -> None:
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._is_open = False

    def run(self, work: Callable[..., None], *args: Any, reads: Sequence[Tensor] = ()) -> None:
        """Does `work`. `reads`: what it reads that the caller's stream may free before `join`; nothing that it reads may be
        overwritten before.
        """
        if self._side is None or not torch.cuda.is_current_stream_capturing():
            work(*args)
            return
        self._is_open = True
        self._side.wait_stream(torch.cuda.current_stream())
        for tensor in reads:
            tensor.record_stream(self._side)
        with torch.cuda.stream(self._side):
            work(*args)

    def join(self) -> None:
        """Also after a failure: a capture whose branches do not come together again fails."""
        if self._is_open and self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
            self._is_open = False
