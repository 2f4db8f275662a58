"""Hooks into vLLM's V1 model runner (`model_runner.drafter`): the CPU's, and a GPU's where it was asked for.

Read in 0.26.0 and 0.32.0: v1/worker/gpu_model_runner.py, v1/spec_decode/llm_base_proposer.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from probes.vllm.attach import prepare, schedule, wrap
from probes.vllm.depth_writer import DepthWriter
from probes.vllm.recorder import Recorder


def attach(runner: Any, recorder: Recorder) -> None:
    """Wraps this runner's methods. Raises what `attach.prepare` raises."""
    drafter = runner.drafter
    prepare(recorder, runner, drafter.model, runner_name="V1", device=runner.device)
    step = torch.zeros((), dtype=torch.int64, device=runner.device)
    writer = DepthWriter(recorder, drafter.model, step, drafter.max_num_tokens)
    hooks = _Hooks(runner, recorder, writer)
    wrap(runner, "execute_model", hooks.execute_model)
    wrap(runner, "_sample", hooks.sample)
    wrap(runner, "sample_tokens", hooks.sample_tokens)
    wrap(drafter, "propose", hooks.propose)
    wrap(drafter.model, "combine_hidden_states", hooks.combine)
    wrap(drafter.model, "forward", hooks.forward)


class _Hooks:
    def __init__(self, runner: Any, recorder: Recorder, writer: DepthWriter) -> None:
        self.runner, self.recorder, self.writer = runner, recorder, writer
        self._last_slots: Tensor | None = None  # [row], while a proposal is made
        self._aux: Tensor | None = None
        self._depth = 0

    def execute_model(self, original: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self.recorder.guarded(schedule, self.recorder, scheduler_output)
        return original(scheduler_output, *args, **kwargs)

    def sample(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if self.recorder.is_recording:
            self.recorder.guarded(self._write_sampled, output)
        return output

    def _write_sampled(self, output: Any) -> None:
        tokens = output.sampled_token_ids  # [row, 1 or K+1], -1 where rejected
        recorder, num_rows = self.recorder, len(tokens)
        recorder.transport.begin()
        recorder.before_writes(self.runner.input_batch.req_ids)
        is_emitted = (tokens >= 0) & ~self.runner.discard_request_mask.gpu[:num_rows, None]
        rows = recorder.rows
        rows.first("start", num_rows).fill_(-1)  # until something is drafted
        rows.first("num_sampled", num_rows).copy_(is_emitted.sum(dim=1))
        rows.first("emitted", num_rows)[:, : tokens.shape[1]].copy_(tokens)
        recorder.mark(1)

    def propose(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.recorder.guarded(self._begin, kwargs)
        drafts = original(*args, **kwargs)
        if self.recorder.is_recording:
            self.recorder.guarded(self._finish, drafts)
        self._last_slots = self._aux = None
        return drafts

    def _begin(self, arguments: dict[str, Any]) -> None:
        if not self.recorder.is_recording:
            return
        last = arguments.get("token_indices_to_sample")
        metadata = arguments["common_attn_metadata"]
        self._last_slots = (metadata.query_start_loc[1:] - 1 if last is None else last).long()
        self._depth = 0

    def combine(self, original: Any, aux: Tensor) -> Tensor:
        self._aux = aux
        return original(aux)

    def forward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._last_slots is None:
            return original(*args, **kwargs)
        self.recorder.guarded(self._before_forward, kwargs)
        try:
            result = original(*args, **kwargs)
            self.recorder.guarded(self._after_forward, result)
        finally:
            self.writer.leave()
        return result

    def _before_forward(self, arguments: dict[str, Any]) -> None:
        assert self._last_slots is not None
        writer, is_first = self.writer, self._depth == 0
        writer.step.fill_(self._depth)
        writer.enter(len(self._last_slots), self._last_slots if is_first else None, arguments["positions"])
        if is_first:
            writer.write_start()
            writer.write_fused(arguments["hidden_states"])

    def _after_forward(self, result: tuple[Tensor, Tensor]) -> None:
        self.writer.write_feedback(result[1])
        self._depth += 1

    def _finish(self, drafts: Tensor) -> None:
        self.recorder.rows.first("draft_token", len(drafts))[:, : drafts.shape[1]].copy_(drafts)
        if self._aux is not None and self._last_slots is not None:
            self.writer.write_fusion(self._aux, self._last_slots)
        self.recorder.mark(2)

    def sample_tokens(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self.recorder.is_recording:
            self.recorder.guarded(self._send)
        return result

    def _send(self) -> None:
        self.recorder.keep_rows()
        self.recorder.send_step()
