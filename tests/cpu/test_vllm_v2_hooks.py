"""The V2 hooks around a runner and a speculator that are vLLM's in shape: whose rows are in the ring, and what is read from
the engine's output. Triton's interpreter does the kernels; graphs and the drafter's own columns need a GPU (tests/gpu)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from probes.vllm.depth_writer import DepthWriter
from probes.vllm.recorder import Recorder, RecorderConfig
from probes.vllm.requests import NewRequest, RequestRounds, Sampled
from probes.vllm.rows import RowLayout, as_records
from probes.vllm.v2 import _Hooks, hook

DEVICE = torch.device("cpu")
MAX_REQUESTS = 3


class Speculator:
    """Drafts 100 * (slot t) + depth, of every request."""

    def __init__(self, depth: int) -> None:
        self.device, self.dtype = DEVICE, torch.float32
        self.num_speculative_steps, self.max_num_reqs, self.max_num_tokens = depth, MAX_REQUESTS, 64
        self.current_draft_step = torch.zeros((), dtype=torch.int64)
        self.last_token_indices = torch.zeros(MAX_REQUESTS, dtype=torch.int64)
        self.draft_tokens = torch.zeros(MAX_REQUESTS, depth, dtype=torch.int64)
        self.hidden_states = torch.full((64, 4), 3.0)
        self.input_buffers = SimpleNamespace(positions=torch.zeros(64, dtype=torch.int64))
        inner = SimpleNamespace(layers=[], use_aux_hidden_state=False)
        self.model = SimpleNamespace(combine_hidden_states=lambda aux: aux, model=inner)

    def propose(self, input_batch: Any, *, dummy_run: bool = False) -> torch.Tensor:
        num_reqs = input_batch.num_reqs
        self.model.combine_hidden_states(torch.full((sum(input_batch.num_tokens), 12), 2.0))
        # each request's tokens lie one after the other; the last of them is at slot t
        at = torch.tensor(input_batch.num_tokens).cumsum(0) - 1
        self.last_token_indices[:num_reqs] = at
        self.input_buffers.positions[at] = torch.tensor(input_batch.slots)
        for step in range(self.num_speculative_steps):
            self.current_draft_step.fill_(step)
            (self._generate_draft if step else self._prefill)(num_reqs)
        return self.draft_tokens[:num_reqs]

    def _prefill(self, num_reqs: int) -> None:
        self._run_model(num_reqs)
        self.input_buffers.positions[:num_reqs] = self.input_buffers.positions[self.last_token_indices[:num_reqs]]
        self.draft_tokens[:num_reqs, 0] = 100 * self.input_buffers.positions[:num_reqs]

    def _generate_draft(self, num_reqs: int) -> None:
        self._run_model(num_reqs)
        step = int(self.current_draft_step)
        self.draft_tokens[:num_reqs, step] = self.draft_tokens[:num_reqs, 0] + step

    def _run_model(self, num_tokens: int) -> torch.Tensor:
        return self.hidden_states


class Runner:
    """Steps as the engine makes them: schedule, sample, draft."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.speculator = Speculator(depth)
        self.vllm_config = SimpleNamespace(compilation_config=SimpleNamespace(max_cudagraph_capture_size=20))
        self.texts: dict[str, list[int]] = {}
        self._batch: Any = None

    def step(
        self,
        emitted: Mapping[str, Sequence[int]],
        *,
        new: Sequence[str] = (),
        ended: Sequence[str] = (),
        preempted: Sequence[str] = (),
        resumed: Sequence[str] = (),
    ) -> None:
        """`emitted` by request, in the batch's order; a new one has a prompt of four tokens."""
        for name in new:
            self.texts[name] = [1, 2, 3, 4]
        num_tokens = {name: len(self.texts[name]) if name in (*new, *resumed) else self.depth + 1 for name in emitted}
        self.execute_model(
            SimpleNamespace(
                scheduled_new_reqs=[
                    SimpleNamespace(
                        req_id=name,
                        prompt_token_ids=[1, 2, 3, 4],
                        prefill_token_ids=list(self.texts[name]),
                        sampling_params=None,
                    )
                    for name in (*new, *resumed)
                ],
                finished_req_ids=set(ended),
                preempted_req_ids=set(preempted) or None,
                scheduled_spec_decode_tokens={
                    name: [-1] * self.depth for name in emitted if name not in (*new, *resumed)
                },
                num_scheduled_tokens=num_tokens,
            )
        )
        if not emitted:
            return
        for name, tokens in emitted.items():
            self.texts[name] += tokens
        self._batch = SimpleNamespace(
            req_ids=list(emitted),
            num_reqs=len(emitted),
            num_tokens=list(num_tokens.values()),
            slots=[len(self.texts[name]) - 2 for name in emitted],
        )
        self.sample_tokens([emitted[name] for name in emitted])

    def execute_model(self, scheduler_output: Any, dummy_run: bool = False) -> None:
        pass

    def sample_tokens(self, emitted: Sequence[Sequence[int]]) -> Any:
        tokens = np.full((len(emitted), self.depth + 1), -1, np.int64)
        for row, values in enumerate(emitted):
            tokens[row, : len(values)] = values
        self.speculator.propose(self._batch)
        return SimpleNamespace(
            copy_event=SimpleNamespace(synchronize=lambda: None),
            sampled_token_ids=tokens,
            num_sampled_tokens_np=np.array([len(values) for values in emitted]),
        )

    def dummy(self) -> None:
        self.execute_model(SimpleNamespace(), dummy_run=True)
        self.speculator.propose(
            SimpleNamespace(num_reqs=2, num_tokens=[1, 1], slots=[9, 9], req_ids=[]), dummy_run=True
        )


