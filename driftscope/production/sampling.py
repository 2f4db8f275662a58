"""Which requests are recorded, and under which name. Called on the engine's thread: no files, no locks."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from driftscope.production.config import ProductionConfig
from probes.vllm.requests import NewRequest, Sampled

UNLABELLED, OTHER = "unlabelled", "other"
MAX_LABEL_CHARACTERS = 64


@dataclass
class Sampler:
    """A request's fate hangs on its id alone, so that every worker decides alike."""

    config: ProductionConfig
    regions: Callable[[np.ndarray], np.ndarray] | None = None  # int [token] -> uint8 [token]
    is_open: bool = True  # False: a cap was reached, nothing is recorded any more
    num_seen: int = 0
    num_too_long: int = 0
    _labels: set[str] = field(default_factory=set)

    def decide(self, request: NewRequest) -> Sampled | None:
        if not self.is_open:
            return None
        self.num_seen += 1
        label = self._label(request.label)
        rate = self.config.rate if label is None else self.config.label_rate
        if zlib.crc32(request.request_id.encode()) >= rate * 2**32:
            return None
        if len(request.prompt_token_ids) > self.config.max_prompt_tokens:
            self.num_too_long += 1
            return None
        region = None
        if self.regions is not None:
            region = self.regions(np.asarray(request.prompt_token_ids, np.int64))
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
