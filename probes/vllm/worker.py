"""vLLM's own worker with a recorder in its model runner, for engines that driftscope builds: one process or many.

vLLM takes the class by its name (`worker_cls`), so it is there in worker processes that this one starts. What to record
comes in vLLM's `additional_config`, which travels to them too; what was recorded is fetched by `collective_rpc`.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from vllm.platforms import current_platform

from probes.vllm.install import attach
from probes.vllm.recorder import RecorderConfig, Recording
from probes.vllm.requests import NewRequest, RequestRounds, Sampled
from probes.vllm.settings import runner_settings

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker

NAME = "probes.vllm.worker.RecordedWorker"
OPTIONS_KEY = "driftscope"  # in additional_config: the fields of RecorderConfig that are plain values
REGION_KEY = "driftscope_region"  # in a request's extra_args


def decide(request: NewRequest) -> Sampled | None:
    """Records the requests that carry a label, with the regions that came along."""
    region = request.extra_args.get(REGION_KEY)
    if request.label is None:
        return None
    as_bytes = bytes.fromhex(region) if isinstance(region, str) else b""
    return Sampled(label=request.label, region=np.frombuffer(as_bytes, np.uint8) if as_bytes else None)


class RecordedWorker(Worker):  # type: ignore[misc]  # vLLM has no types here
    """Each tensor parallel rank has one; all record."""

    _recording: Recording | None = None  # until the weights are loaded

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self._rounds: list[RequestRounds] = []
        options = self.vllm_config.additional_config[OPTIONS_KEY]
        self._recording = Recording(RecorderConfig(decide=decide, write=self._rounds.append, **options))
        attach(self.model_runner, self._recording)

    # pickled: what lies between vLLM's processes takes plain values

    def driftscope_take(self) -> bytes:
        """-> list[RequestRounds]: what was recorded since the last call; every request's record ends here."""
        assert self._recording is not None
        self._recording.flush()
        taken = self._rounds.copy()
        del self._rounds[: len(taken)]
        return pickle.dumps(taken)

    def driftscope_status(self) -> bytes:
        """-> RecorderStatus"""
        assert self._recording is not None
        return pickle.dumps(self._recording.status())

    def driftscope_settings(self) -> bytes:
        """-> dict: runner_settings"""
        return pickle.dumps(runner_settings(self.model_runner))

    def shutdown(self) -> None:
        if self._recording is not None:
            self._recording.uninstall()
        super().shutdown()