def probed(runner: Runner, level: str, written: dict[str, RequestRounds] | None = None) -> tuple[Recorder, DepthWriter]:
    """A recorder that is prepared, and what its hooks write with."""
    into = {} if written is None else written
    recorder = Recorder(
        RecorderConfig(level=level, write=lambda rounds: into.update({rounds.request.request_id: rounds}))
    )
    layout = RowLayout(level=level, depth=runner.depth, num_aux=3, num_layers=1, num_heads=1)
    recorder.prepare(layout, num_rows=MAX_REQUESTS, max_model_len=64, device=DEVICE)
    speculator = runner.speculator
    return recorder, DepthWriter(recorder, speculator.model, speculator.current_draft_step, 64)  # type: ignore[arg-type]


def recorded(runner: Runner, level: str = "counts") -> tuple[Recorder, dict[str, RequestRounds]]:
    written: dict[str, RequestRounds] = {}
    recorder, writer = probed(runner, level, written)
    hook(runner, recorder, writer)
    return recorder, written


@pytest.mark.parametrize("depth", [1, 3])
def test_each_request_gets_its_own_rows(depth: int) -> None:
    runner = Runner(depth)
    recorder, written = recorded(runner)
    runner.speculator._prefill(2)  # a warm-up, as before a capture
    runner.dummy()
    for name in ("_warmup_0_", "_v2_mixed_warmup_decode_"):  # the engine's own requests, before it serves
        runner.step({name: [9]}, new=[name])
        runner.step({}, ended=[name])
    runner.step({"a": [10]}, new=["a"])
    runner.step({"b": [20], "a": [11]}, new=["b"])  # the batch's order changes
    runner.dummy()
    runner.speculator._prefill(1)
    runner.step({"a": [12, 13], "b": [21, 22]})
    runner.step({"b": [23]}, ended=["a"])
    runner.step({}, ended=["b"])
    recorder.transport.flush()
    recorder.transport.stop()
    assert recorder.failure is None
    assert recorder.transport.num_lost == 0
    assert recorder.num_requests == len(written) == 2
    a, b = written["a"], written["b"]
    assert a.token_ids.tolist() == [1, 2, 3, 4, 10, 11, 12, 13]
    assert b.token_ids.tolist() == [1, 2, 3, 4, 20, 21, 22, 23]
    for rounds, starts, accepted in ((a, [3, 4, 6], [0, 1, 0]), (b, [3, 5, 6], [1, 0, 0])):
        assert rounds.rows["start"].tolist() == starts
        assert rounds.accepted_drafts.tolist() == accepted
        assert rounds.is_verified.tolist() == [True, True, False]
        assert rounds.rows["draft_token"].tolist() == [[100 * t + k for k in range(depth)] for t in starts]
        assert (rounds.draft_us > 0).all()
    assert a.emitted[1, :2].tolist() == [12, 13]


def test_norms_and_what_is_written_after_the_proposal_come_along() -> None:
    runner = Runner(2)
    recorder, written = recorded(runner, "default")
    runner.step({"a": [10]}, new=["a"])
    runner.step({"a": [11], "b": [20]}, new=["b"])
    runner.step({}, ended=["a", "b"])
    recorder.transport.flush()
    recorder.transport.stop()
    assert recorder.failure is None
    for name, num_rounds in (("a", 2), ("b", 1)):
        rows = written[name].rows
        assert rows["aux_norm"].tolist() == [[4.0] * 3] * num_rounds
        assert rows["hidden_in_norm"][:, 0].tolist() == [[6.0]] * num_rounds
        assert rows["hidden_feedback_norm"].tolist() == [[6.0] * 2] * num_rounds
        assert rows["draft_token"][:, 1].tolist() == [100 * t + 1 for t in rows["start"]]


def test_rows_of_another_step_are_a_failure_and_never_taken() -> None:
    runner = Runner(2)
    recorder, written = recorded(runner)
    runner.step({"a": [10]}, new=["a"])
    recorder.transport.flush()
    recorder.transport.serial += 1  # as if the device had counted a step less
    runner.step({"a": [11]})
    recorder.transport.flush()
    assert recorder.failure is not None
    assert "where those of 3 should be" in recorder.failure
    recorder.transport.stop()
    assert not written


