"""Live: the real draft-verify loop. Draft K tokens, verify them with the target in one pass, accept, repeat.

A batch of requests goes through the loop together, each at its own pace. At temperature 0 a draft is accepted when it is
the target's argmax; at T > 0 by one of vLLM's two rules (`verification`). The loop only drafts and verifies, so that
its times mean something; what happened inside the drafter is recorded afterwards from the states that it left
(`record_live`), the drafts given. Knows nothing of conditions or files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.attention.slots import slot_regions, text_regions
from probes.chain.draft_loop import DraftInputs, DraftLoop
from probes.chain.replay import blocks_of_starts, draft_chains, fetched
from probes.chain.rounds import measure_rounds, record_rounds
from probes.chain.step import SlotCache, prefill
from probes.chain.verification import DRAFT_STREAM, Verified, by_equality, by_rejection
from probes.drafter.model import Drafter
from probes.errors import SelfCheckError
from probes.record import PromptRecord, RoundBatch
from probes.target.attention import TargetMasses
from probes.target.model import Target
from probes.target.prefix import Prefix
from probes.target.rows import TargetRows, can_shift
from probes.target.sampler import Key, Sampler
from probes.target.trace import TIE_LOGIT_GAP, TargetTrace


@dataclass
class LiveRounds:
    """What the loop drafted for one request: starts, drafts, and device times of the batch's rounds that it was in."""

    starts: list[int] = field(default_factory=list)
    drafts: list[Int[Tensor, "depth"]] = field(default_factory=list)  # rows of the draft vocabulary
    draft_us: list[float] = field(default_factory=list)
    verify_us: list[float] = field(default_factory=list)
    is_probabilistic: bool = False


