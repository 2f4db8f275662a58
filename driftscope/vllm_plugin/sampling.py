"""Which requests are recorded, and under which name. Called on the engine's thread: no files, no locks.

What a client sends comes in any size, so nothing here grows with it: a label is cut before it is looked at, an id too, and
what is not text is not made text. The one exception is the regions of a prompt, at level `heads` alone, whose device needs
them before the first draft (turns.py says what they cost).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from driftscope.vllm_plugin.config import ProductionConfig
from probes.vllm.requests import NewRequest, Sampled

UNLABELLED, OTHER = "unlabelled", "other"
MAX_LABEL_CHARACTERS = 64
MAX_ID_CHARACTERS = 512
"""A longer request id counts by its first and last half of this length: vLLM puts random letters at the end."""


@dataclass
class Sampler:
    """A request's fate hangs on its id alone, so that every worker decides alike."""

    config: ProductionConfig
    regions: Callable[[np.ndarray], np.ndarray] | None = (
        None  # int [token] -> uint8 [token]; None: nobody needs them yet
    )
    is_open: bool = True  # False: a cap was reached, nothing is recorded any more
    num_seen: int = 0
    num_too_long: int = 0
    num_unusable_labels: int = 0  # not text: these requests count as unlabelled
    _labels: set[str] = field(default_factory=set)

    def decide(self, request: NewRequest) -> Sampled | None:
        if not self.is_open:
            return None
        self.num_seen += 1
        self.num_unusable_labels += request.has_unusable_label
        label = self._label(request.label)
        rate = self.config.rate if label is None else self.config.label_rate
        if _place(request.request_id) >= rate * 2**32:
            return None
        if len(request.prompt_token_ids) > self.config.max_prompt_tokens:
            self.num_too_long += 1
            return None
        region = None
        if self.regions is not None:
            ids = request.prompt_token_ids
            region = self.regions(np.fromiter(ids, np.int32, len(ids)))
        return Sampled(label=label or UNLABELLED, region=region)

    def _label(self, given: str | None) -> str | None:
        if given is None or (self.config.labels is not None and given not in self.config.labels):
            return None
        label = "".join(c for c in given[:MAX_LABEL_CHARACTERS] if c.isprintable()).strip()
        if not label:
            return None
        if label not in self._labels and len(self._labels) >= self.config.max_labels:
            return OTHER
        self._labels.add(label)
        return label


def _place(request_id: str) -> int:
    """Where between 0 and 2**32 this id lies; whatever characters a client put into it, lone surrogates too."""
    if len(request_id) > MAX_ID_CHARACTERS:
        half = MAX_ID_CHARACTERS // 2
        request_id = request_id[:half] + request_id[-half:]
    return zlib.crc32(request_id.encode("utf-8", "surrogatepass"))