def test_a_preempted_request_goes_on_and_is_decided_on_once() -> None:
    runner = Runner(2)
    recorder, written = recorded(runner)
    asked: list[str] = []

    def decide(request: NewRequest) -> Sampled | None:
        asked.append(request.request_id)
        return Sampled() if request.request_id == "a" else None

    recorder.config = replace(recorder.config, decide=decide)
    runner.step({"a": [10], "other": [30]}, new=["a", "other"])
    runner.step({"a": [11, 12], "other": [31]})
    runner.step({}, preempted=["a", "other"])
    runner.step({"other": [32], "a": [13]}, resumed=["other", "a"])
    runner.step({"other": [33], "a": [14, 15, 16]})
    runner.step({}, ended=["a", "other"])
    recorder.transport.flush()
    recorder.transport.stop()
    assert recorder.failure is None
    assert asked == ["a", "other"]
    assert list(written) == ["a"]
    rounds = written["a"]
    assert rounds.token_ids.tolist() == [1, 2, 3, 4, 10, 11, 12, 13, 14, 15, 16]
    assert rounds.rows["start"].tolist() == [3, 5, 6, 9]
    assert rounds.is_verified.tolist() == [True, False, True, False]  # the drafts before the preemption are lost
    assert rounds.accepted_drafts.tolist() == [1, 0, 2, 0]


def test_the_device_knows_which_rows_are_recorded_and_a_request_keeps_no_others() -> None:
    runner = Runner(2)
    recorder, written = recorded(runner)
    recorder.config = replace(
        recorder.config, decide=lambda request: Sampled() if request.request_id in ("b", "c") else None
    )
    slots: list[list[bool]] = []

    def step(*args: Any, **kwargs: Any) -> None:
        runner.step(*args, **kwargs)
        slots.append([slot >= 0 for slot in recorder.boundaries.slot.tolist()])

    step({"a": [10]}, new=["a"])  # nothing recorded
    step({"b": [20], "a": [11], "c": [30]}, new=["b", "c"])
    recorder.transport.flush()
    assert {name: request.num_steps for name, request in recorder._open.items()} == {"b": 1, "c": 1}
    step({"a": [12], "c": [31]}, ended=["b"])
    step({"a": [13], "d": [40]}, new=["d"], ended=["c"])
    step({}, ended=["a", "d"])
    recorder.transport.flush()
    recorder.transport.stop()
    rest = [False] * (MAX_REQUESTS - 3)
    assert slots[0] == slots[3] == [False] * MAX_REQUESTS
    assert slots[1] == [True, False, True, *rest]
    assert slots[2] == [False, True, False, *rest]
    assert recorder.failure is None
    assert {name: rounds.token_ids.tolist() for name, rounds in written.items()} == {
        "b": [1, 2, 3, 4, 20],
        "c": [1, 2, 3, 4, 30, 31],
    }


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_are_kept_with_all_that_was_written_of_them(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(depth)
    recorder, writer = probed(runner, "default")
    monkeypatch.setattr(DepthWriter, "aux_width", 12)
    rows, speculator = recorder.rows, runner.speculator
    monkeypatch.setattr(writer, "write_fusion", lambda aux, last: rows["fusion_share"].fill_(7.0))
    monkeypatch.setattr(writer, "write_feedback", lambda hidden: rows["hidden_feedback_norm"].fill_(5.0))
    hook(runner, recorder, writer)  # type: ignore[arg-type]
    speculator.last_token_indices[:2] = torch.tensor([4, 5])
    speculator.input_buffers.positions[4:6] = torch.tensor([9, 11])
    speculator._prefill(2)
    if depth > 1:
        speculator.current_draft_step.fill_(1)
        speculator._generate_draft(2)
    assert recorder.failure is None
    kept = as_records(recorder.transport.ring[1, :2].numpy(), recorder.layout)
    assert kept["serial"].tolist() == [1, 1]
    assert kept["start"].tolist() == [9, 11]
    assert kept["fusion_share"].tolist() == [[7.0] * 3] * 2
    assert (kept["hidden_feedback_norm"] == 5).all()
    recorder.transport.stop()


def test_graphs_of_prompts_find_all_captured_states(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(1)  # 3 requests of 2 tokens; graphs are for up to 20 tokens
    recorder, writer = probed(runner, "default")
    monkeypatch.setattr(DepthWriter, "aux_width", 12)
    hooks = _Hooks(runner, recorder, writer)
    for num_tokens in (20, 64):
        aux = torch.arange(num_tokens * 12, dtype=torch.float32).view(num_tokens, 12)
        hooks._keep_aux(aux)
        assert hooks._kept_aux is not None
        assert torch.equal(hooks._kept_aux[:20], aux[:20])
    recorder.transport.stop()
