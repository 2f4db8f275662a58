"""Where the recorder takes hold of vLLM: after a model runner loaded its weights, before it compiles, captures or measures.

    recording = install(RecorderConfig(level="default", decide=..., write=...))
    llm = vllm.LLM(...)                      # or this is a worker process of `vllm serve`
    ...
    recording.flush()                        # requests that are still open are given to `write` too
    recording.status()                       # counts, failures, what could not be measured and why

The two runners differ in `v1` and `v2`.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from probes.vllm import v1, v2
from probes.vllm.attach import refuse_unsupported
from probes.vllm.recorder import Recorder, RecorderConfig, Recording
from probes.vllm.versions import vllm_version

V2_MODULE = "vllm.v1.worker.gpu.model_runner"


def install(config: RecorderConfig) -> Recording:
    """Every engine that this process builds from now on is recorded, until `Recording.uninstall`.

    Raises InputError where vLLM is not installed or of a version whose hooks were never read.
    """
    vllm_version()
    from vllm.platforms import current_platform

    recording = Recording(config)
    if current_platform.is_cpu():
        places = [("vllm.v1.worker.cpu_model_runner", "CPUModelRunner")]
    else:
        places = [("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"), (V2_MODULE, "GPUModelRunner")]
    for module, name in places:
        _wrap_load_model(getattr(importlib.import_module(module), name), recording)
    return recording


def _wrap_load_model(runner_class: Any, recording: Recording) -> None:
    load_model = runner_class.load_model

    @functools.wraps(load_model)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = load_model(self, *args, **kwargs)
        if recording.is_installed:
            attach(self, recording)
        return result

    runner_class.load_model = recorded


def attach(runner: Any, recording: Recording) -> None:
    """Gives a model runner that has its weights a recorder; why that failed is in the recording's status."""
    recorder = Recorder(recording.config)
    recording.recorders.append(recorder)
    recorder.guarded(_hook, runner, recorder)
    if recording.config.on_loaded is not None:
        recording.config.on_loaded(runner, recorder)


def _hook(runner: Any, recorder: Recorder) -> None:
    refuse_unsupported(runner.vllm_config)
    is_v2 = any(base.__module__ == V2_MODULE for base in type(runner).__mro__)
    (v2 if is_v2 else v1).attach(runner, recorder)
