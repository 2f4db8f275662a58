"""Finished texts read again, and prompts whose last template tokens are another template's. Knows no intervention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probes.conditions import Cell, PromptInput
from probes.prompt.under_condition import render_or_take, shared_prefix_tokens
from probes.record import TEXT_REGIONS, PromptRecord
from probes.target.model import Target
from probes.target.sampler import Sampling
from probes.target.trace import TargetTrace


class Reader:
    """Reads finished texts of one condition; their common beginning is computed once."""

    def __init__(self, target: Target, records: Sequence[PromptRecord], temperature: float) -> None:
        heads = [r.token_ids[: r.num_prompt_tokens] for r in records]
        self.target, self.temperature = target, temperature
        self.prefix = target.prefill(heads[0][: shared_prefix_tokens(heads)])

    def read(self, record: PromptRecord) -> TargetTrace:
        """The trace that the text had when it was written (forced texts stay forced)."""
        trace = self.target.read(record.token_ids, record.num_prompt_tokens, prefix=self.prefix)
        return replace(
            trace,
            num_response_tokens=record.num_response_tokens,
            finish_reason=record.finish_reason,
            is_forced=record.is_forced,
            sampling=Sampling(0.0 if record.is_forced else self.temperature),
        )


def response_of(trace: TargetTrace) -> np.ndarray:
    """Token ids of the response, without what was run past its end."""
    begin = trace.num_prompt_tokens
    return trace.token_ids[begin : begin + trace.num_response_tokens].cpu().numpy()


def swap_suffix(
    target: Target, prompt: PromptInput, cell: Cell, reference: Cell, document: str | None
) -> tuple[int, ...]:
    """The condition's prompt with the reference template's tokens behind the last turn."""
    own, theirs = (render_or_take(target.tokenizer, prompt, c, document) for c in (cell, reference))
    head = own.token_ids[: len(own.token_ids) - num_suffix_tokens(own.region)]
    tail = theirs.token_ids[len(theirs.token_ids) - num_suffix_tokens(theirs.region) :]
    return tuple(int(i) for i in np.concatenate([head, tail]))


def num_suffix_tokens(region: np.ndarray) -> int:
    """How many template tokens end the prompt."""
    is_other = region != TEXT_REGIONS.index("template")
    return len(region) if not is_other.any() else int(is_other[::-1].argmax())
