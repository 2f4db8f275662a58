"""A vLLM engine with a recorder in each of its workers: built from options, asked for texts, taken down.

The engine is in a process of its own, as `vllm serve` has it: what is done for the answers does not stop it, and its GPU
memory is free when it ends (in this process it is not: vllm-project/vllm#21073). `in_process=True` is for tests that reach
into it. One worker is in the engine's process, tensor parallel workers are processes of their own.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from packaging.version import Version

from probes.checkpoint.files import name_and_revision
from probes.errors import InputError
from probes.vllm.attach import NOT_RECORDED
from probes.vllm.ranks import joined, overall
from probes.vllm.recorder import RecorderStatus
from probes.vllm.requests import RequestRounds
from probes.vllm.versions import vllm_version

METRICS_SINCE = Version("0.32")  # vLLM's own metrics of each request


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    key: str  # unique
    token_ids: Sequence[int]
    region: np.ndarray  # uint8 [token]


@dataclass(frozen=True, kw_only=True)
class Text:
    """What the engine answered, and what the recorder saw of it (None when it recorded nothing)."""

    token_ids: list[int]  # the response
    finish_reason: str
    rounds: RequestRounds | None
    per_step_accepted: list[int] | None  # vLLM's own per-request metrics, where the version has them


@dataclass(frozen=True, kw_only=True)
class Counters:
    """vLLM's own counters since the engine started; accepted drafts before it trims at a stop."""

    num_drafts: int  # rounds
    num_accepted: int
    accepted_by_depth: list[int]

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            num_drafts=self.num_drafts - other.num_drafts,
            num_accepted=self.num_accepted - other.num_accepted,
            accepted_by_depth=[a - b for a, b in zip(self.accepted_by_depth, other.accepted_by_depth, strict=True)],
        )


class Engine:
    def __init__(self, llm: Any, *, is_recorded: bool) -> None:
        self.llm, self.is_recorded = llm, is_recorded

    def status(self) -> RecorderStatus | None:
        """The recorders' status, all workers together; None where nothing records."""
        return overall(self._asked("driftscope_status")) if self.is_recorded else None

    def settings(self) -> dict[str, object]:
        """What a recorded engine really uses, of the worker of rank 0: settings.runner_settings."""
        return self._asked("driftscope_settings")[0]

    def take(self) -> dict[str, RequestRounds]:
        """Label -> what was recorded since the last call, with the heads of all workers."""
        if not self.is_recorded:
            return {}
        first, *others = self._asked("driftscope_take")
        rows_of = [{rounds.request.request_id: rounds.rows for rounds in taken} for taken in others]
        return {
            rounds.sampled.label or "": joined(rounds, [rows.get(rounds.request.request_id) for rows in rows_of])
            for rounds in first
        }

    def _asked(self, method: str) -> list[Any]:
        """What each worker answers, in rank order (RecordedWorker)."""
        return [pickle.loads(answer) for answer in self.llm.collective_rpc(method)]

    def generate(self, requests: Sequence[TextRequest], *, max_tokens: int, temperature: float = 0.0) -> list[Text]:
        """All of them at once; one text for each, in order."""
        from vllm import SamplingParams

        from probes.vllm.worker import REGION_KEY

        parameters = [
            SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                detokenize=False,
                extra_args={"driftscope": r.key, REGION_KEY: r.region.tobytes().hex()},
            )
            for r in requests
        ]
        prompts = [{"prompt_token_ids": list(r.token_ids)} for r in requests]
        outputs = self.llm.generate(prompts, parameters, use_tqdm=False)
        recorded = self.take()
        texts = []
        for request, output in zip(requests, outputs, strict=True):
            completion = output.outputs[0]
            metrics = getattr(completion, "spec_decode_metrics", None)
            texts.append(
                Text(
                    token_ids=list(completion.token_ids),
                    finish_reason=str(completion.finish_reason),
                    rounds=recorded.get(request.key),
                    per_step_accepted=None if metrics is None else list(metrics.per_step_accepted),
                )
            )
        return texts

    def counters(self) -> Counters:
        """What vLLM counted so far."""
        values = {metric.name: metric for metric in self.llm.get_metrics()}

        def value(name: str) -> int:
            return int(getattr(values.get(f"vllm:spec_decode_{name}"), "value", 0))

        by_depth = getattr(values.get("vllm:spec_decode_num_accepted_tokens_per_pos"), "values", [])
        return Counters(
            num_drafts=value("num_drafts"),
            num_accepted=value("num_accepted_tokens"),
            accepted_by_depth=[int(v) for v in by_depth],
        )


