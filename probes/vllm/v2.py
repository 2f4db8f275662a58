"""Hooks into vLLM's V2 model runner (`model_runner.speculator`), a GPU's default, with CUDA graphs and compilation on.

`_prefill` and `_generate_draft` are what the graphs capture, so what is written inside them is captured too; `sample`,
`propose` and `sample_tokens` are outside every graph. Read in 0.26.0 (v1/worker/gpu/model_runner.py,
v1/worker/gpu/spec_decode/autoregressive/speculator.py).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from probes.vllm.attach import prepare, schedule
from probes.vllm.hooks import wrap
from probes.vllm.probe import Probe
from probes.vllm.recorder import Recorder


def attach(runner: Any, recorder: Recorder) -> None:
    """Wraps this runner's methods. Raises what `attach.prepare` raises."""
    speculator = runner.speculator
    prepare(recorder, runner, speculator.model, runner_name="V2", device=speculator.device)
    probe = Probe(recorder, speculator.model, speculator.current_draft_step, max_num_tokens=speculator.max_num_tokens)
    hooks = _Hooks(runner, recorder, probe)
    wrap(runner, "execute_model", hooks.execute_model)
    wrap(runner, "sample", hooks.sample)
    wrap(runner, "sample_tokens", hooks.sample_tokens)
    wrap(speculator, "propose", hooks.propose)
    wrap(speculator.model, "combine_hidden_states", hooks.combine)
    wrap(speculator, "_prefill", hooks.prefill)
    wrap(speculator, "_generate_draft", hooks.generate_draft)
    wrap(speculator, "_run_model", hooks.run_model)


class _Hooks:
    def __init__(self, runner: Any, recorder: Recorder, probe: Probe) -> None:
        self.runner, self.recorder, self.probe = runner, recorder, probe
        self.speculator = runner.speculator
        self._aux: Tensor | None = None

    def execute_model(self, original: Any) -> Any:
        def recorded(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dummy_run"):
                self.recorder.guarded(self.recorder.drop_step)
            else:
                self.recorder.guarded(schedule, self.recorder, scheduler_output)
            return original(scheduler_output, *args, **kwargs)

        return recorded

    def sample(self, original: Any) -> Any:
        def recorded(hidden_states: Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(hidden_states, input_batch, *args, **kwargs)
            if self.recorder.is_recording:
                self.recorder.guarded(self._write_sampled, input_batch, *result)
            return result

        return recorded

    def _write_sampled(self, input_batch: Any, output: Any, num_sampled: Tensor, num_rejected: Tensor) -> None:
        rows, num_rows = self.recorder.rows, input_batch.num_reqs
        self.recorder.before_writes(input_batch.req_ids)
        tokens = output.sampled_token_ids
        rows.first("num_sampled", num_rows).copy_(num_sampled[:num_rows])
        rows.first("emitted", num_rows)[:, : tokens.shape[1]].copy_(tokens[:num_rows])
        self.recorder.mark(1)

    def propose(self, original: Any) -> Any:
        def recorded(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            self.recorder.guarded(self.recorder.transport.before_writes)
            drafts = original(input_batch, *args, **kwargs)
            if self.recorder.is_recording and not kwargs.get("dummy_run"):
                self.recorder.guarded(self._finish, input_batch.num_reqs, drafts)
            self._aux = None
            return drafts

        return recorded

    def combine(self, original: Any) -> Any:
        def recorded(aux: Tensor) -> Tensor:
            self._aux = aux
            return original(aux)

        return recorded

    def _finish(self, num_rows: int, drafts: Tensor) -> None:
        self.recorder.rows.first("draft_token", num_rows)[:, : drafts.shape[1]].copy_(drafts)
        if self._aux is not None:
            self.probe.write_fusion(self._aux, self.speculator.last_token_indices[:num_rows])
        self.recorder.mark(2)

    def prefill(self, original: Any) -> Any:
        def recorded(num_reqs: int, *args: Any, **kwargs: Any) -> Any:
            self.recorder.guarded(self._before_prefill, num_reqs)
            try:
                return original(num_reqs, *args, **kwargs)
            finally:
                self.probe.leave()

        return recorded

    def _before_prefill(self, num_reqs: int) -> None:
        speculator = self.speculator
        self.probe.enter(num_reqs, speculator.last_token_indices, speculator.input_buffers.positions)
        self.probe.write_start()
        self.probe.write_fused(speculator.hidden_states)

    def generate_draft(self, original: Any) -> Any:
        def recorded(num_reqs: int, *args: Any, **kwargs: Any) -> Any:
            self.recorder.guarded(self.probe.enter, num_reqs, None, self.speculator.input_buffers.positions)
            try:
                return original(num_reqs, *args, **kwargs)
            finally:
                self.probe.leave()

        return recorded

    def run_model(self, original: Any) -> Any:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            feedback = result[1] if isinstance(result, tuple) else result
            if self.probe.is_inside:
                self.recorder.guarded(self.probe.write_feedback, feedback)
            return result

        return recorded

    def sample_tokens(self, original: Any) -> Any:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.recorder.guarded(self.recorder.send_step)
            return result

        return recorded
