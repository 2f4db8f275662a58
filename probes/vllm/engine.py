"""A vLLM engine in this process, with the recorder inside: built from options, asked for texts, taken down again."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from probes.errors import InputError
from probes.vllm.hooks import vllm_version
from probes.vllm.recorder import RecorderConfig, Recording, install
from probes.vllm.requests import NewRequest, RequestRounds, Sampled

REGION_KEY = "driftscope_region"


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
    def __init__(self, llm: Any, recording: Recording | None, records: dict[str, RequestRounds]) -> None:
        self.llm, self.recording, self._records = llm, recording, records

    def generate(self, requests: Sequence[TextRequest], *, max_tokens: int, temperature: float = 0.0) -> list[Text]:
        """All of them at once; one text for each, in order. The recorder is flushed."""
        from vllm import SamplingParams

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
        if self.recording is not None:
            self.recording.flush()
        texts = []
        for request, output in zip(requests, outputs, strict=True):
            completion = output.outputs[0]
            metrics = getattr(completion, "spec_decode_metrics", None)
            texts.append(
                Text(
                    token_ids=list(completion.token_ids),
                    finish_reason=str(completion.finish_reason),
                    rounds=self._records.pop(request.key, None),
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


def decide(request: NewRequest) -> Sampled | None:
    """Records what `Engine.generate` asked for, with the regions that came along."""
    region = request.extra_args.get(REGION_KEY)
    if request.label is None:
        return None
    as_bytes = bytes.fromhex(region) if isinstance(region, str) else b""
    return Sampled(label=request.label, region=np.frombuffer(as_bytes, np.uint8) if as_bytes else None)


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
) -> Iterator[Engine]:
    """An engine with this drafter, or without speculation. `options` are vLLM's own engine arguments and win; `level`
    None: no recorder.

    Raises InputError where vLLM refuses the options or the models.
    """
    version = vllm_version()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process: its worker can be read
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB, on a CPU
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.platforms import current_platform

    given = dict(options or {})
    if current_platform.is_cpu():
        given = {"enforce_eager": True} | given  # compilation there needs a C++ compiler
    speculative = {"method": "eagle3", "model": drafter, "num_speculative_tokens": depth}
    arguments: dict[str, Any] = {
        "model": target,
        "dtype": dtype,
        "seed": seed,  # of the engine: the CPU's sampler takes none by request beside drafts
        "disable_log_stats": False,
        "trust_remote_code": trust_remote_code,
        **({} if max_num_seqs is None else {"max_num_seqs": max_num_seqs}),
        **({"per_request_spec_decode_metrics": "detailed"} if drafter and version >= "0.32" else {}),
        **given,
    }
    more = arguments.pop("speculative_config", None)
    if drafter is not None:
        arguments["speculative_config"] = speculative | dict(more or {})
    records: dict[str, RequestRounds] = {}

    def write(rounds: RequestRounds) -> None:
        records[rounds.sampled.label or ""] = rounds

    recording = None
    if level is not None:
        recording = install(RecorderConfig(level=level, num_sink_slots=num_sink_slots, decide=decide, write=write))
    llm = None
    try:
        try:
            llm = LLM(**arguments)
        except (ValueError, TypeError, RuntimeError, OSError) as error:  # vLLM's refusals have no common class
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise InputError(
                f"vLLM {version} does not start: {' '.join(lines[:3])[:400] or repr(error)}",
                code="vllm_refuses",
                where=drafter or target,
                remedy="change the [vllm] options, or see what `driftscope check` says of this pair",
            ) from error
        failure = None if recording is None else recording.status().failure
        if failure is not None:
            raise InputError(
                f"this engine cannot be recorded: {failure}",
                code="not_recordable",
                where=drafter or target,
                remedy="docs/vllm.md says what is supported; --engine live does without vLLM",
            )
        yield Engine(llm, recording, records)
    finally:
        if recording is not None:
            recording.uninstall()
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