class Stopwatch:
    """Microseconds between marks: device events on CUDA, a monotonic clock elsewhere (where the work is synchronous)."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times: list[int] = []

    def mark(self) -> None:
        if self.is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter_ns())

    def laps_us(self) -> list[float]:
        """Time between consecutive marks; waits for the device."""
        if self.is_cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) * 1e3 for a, b in pairwise(self._events)]
        return [(b - a) / 1e3 for a, b in pairwise(self._times)]


def can_batch(target: Target, num_tokens: int, prefix: Prefix | None = None) -> bool:
    """Whether requests of unequal length, growing to `num_tokens`, may go through the loop together."""
    return target.can_pad(num_tokens) and can_shift((prefix or target.empty_prefix()).cache)


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """How the loop drafts, and where its texts end."""

    depth: int
    max_new_tokens: int
    sampler: Sampler
    draft_sample_method: str = "greedy"  # or "probabilistic", which needs a temperature
    prefix: Prefix | None = None  # the target's part of the prompts' common beginning
    slots: SlotCache | None = None  # the drafter's
    use_graph: bool = True  # on a CUDA device, the draft as one captured graph

    @property
    def is_probabilistic(self) -> bool:
        return self.draft_sample_method == "probabilistic" and self.sampler.temperature > 0


@torch.inference_mode()
def run_live_batch(
    drafter: Drafter,
    target: Target,
    prompts: Sequence[np.ndarray],
    prompt_ids: Sequence[str],
    options: LiveOptions,
) -> list[tuple[TargetTrace, LiveRounds]]:
    """Runs rounds until every response is complete. A last round may run past the end: its tokens are continuation.

    Where `can_batch` says no, requests run one after the other. Raises InputError when a text does not fit into the
    target's positions.
    """
    most = max(map(len, prompts)) + options.max_new_tokens + options.depth + 1
    target.check_length(most, "a prompt with its response")
    if len(prompts) > 1 and not can_batch(target, most, options.prefix):
        groups = [[row] for row in range(len(prompts))]
    else:
        groups = [list(range(len(prompts)))]
    done = []
    for group in groups:
        loop = _Loop(drafter, target, [prompts[row] for row in group], [prompt_ids[row] for row in group], options)
        while loop.alive:
            loop.round()
        done += loop.finish()
    return done


class _Loop:
    """A batch of requests between rounds. Row r's text so far has `start[r]` + 2 tokens, the last one just emitted."""

    def __init__(
        self,
        drafter: Drafter,
        target: Target,
        prompts: Sequence[np.ndarray],
        prompt_ids: Sequence[str],
        options: LiveOptions,
    ) -> None:
        self.drafter, self.target, self.prompt_ids, self.options = drafter, target, prompt_ids, options
        self.depth, self.sampler = options.depth, options.sampler
        self.num_prompt = [len(p) for p in prompts]
        # 1) the target reads the prompts; tokens and states have a place for all that is to come
        logits = self._read_prompts(prompts, target.empty_prefix() if options.prefix is None else options.prefix)
        # 2) the first token of every response, by plain decoding
        token = self.sampler(logits, list(zip(prompt_ids, self.num_prompt, strict=True)))  # [row]
        row = torch.arange(len(prompts), device=target.device)
        self.tokens[row, torch.tensor(self.num_prompt, device=target.device)] = token
        self.logits = [[row[None].clone()] for row in logits]  # those of positions P-1, P, ...
        self.is_stopped = [value in target.stop_ids for value in token.tolist()]
        ends = zip(self.num_prompt, self.is_stopped, strict=True)
        self.end = [n + (1 if is_stopped else options.max_new_tokens) for n, is_stopped in ends]  # L, once complete
        # 3) where each row's first round starts
        self.start = [n - 1 for n in self.num_prompt]  # t
        self.first_new = list(self.start)  # the first slot that the drafter has not seen with true features
        self.alive = [r for r in range(len(prompts)) if self.start[r] < self.end[r] - 2]
        self.rows.keep(self.alive)
        self.rounds = [LiveRounds(is_probabilistic=options.is_probabilistic) for _ in prompts]
        self.clock = Stopwatch(target.device)
        self.in_round: list[list[int]] = []  # the rows of each round
        # 4) the drafter reads the prompts
        self.loop = DraftLoop(
            drafter,
            [
                prefill(drafter, self.tokens[row, :n], {i: a[row] for i, a in self.aux.items()}, cache=options.slots)
                for row, n in enumerate(self.num_prompt)
            ],
            depth=options.depth,
            num_slots=self.tokens.shape[1],
            temperature=self.sampler.temperature if options.is_probabilistic else 0.0,
            use_graph=options.use_graph,
        )

    def _read_prompts(self, prompts: Sequence[np.ndarray], prefix: Prefix) -> Float[Tensor, "row vocab"]:
        """Fills `tokens` [row, token] and `aux` [row, token, hidden] -> the logits of each prompt's last position."""
        num_rows, device = len(prompts), self.target.device
        # a frozen row still reads K + 1 columns
        num_tokens = max(self.num_prompt) + self.options.max_new_tokens + 2 * self.depth + 2
        self.tokens = torch.zeros(num_rows, num_tokens, dtype=torch.int64, device=device)
        self.rows = TargetRows(self.target, prompts, prefix)
        logits, states, firsts = self.rows.begin()
        # zeros: what a row has not written yet is read (and thrown away) by the drafter
        self.aux = {i: s.new_zeros(num_rows, num_tokens, s.shape[-1]) for i, s in states.items()}
        num_shared = len(prefix.token_ids)
        for row, (prompt, first) in enumerate(zip(prompts, firsts, strict=True)):
            self.tokens[row, : len(prompt)] = torch.as_tensor(prompt, dtype=torch.int64, device=device)
            for i, state in states.items():
                if num_shared:
                    self.aux[i][row, :num_shared] = prefix.aux[i]
                self.aux[i][row, num_shared : len(prompt)] = state[row, first:]
        return logits

    def round(self) -> None:
        """One draft and one verify of every request that goes on."""
        depth, alive, device = self.depth, self.alive, self.target.device
        # 1) draft: all K steps, of every row
        self.clock.mark()
        drafts = self.loop.draft(self._inputs(), num_slots=max(self.start) + depth + 2)
        self.clock.mark()
        row = torch.tensor(alive, device=device)[:, None]  # [alive, 1]
        draft_row, draft_token = drafts.row[row[:, 0]], drafts.token[row[:, 0]]  # [alive, depth]
        # 2) verify: the last token and the drafts in one pass of the target
        start = torch.tensor([self.start[r] for r in alive], device=device)[:, None]  # [alive, 1]
        logits, states = self.rows.extend(torch.cat([self.tokens[row, start + 1], draft_token], dim=1))
        keys = [[(self.prompt_ids[r], self.start[r] + 2 + k) for k in range(depth + 1)] for r in alive]
        verified = self._verify(logits, draft_row, draft_token, drafts.logits, keys)
        # 3) write down tokens and states of all K + 1 positions; what was rejected is overwritten by the next round
        column = start + 1 + torch.arange(depth + 1, device=device)  # [alive, K + 1]
        self.tokens[row, column + 1] = verified.emitted
        for i, state in states.items():
            self.aux[i][row, column] = state
        accepted = self._advance(alive, logits, draft_row, verified)
        # 4) go on with the rows that are not complete, without what was rejected
        self.alive = [r for r in alive if self.start[r] < self.end[r] - 2]
        going_on = [place for place, r in enumerate(alive) if r in self.alive]
        self.rows.keep(going_on)
        if going_on:
            self.rows.roll_back([depth - accepted[place] for place in going_on])
        self.clock.mark()

    def _inputs(self) -> DraftInputs:
        """Every row's, a finished one's as in its last round: the draft's shapes never change."""
        device, num_rows = self.target.device, len(self.start)
        first = torch.tensor(self.first_new, device=device)
        num_new = torch.tensor([t - f + 1 for t, f in zip(self.start, self.first_new, strict=True)], device=device)
        slot = first[:, None] + torch.arange(self.depth + 1, device=device)
        row = torch.arange(num_rows, device=device)[:, None]
        features = self.drafter.features(self.aux, (row, slot))  # [row, K + 1, ...]
        noise = None
        if self.options.is_probabilistic:
            keys = [
                (name, t + 2 + k)
                for name, t in zip(self.prompt_ids, self.start, strict=True)
                for k in range(self.depth)
            ]
            noise = self.sampler.exponential(self.drafter.spec.draft_vocab_size, keys, device, stream=DRAFT_STREAM)
            noise = noise.view(num_rows, self.depth, -1)
        return DraftInputs(self.tokens.gather(1, slot + 1), features, first, num_new, noise)

    def _verify(
        self,
        logits: Float[Tensor, "row token vocab"],
        draft_row: Int[Tensor, "row depth"],
        draft_token: Int[Tensor, "row depth"],
        draft_logits: Tensor | None,
        keys: list[list[Key]],
    ) -> Verified:
        if draft_logits is None:
            return by_equality(self.sampler, logits, draft_token, keys)
        draft_logits = draft_logits[torch.tensor(self.alive, device=logits.device)]
        ids = self.drafter.target_ids()
        return by_rejection(self.sampler, logits, draft_token, draft_row, draft_logits, ids, keys)

    def _advance(
        self, alive: list[int], logits: Tensor, draft_row: Int[Tensor, "row depth"], verified: Verified
    ) -> list[int]:
        """Takes note of the round -> accepted drafts. The one place where the host waits for the device."""
        told = torch.cat([verified.accepted[:, None], verified.emitted], dim=1).tolist()
        self.in_round.append(alive)
        accepted = [num_accepted for num_accepted, *_ in told]
        for place, (r, (num_accepted, *emitted)) in enumerate(zip(alive, told, strict=True)):
            t = self.start[r]
            self.rounds[r].starts.append(t)
            self.rounds[r].drafts.append(draft_row[place].clone())  # a graph writes into its own again
            self.logits[r].append(logits[place, : num_accepted + 1].clone())
            for at, value in enumerate(emitted[: num_accepted + 1], start=t + 2):
                if value in self.target.stop_ids and at < self.end[r]:
                    self.is_stopped[r], self.end[r] = True, at + 1
            self.first_new[r], self.start[r] = t + 1, t + num_accepted + 1
        return accepted

    def finish(self) -> list[tuple[TargetTrace, LiveRounds]]:
        """The texts, the last rounds' tokens past the end included, and their rounds."""
        laps = self.clock.laps_us()
        for number, rows in enumerate(self.in_round):
            for r in rows:
                self.rounds[r].draft_us.append(laps[3 * number])
                self.rounds[r].verify_us.append(laps[3 * number + 1])
        return [
            (
                TargetTrace(
                    token_ids=self.tokens[r, : self.start[r] + 2],
                    num_prompt_tokens=self.num_prompt[r],
                    num_response_tokens=self.end[r] - self.num_prompt[r],
                    finish_reason="stop" if self.is_stopped[r] else "length",
                    aux={i: a[r, : self.start[r] + 1] for i, a in self.aux.items()},
                    logits=torch.cat(self.logits[r]),
                    sampling=self.sampler.sampling,
                ),
                rounds,
            )
            for r, rounds in enumerate(self.rounds)
        ]


