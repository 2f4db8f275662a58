"""What is known of a request, and all of its rounds once it ended: plain dataclasses of numpy arrays.

The rows of a request's steps are put together here: a step that drafted opens a round, the next step that verified drafts
of the same request completes it. Knows nothing of vLLM, devices or threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from probes.vllm.rows import RowLayout, as_records


@dataclass(frozen=True, kw_only=True)
class NewRequest:
    """A request as the engine's worker sees it: token ids and sampling parameters, never messages."""

    request_id: str
    prompt_token_ids: Sequence[int]
    extra_args: Mapping[str, object]  # `vllm_xargs` of the HTTP API; "driftscope" holds the label
    temperature: float
    max_tokens: int | None = None  # longest response
    stop_token_ids: frozenset[int] = frozenset()  # the response ends with the first of these

    @property
    def label(self) -> str | None:
        value = self.extra_args.get("driftscope")
        return None if value is None else str(value)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The decision to record a request."""

    label: str | None = None
    region: np.ndarray | None = None  # uint8 [prompt token], index into TEXT_REGIONS; None: unknown


@dataclass(frozen=True, kw_only=True)
class RequestRounds:
    """All rounds of one request. R rounds; columns as in the row, with the round as first axis."""

    request: NewRequest
    sampled: Sampled
    end: str  # "finished" | "open": still running, for all that the worker knew, when the recorder was flushed
    layout: RowLayout
    token_ids: np.ndarray  # int32 [token]: the prompt and everything the engine emitted, past a stop too
    is_verified: np.ndarray  # bool [round]; False: drafted, never verified
    num_drafts: np.ndarray  # int32 [round]: how many the engine verified (of K drafted)
    accepted_drafts: np.ndarray  # int32 [round]
    emitted: np.ndarray  # int32 [round, K+1]: what the verifying step emitted; -1 beyond
    draft_us: np.ndarray  # float32 [round]
    verify_us: np.ndarray  # float32 [round]; NaN where unverified
    rows: np.ndarray  # structured [round], of the step that drafted
    unmeasured: Mapping[str, str]  # column -> why this engine cannot show it


Step = tuple[np.ndarray, int, int, tuple[float, float]]
"""One step of one request: the batch's words int32 [row, word], its row there, how many drafts the step verified, and
(microseconds from the step's begin to its sampling, from there to its drafts)."""


@dataclass(kw_only=True)
class OpenRequest:
    """A request that is being recorded."""

    request: NewRequest
    sampled: Sampled
    steps: list[Step] = field(default_factory=list)
    has_gap: bool = False  # a step was dropped: its rounds cannot be put together

    def close(self, end: str, layout: RowLayout, unmeasured: Mapping[str, str]) -> RequestRounds:
        """Raises ValueError when the engine's positions do not follow from what it emitted."""
        tokens: list[int] = [int(t) for t in self.request.prompt_token_ids]
        rows = as_records(np.stack([words[row] for words, row, _, _ in self.steps]), layout) if self.steps else ()
        opened: list[tuple[np.void, float]] = []  # the row of each step that drafted, and its time
        outcome: list[tuple[int, np.void, float] | None] = []  # (drafts verified, the verifying row, its time)
        for (_, _, num_drafts, (verify_us, draft_us)), row in zip(self.steps, rows, strict=True):
            num_sampled = int(row["num_sampled"])
            if num_sampled == 0:
                continue  # a chunk of the prompt
            if num_drafts and opened and outcome[-1] is None:
                outcome[-1] = (num_drafts, row, verify_us)
            tokens += row["emitted"][:num_sampled].tolist()
            start = int(row["start"])
            if start < 0:
                continue  # nothing was drafted, e.g. at the model's length limit
            if start != len(tokens) - 2:
                raise ValueError(
                    f"request {self.request.request_id}: the engine drafts from slot {start}, "
                    f"after {len(tokens)} tokens it should be {len(tokens) - 2}"
                )
            opened.append((row, draft_us))
            outcome.append(None)
        return self._rounds(end, layout, unmeasured, tokens, opened, outcome)

    def _rounds(
        self,
        end: str,
        layout: RowLayout,
        unmeasured: Mapping[str, str],
        tokens: list[int],
        opened: list[tuple[np.void, float]],
        outcome: list[tuple[int, np.void, float] | None],
    ) -> RequestRounds:
        num_rounds = len(opened)
        emitted = np.full((num_rounds, layout.depth + 1), -1, np.int32)
        num_drafts = np.full(num_rounds, layout.depth, np.int32)
        accepted = np.zeros(num_rounds, np.int32)
        verify_us = np.full(num_rounds, np.nan, np.float32)
        for index, verified in enumerate(outcome):
            if verified is not None:
                num_drafts[index], row, verify_us[index] = verified
                num_sampled = int(row["num_sampled"])
                accepted[index] = num_sampled - 1
                emitted[index, :num_sampled] = row["emitted"][:num_sampled]
        return RequestRounds(
            request=self.request,
            sampled=self.sampled,
            end=end,
            layout=layout,
            token_ids=np.asarray(tokens, np.int32),
            is_verified=np.array([o is not None for o in outcome], bool),
            num_drafts=num_drafts,
            accepted_drafts=accepted,
            emitted=emitted,
            draft_us=np.array([draft_us for _, draft_us in opened], np.float32),
            verify_us=verify_us,
            rows=np.array([row for row, _ in opened], layout.dtype) if opened else np.zeros(0, layout.dtype),
            unmeasured=unmeasured,
        )