@contextmanager
def engine(
    target: str,
    drafter: str | None,
    *,
    depth: int,
    dtype: str,
    level: str | None = "default",
    num_sink_slots: int = 1,
    max_num_seqs: int | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    options: Mapping[str, Any] | None = None,
    in_process: bool = False,
) -> Iterator[Engine]:
    """An engine with this drafter, or without speculation. `options` are vLLM's own engine arguments and win; `level`
    None: no recorder.

    Raises InputError where vLLM refuses the options or the models.
    """
    version = vllm_version()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if in_process else "1"
    if not in_process:
        os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")  # threads do not survive a fork
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB, on a CPU
    from vllm.platforms import current_platform

    given = dict(options or {})
    if current_platform.is_cpu():
        given = {"enforce_eager": True} | given  # compilation there needs a C++ compiler
    arguments: dict[str, Any] = {
        **_model(target),
        "dtype": dtype,
        "seed": seed,  # of the engine: the CPU's sampler takes none by request beside drafts
        "disable_log_stats": False,
        "trust_remote_code": trust_remote_code,
        **({} if max_num_seqs is None else {"max_num_seqs": max_num_seqs}),
        **({"per_request_spec_decode_metrics": "detailed"} if drafter and Version(version) >= METRICS_SINCE else {}),
        **given,
    }
    more = arguments.pop("speculative_config", None)
    if drafter is not None:
        speculative = {"method": "eagle3", **_model(drafter), "num_speculative_tokens": depth}
        arguments["speculative_config"] = speculative | dict(more or {})
    if level is not None:
        arguments |= _recorded(arguments, {"level": level, "num_sink_slots": num_sink_slots})
    with _redirected(1, 2):  # vLLM, its workers and their libraries print to stdout, which belongs to `--json`
        yield from _started(arguments, version, drafter or target, is_recorded=level is not None)


def _started(arguments: dict[str, Any], version: str, where: str, *, is_recorded: bool) -> Iterator[Engine]:
    """An engine while it lives."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = running = None
    try:
        try:
            with _logged_stderr() as log:
                llm = LLM(**arguments)
        except Exception as error:  # vLLM's refusals have no common class, a worker's failure comes as a bare Exception
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            said = " ".join(lines[:3])[:400] or repr(error)
            raise InputError(
                f"vLLM {version} does not start: {log.first_error() if ROOT_CAUSE in said else said}",
                code="vllm_refuses",
                where=where,
                remedy="change the [vllm] options, or see what `driftscope check` says of this pair",
            ) from error
        running = Engine(llm, is_recorded=is_recorded)
        status = running.status()
        if status is not None and status.failure is not None:
            raise InputError(
                f"this engine cannot be recorded: {status.failure}",
                code="not_recordable",
                where=where,
                remedy="docs/vllm.md says what is supported; --engine live does without vLLM",
            )
        yield running
    finally:
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
        if running is not None:
            running.llm = None  # who still holds it must not hold the device's memory: another engine may come
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def _model(path: str) -> dict[str, str]:
    """As vLLM takes it: a folder, or a Hub id and its revision. Raises CheckpointError for a path that is not there."""
    name, revision = name_and_revision(path)
    return {"model": name, **({"revision": revision} if revision else {})}


ROOT_CAUSE = "root cause"
"""In what vLLM raises when a process of its own ended: why stands in its log alone."""


class _Log:
    """What processes write into a pipe: all of it goes on to a file, the last of it is kept."""

    KEPT = 1 << 16  # bytes

    def __init__(self, source: int, target: int) -> None:
        self._kept = b""
        self._thread = threading.Thread(target=self._forward, args=(source, target), daemon=True)
        self._thread.start()

    def _forward(self, source: int, target: int) -> None:
        while part := os.read(source, 1 << 16):  # until the last process that has it ends
            self._kept = (self._kept + part)[-self.KEPT :]
            with suppress(OSError):  # nobody reads it any more: the processes must be able to write on
                os.write(target, part)
        os.close(source)
        os.close(target)

    def first_error(self) -> str:
        """The first line that names an exception, once the processes ended; what to look for, where none does."""
        self._thread.join(timeout=5)
        found = re.search(r"\b\w*(?:Error|Exception): .+", self._kept.decode(errors="replace"))
        return found[0].strip()[:400] if found else "a process of its own ended, see its log above"


@contextmanager
def _logged_stderr() -> Iterator[_Log]:
    """What is written to stderr within, and later by processes started within."""
    source, sink = os.pipe()
    log = _Log(source, os.dup(2))
    with _redirected(2, sink):
        os.close(sink)
        yield log


@contextmanager
def _redirected(descriptor: int, target: int) -> Iterator[None]:
    """What is written to stdout (1) or stderr (2) within, by processes started within too, goes to `target`."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.flush()
    kept = os.dup(descriptor)
    os.dup2(target, descriptor)
    try:
        yield
    finally:
        stream.flush()
        os.dup2(kept, descriptor)
        os.close(kept)


def _recorded(arguments: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The engine arguments that put a recorder into every worker."""
    from probes.vllm.worker import NAME, OPTIONS_KEY

    spread = [f"{name} = {arguments[name]}: {why}" for name, why in NOT_RECORDED.items() if arguments.get(name, 1) != 1]
    own = ["a worker_cls of its own: the recorder is in one"] if "worker_cls" in arguments else []
    for reason in spread + own:
        raise InputError(
            f"this engine cannot be recorded: {reason}",
            code="not_recordable",
            where="[vllm]",
            remedy="leave the option out (docs/vllm.md says what is supported), or use --engine live",
        )
    return {"worker_cls": NAME, "additional_config": {**arguments.get("additional_config", {}), OPTIONS_KEY: options}}