@torch.inference_mode()
def record_live(
    drafter: Drafter,
    trace: TargetTrace,
    rounds: LiveRounds,
    prompt: PromptRecord,
    *,
    name: str,
    sink_slots: int = 1,
    cache: SlotCache | None = None,
    target_attention: TargetMasses | None = None,
) -> RoundBatch:
    """The rounds' record: each depth computed again on the states that the loop left, with what it drafted. `cache`: the
    drafter's slots of the text's beginning.

    Raises SelfCheckError in float32 when a greedy draft is not what the drafter drafts here.
    """
    depth, device = len(rounds.drafts[0]), trace.token_ids.device
    region = text_regions(prompt.region[: trace.num_prompt_tokens], len(trace.token_ids))
    regions = slot_regions(region, sink_slots=sink_slots, device=device)
    cache = prefill(drafter, trace.token_ids, trace.aux, cache=cache)
    every_start, every_row = np.asarray(rounds.starts), torch.stack(rounds.drafts)
    least_gaps: list[Tensor] = []

    def measured() -> Iterator[dict[str, Tensor]]:
        for begin, end in blocks_of_starts(drafter, rounds.starts[0], rounds.starts[-1], depth):
            here = slice(*np.searchsorted(every_start, (begin, end + 1)))
            if here.start == here.stop:
                continue
            span = int(every_start[here][0]), int(every_start[here][-1])
            starts = torch.as_tensor(every_start[here], device=device)
            place = starts - span[0]  # one step takes consecutive starts: those between them are computed too
            every, fresh = draft_chains(drafter, trace, cache, regions, span, depth, given=(place, every_row[here]))
            drafts = [drafted.take(place) for drafted in every]
            least_gaps.append(torch.stack([d.logit_gap for d in drafts]).min())
            yield measure_rounds(
                drafter,
                trace,
                starts,
                span,
                drafts,
                fresh,
                is_greedy=not rounds.is_probabilistic,
                target_attention=target_attention,
            )

    columns = fetched(measured(), len(every_start))
    if not rounds.is_probabilistic and drafter.norm.weight.dtype == torch.float32:
        _check_drafts(min(map(float, least_gaps)), f"drafter {name}, prompt {prompt.prompt_id}")
    return record_rounds(
        columns,
        every_start,
        trace,
        prompt,
        name=name,
        engine="live",
        draft_us=np.asarray(rounds.draft_us, np.float32),
        verify_us=np.asarray(rounds.verify_us, np.float32),
    )


def _check_drafts(least_gap: float, where: str) -> None:
    if least_gap < -TIE_LOGIT_GAP:
        raise SelfCheckError(
            f"the loop drafted a token that is {-least_gap:.3g} below the drafter's best when computed again",
            code="drafts_differ",
            where=where,
            remedy="this is a defect of driftscope: please report it with this checkpoint",
        )
