"""What is known of a request, and all of its rounds once it ended: plain dataclasses of numpy arrays.

The rows of a request's steps are put together here: a step that drafted opens a round, the next step that verified drafts
of the same request completes it. Knows nothing of vLLM, devices or threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probes.vllm.rows import RowLayout

LABEL_KEY = "driftscope"
"""In a request's `vllm_xargs`: its label."""


class ContradictionError(ValueError):
    """What was recorded of a request contradicts itself, e.g. because the engine dropped the tokens of a step: vLLM's
    `reset_prefix_cache(reset_running_requests=True)` does.
    """


@dataclass(frozen=True, kw_only=True)
class NewRequest:
    """A request as the engine's worker sees it: token ids and sampling parameters, never messages.

    Made on the engine's thread of what a client sent, in any size: holds it as it came, counts and copies nothing.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    extra_args: Mapping[str, object]  # `vllm_xargs` of the HTTP API; LABEL_KEY holds the label
    temperature: float
    max_tokens: int | None = None  # longest response
    stop_token_ids: Collection[int] = ()  # the response ends with the first of these, or with `eos_token_id`
    eos_token_id: int | None = None  # None: it ends no response

    @property
    def label(self) -> str | None:
        """The client's name for it, uncut; None where it gave none, or something that is not text."""
        value = self.extra_args.get(LABEL_KEY)
        return value if isinstance(value, str) else None

    @property
    def has_unusable_label(self) -> bool:
        """Whether it came with a label that is not text: a list, an object, a number, true or false."""
        return not isinstance(self.extra_args.get(LABEL_KEY), str | None)


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


FIRST_STEPS = 64  # that a request has room for; twice as many each time that it is full


@dataclass(kw_only=True)
class OpenRequest:
    """A request that is being recorded.

    Its steps lie in arrays: thousands of small objects that live for as long as a request would each be looked at by every
    garbage collection of the engine's process.
    """

    request: NewRequest
    sampled: Sampled
    layout: RowLayout
    has_gap: bool = False  # a step was dropped: its rounds cannot be put together
    num_steps: int = 0

    def __post_init__(self) -> None:
        fields: list[tuple[Any, ...]] = [("row", self.layout.dtype), ("num_drafts", "<i4"), ("laps_us", "<f4", (2,))]
        self._steps = np.zeros(FIRST_STEPS, fields)

    def add(self, row: np.void, num_drafts: int, laps_us: tuple[float, float]) -> None:
        """This request's row of a step, how many drafts the step verified, and its times: from its begin to its sampling,
        from there to its drafts.
        """
        at = self.num_steps
        if at == len(self._steps):
            self._steps = np.concatenate([self._steps, np.zeros_like(self._steps)])
        self._steps[at] = row, num_drafts, laps_us
        self.num_steps += 1

    def close(self, end: str, unmeasured: Mapping[str, str]) -> RequestRounds:
        """Raises ContradictionError when the engine's positions do not follow from what it emitted."""
        layout, steps = self.layout, self._steps[: self.num_steps]
        steps = steps[steps["row"]["num_sampled"] > 0]  # the others are chunks of the prompt
        rows, given, laps = steps["row"], steps["num_drafts"], steps["laps_us"]
        num_sampled, start = rows["num_sampled"], rows["start"]
        is_emitted = np.arange(layout.depth + 1) < num_sampled[:, None]
        prompt = np.asarray(self.request.prompt_token_ids, np.int32)
        num_tokens = len(prompt) + num_sampled.cumsum()  # after each step
        opened = np.flatnonzero(start >= 0)  # below 0: nothing was drafted, e.g. at the model's length limit
        wrong = opened[start[opened] != num_tokens[opened] - 2]
        if len(wrong):
            first = wrong[0]
            raise ContradictionError(
                f"request {self.request.request_id[:100]!r}: the engine drafts from slot {start[first]}, "
                f"after {num_tokens[first]} tokens it should be {num_tokens[first] - 2}"
            )
        by = _completing(opened, given > 0)
        is_verified = by >= 0
        verifying = np.where(is_verified, by, 0)
        return RequestRounds(
            request=self.request,
            sampled=self.sampled,
            end=end,
            layout=layout,
            token_ids=np.concatenate([prompt, rows["emitted"][is_emitted]]),
            is_verified=is_verified,
            num_drafts=np.where(is_verified, given[verifying], layout.depth).astype(np.int32),
            accepted_drafts=np.where(is_verified, num_sampled[verifying] - 1, 0).astype(np.int32),
            emitted=np.where(is_verified[:, None] & is_emitted[verifying], rows["emitted"][verifying], -1).astype(
                np.int32
            ),
            draft_us=laps[opened, 1],
            verify_us=np.where(is_verified, laps[verifying, 0], np.nan).astype(np.float32),
            rows=rows[opened],
            unmeasured=unmeasured,
        )


def _completing(opened: np.ndarray, is_verifying: np.ndarray) -> np.ndarray:
    """The step that verified the drafts of each round, -1 where none did: the first that verified any after the round's own
    (`opened` [round]: those steps), up to the next round's.
    """
    verifying = np.flatnonzero(is_verifying)
    following = np.append(verifying, -1)[np.searchsorted(verifying, opened, side="right")]
    last = np.append(opened[1:], len(is_verifying))[: len(opened)]
    return np.where(following <= last, following, -1)
