"""Hooks into vLLM's V2 model runner (`model_runner.speculator`), a GPU's default, with CUDA graphs and compilation on.

`_prefill` and `_generate_draft` are what the graphs capture, so what is written inside them is captured too, the step's end
in the ring included: outside of the graphs a step costs one copy, of the captured states. What was sampled is read from the
output that the engine brings to the host anyway. Read in 0.26.0 (v1/worker/gpu/model_runner.py, async_utils.py,
v1/worker/gpu/spec_decode/autoregressive/speculator.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes.vllm.attach import prepare, schedule, wrap
from probes.vllm.depth_writer import DepthWriter
from probes.vllm.recorder import Recorder
from probes.vllm.transport import SERIAL_MASK


def attach(runner: Any, recorder: Recorder) -> None:
    """Wraps this runner's methods. Raises what `attach.prepare` raises."""
    speculator = runner.speculator
    prepare(recorder, runner, speculator.model, runner_name="V2", device=speculator.device)
    hook(
        runner,
        recorder,
        DepthWriter(recorder, speculator.model, speculator.current_draft_step, speculator.max_num_tokens),
    )


def hook(runner: Any, recorder: Recorder, writer: DepthWriter) -> None:
    """The same, for a recorder that is prepared."""
    recorder.read_output = read_output
    speculator = runner.speculator
    hooks = _Hooks(runner, recorder, writer)
    wrap(runner, "execute_model", hooks.execute_model)
    wrap(runner, "sample_tokens", hooks.sample_tokens)
    wrap(speculator, "propose", hooks.propose)
    wrap(speculator.model, "combine_hidden_states", hooks.combine)
    wrap(speculator, "_prefill", hooks.prefill)
    wrap(speculator, "_generate_draft", hooks.generate_draft)
    wrap(speculator, "_run_model", hooks.run_model)


def read_output(output: Any, records: np.ndarray) -> None:
    """Tokens that were sampled and how many count, of vLLM's `AsyncOutput`, which a side stream copies to the host."""
    output.copy_event.synchronize()
    tokens = output.sampled_token_ids
    records["num_sampled"] = output.num_sampled_tokens_np
    records["emitted"][:, : tokens.shape[1]] = tokens


class _Hooks:
    def __init__(self, runner: Any, recorder: Recorder, writer: DepthWriter) -> None:
        self.runner, self.recorder, self.writer = runner, recorder, writer
        self.speculator = speculator = runner.speculator
        self.last_depth = speculator.num_speculative_steps - 1
        device = speculator.device
        self._count = torch.zeros((), dtype=torch.int64, device=device)  # serial of the last step, on the device
        self._is_proposing = False
        self._has_strayed = True  # `_count` is not the transport's: something was drafted outside of a step
        self._aux: Tensor | None = None  # this step's, outside of graphs
        self._kept_aux: Tensor | None = None  # its first tokens at an address that graphs know
        if writer.aux_width is not None:
            most_captured = runner.vllm_config.compilation_config.max_cudagraph_capture_size or 0
            # a FULL graph may be for more tokens than those of all decoding requests: for prompts among them
            num_tokens = max(speculator.max_num_reqs * (speculator.num_speculative_steps + 1), most_captured)
            self._kept_aux = torch.zeros(num_tokens, writer.aux_width, dtype=speculator.dtype, device=device)

    def execute_model(self, original: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dummy_run"):
            self.recorder.guarded(self.recorder.drop_step)
        else:
            self.recorder.guarded(schedule, self.recorder, scheduler_output)
        return original(scheduler_output, *args, **kwargs)

    def propose(self, original: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        self.recorder.guarded(self._before_proposal, input_batch, kwargs.get("dummy_run", False))
        self._is_proposing = True
        try:
            drafts = original(input_batch, *args, **kwargs)
            if self.recorder.is_recording:
                self.recorder.guarded(self._after_proposal, input_batch.num_reqs)
        finally:
            self._is_proposing, self._aux = False, None
        return drafts

    def _before_proposal(self, input_batch: Any, is_dummy: bool) -> None:
        serial = self.recorder.transport.begin()
        if self._has_strayed:
            self._count.fill_(serial - 1)
            self._has_strayed = False
        if self.recorder.is_recording and not is_dummy:
            self.recorder.before_writes(input_batch.req_ids)
            self.recorder.mark(1)

    def _after_proposal(self, num_rows: int) -> None:
        if self._kept_aux is None and self._aux is not None and self.writer.has_norms:
            self.writer.write_fusion(self._aux, self.speculator.last_token_indices[:num_rows])
            self.recorder.transport.keep_columns(num_rows, ("fusion_share", "fusion_energy", "aux_norm"))
        self.recorder.mark(2)

    def combine(self, original: Any, aux: Tensor) -> Tensor:
        self._aux = aux
        if self._kept_aux is not None and self.recorder.is_recording:
            self.recorder.guarded(self._keep_aux, aux)
        return original(aux)

    def _keep_aux(self, aux: Tensor) -> None:
        assert self._kept_aux is not None
        most = len(self._kept_aux)
        if len(aux) > most:  # not one of the batches that graphs are for, or padding
            aux = aux[:most]
        self._kept_aux.narrow(0, 0, len(aux)).copy_(aux)

    def prefill(self, original: Any, num_reqs: int, *args: Any, **kwargs: Any) -> Any:
        self._has_strayed |= not self._is_proposing
        self.recorder.guarded(self._before_prefill, num_reqs)
        try:
            result = original(num_reqs, *args, **kwargs)
        finally:
            self.writer.leave()
        if self.last_depth == 0:
            self.recorder.guarded(self._keep_rows, num_reqs)
        return result

    def _before_prefill(self, num_reqs: int) -> None:
        from probes.vllm.ring_triton import begin_round

        speculator, rows = self.speculator, self.recorder.rows
        last, positions = speculator.last_token_indices, speculator.input_buffers.positions
        self.writer.enter(num_reqs, last, positions)
        begin_round(
            positions,
            last,
            self._count,
            rows.first("start", num_reqs),
            rows.first("serial", num_reqs),
            num_reqs,
            SERIAL_MASK,
        )
        if self._kept_aux is not None:
            self.writer.write_fusion(self._kept_aux if self._aux is None else self._aux, last[:num_reqs])
        self.writer.write_fused(speculator.hidden_states)

    def generate_draft(self, original: Any, num_reqs: int, *args: Any, **kwargs: Any) -> Any:
        self.recorder.guarded(self.writer.enter, num_reqs, None, self.speculator.input_buffers.positions)
        try:
            result = original(num_reqs, *args, **kwargs)
        finally:
            self.writer.leave()
        self.recorder.guarded(self._keep_rows, num_reqs)
        return result

    def _keep_rows(self, num_rows: int) -> None:
        """At the last depth alone, which only the device knows in a graph."""
        from probes.vllm.ring_triton import keep_rows

        rows = self.recorder.rows
        keep_rows(
            rows.words,
            self.recorder.transport.ring,
            self._count,
            self.speculator.current_draft_step,
            self.speculator.draft_tokens,
            num_rows,
            last=self.last_depth,
            first_draft=rows.first_word("draft_token"),
        )

    def run_model(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        feedback = result[1] if isinstance(result, tuple) else result
        if self.writer.is_inside:
            self.recorder.guarded(self.writer.write_feedback, feedback)
        return result

    def sample_tokens(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if self.recorder.is_recording:
            self.recorder.guarded(self.recorder.send_step, result)
        return result
