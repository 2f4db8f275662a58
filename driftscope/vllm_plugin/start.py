"""From a configuration file to a recorder inside this process's model runner, if it ever loads one.

In vLLM's front end nothing more happens than that the runners' classes are wrapped; the run is made by the worker of rank 0
once its models are loaded. Other tensor parallel workers record too and hand it their heads.
"""

from __future__ import annotations

import logging
import platform
import time
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftscope.vllm_plugin.config import ProductionConfig, read_config
from probes.errors import DriftscopeError, RunError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from torch import Tensor

    from driftscope.runs.info import RunInfo
    from driftscope.runs.writer import RunWriter
    from driftscope.vllm_plugin.session import Session
    from driftscope.vllm_plugin.workers import SentHeads, TakenHeads
    from probes.checkpoint.spec import DrafterSpec
    from probes.vllm.recorder import Recorder, Recording

    Regions = Callable[[np.ndarray], np.ndarray]  # int [token] -> uint8 [token]

logger = logging.getLogger("driftscope.vllm_plugin")

MAX_RUNS = 10_000  # NAME.drift, NAME-2.drift, ...


def start(path: str) -> None:
    """Raises nothing: what cannot be done is logged once."""
    try:
        _Production(read_config(Path(path).expanduser()))
    except DriftscopeError as error:
        logger.error("driftscope records nothing: %s", error)
    except Exception:  # the server must start all the same
        logger.exception("driftscope records nothing")


class _Production:
    """Holds the recorder and where its requests go: rank 0 writes them, other tensor parallel workers send their heads."""

    def __init__(self, config: ProductionConfig) -> None:
        from driftscope.vllm_plugin.sampling import Sampler
        from probes.vllm.install import install
        from probes.vllm.recorder import RecorderConfig

        self.config, self.sampler = config, Sampler(config)
        self.session: Session | None = None
        self.sent: SentHeads | None = None
        self.recording: Recording = install(
            RecorderConfig(
                level=config.level,
                num_sink_slots=config.sink_slots,
                decide=self.sampler.decide,
                write=self._write,
                on_loaded=self._loaded,
                on_failed=self._failed,
            )
        )

    def _write(self, rounds: Any) -> None:
        if self.session is not None:
            self.session.write(rounds)
        elif self.sent is not None:
            self.sent.write(rounds)

    def _failed(self, failure: str) -> None:
        if self.sent is not None:
            self.sent.fail(failure)

    def _loaded(self, runner: Any, recorder: Recorder) -> None:
        """A model runner has its models: the worker of rank 0 makes the run."""
        try:
            if recorder.is_ready:
                self._begin(runner, recorder)
            else:
                logger.error("driftscope records nothing: %s", recorder.failure)
        except Exception:
            logger.exception("driftscope records nothing")
        if self.session is None and self.sent is None:
            self.sampler.is_open = False

    def _begin(self, runner: Any, recorder: Recorder) -> None:
        from driftscope.vllm_plugin.workers import SentHeads, TakenHeads, heads_folder

        rank, num_ranks = runner.vllm_config.parallel_config.rank, recorder.layout.num_ranks
        folder = heads_folder(self.config.out, runner.vllm_config)
        is_split = num_ranks > 1 and self.config.level != "counts"
        if rank == 0:
            regions, note = self._learn_regions(runner)
            heads = TakenHeads(folder=folder, num_ranks=num_ranks) if is_split else None
            self.session = self._session(runner, regions, note, heads)
            logger.warning("driftscope records into %s", self.session.writer.path)
        elif is_split:
            self._learn_regions(runner)
            self.sent = SentHeads(folder=folder, rank=rank, sampler=self.sampler)
        # runs where a worker process ends in order; a killed one leaves a run that `runs recover` mends
        Finalize(None, self._close, exitpriority=100)

    def _close(self) -> None:
        from driftscope.vllm_plugin.session import CLOSE_SECONDS

        self.sampler.is_open = False
        end = time.monotonic() + CLOSE_SECONDS
        if not self.recording.flush(CLOSE_SECONDS / 2):
            logger.error("driftscope's recorder did not come to an end: the requests that it has in hand are lost")
        if self.session is not None:
            self.session.close(end - time.monotonic())

    def _learn_regions(self, runner: Any) -> tuple[Regions | None, str]:
        """-> (what gives a prompt's regions, a sentence for the run's notes)."""
        from transformers import AutoTokenizer

        from driftscope.vllm_plugin.turns import learn

        config = runner.vllm_config.model_config
        markers, note = learn(
            AutoTokenizer.from_pretrained(
                config.tokenizer, revision=config.tokenizer_revision, trust_remote_code=config.trust_remote_code
            )
        )
        regions = None if markers is None else markers.regions
        if self.config.level == "heads":  # the device puts masses under them from the first draft on
            self.sampler.regions = regions
        return regions, note

    def _session(self, runner: Any, regions: Regions | None, note: str, heads: TakenHeads | None) -> Session:
        from driftscope.vllm_plugin.session import Session
        from probes.checkpoint.read import read_spec
        from probes.checkpoint.tensors import load_tensors
        from probes.target.source import target_config
        from probes.vllm.settings import drafter_model
        from probes.vllm.to_record import vocabulary

        model_config = runner.vllm_config.model_config
        draft_config = runner.vllm_config.speculative_config.draft_model_config
        path, trust = _source(draft_config), model_config.trust_remote_code
        spec = read_spec(path, target_config=target_config(_source(model_config), trust_remote_code=trust))
        d2t = load_tensors(path, spec, names=("d2t",)).get("d2t")
        offsets = getattr(drafter_model(runner), "draft_id_to_target_id", None)
        offsets = None if offsets is None else offsets.detach().cpu().numpy()
        name = Path(draft_config.model).name
        return Session(
            config=self.config,
            sampler=self.sampler,
            writer=_new_run(self.config.out, runner, _run_info(self.config, runner, name, path, spec, d2t, note)),
            drafter=name,
            in_draft_vocab=vocabulary(offsets, vocab_size=spec.vocab_size, draft_vocab_size=spec.draft_vocab_size),
            norm_output=spec.norm_output,
            status=self.recording.status,
            heads=heads,
            regions=regions,
        )


def _source(config: Any) -> str:
    """A folder, or a Hub id with the revision that vLLM (`ModelConfig`) loaded."""
    is_local = config.revision is None or Path(config.model).is_dir()
    return str(config.model) if is_local else f"{config.model}@{config.revision}"


def _new_run(out: Path, runner: Any, info: RunInfo) -> RunWriter:
    """NAME.drift, or the first free NAME-2.drift, NAME-3.drift ...; NAME-dp1.drift for another data-parallel engine."""
    from driftscope.runs.writer import RunWriter

    rank = runner.vllm_config.parallel_config.data_parallel_rank
    stem = out.stem + (f"-dp{rank}" if rank else "")
    for number in range(1, MAX_RUNS):
        path = out.with_name(f"{stem}{'' if number == 1 else f'-{number}'}{out.suffix}")
        try:
            return RunWriter(path, info)
        except RunError as error:  # so two servers that start together get two names
            if error.code not in ("run_exists", "run_is_being_written"):
                raise
    raise RunError("there are too many runs of this name", code="run_exists", where=str(out), remedy="move them away")


def _run_info(
    config: ProductionConfig, runner: Any, name: str, path: str, spec: DrafterSpec, d2t: Tensor | None, note: str
) -> RunInfo:
    from driftscope.measure.describe import HEAD_MEANS, NULLS, add_engine_settings, package_versions
    from driftscope.runs.info import DrafterInfo, Provenance, RunInfo, TargetInfo
    from probes.record import region_definitions
    from probes.vllm.settings import disagreements, runner_settings
    from probes.vllm.versions import vllm_version

    settings = runner_settings(runner)
    text_config = runner.vllm_config.model_config.hf_text_config
    model = runner.vllm_config.model_config.model
    info = RunInfo(
        engine="vllm",
        level=config.level,
        depth=runner.vllm_config.speculative_config.num_speculative_tokens,
        draft_sample_method=settings["draft_sample_method"],
        acceptance_rule=str(settings["rejection_sample_method"]),
        sink_slots=config.sink_slots,
        has_text=config.text,
        plan=config.model_dump(mode="json"),
        target=TargetInfo(
            name=model,
            path=_source(runner.vllm_config.model_config),
            model_type=text_config.model_type,
            num_layers=text_config.num_hidden_layers,
            hidden_size=text_config.hidden_size,
            vocab_size=text_config.vocab_size,
        ),
        drafters=[DrafterInfo.from_spec(name, path, spec)],
        provenance=Provenance.here(
            platform=platform.platform(),
            packages=package_versions(),
            dtype=str(settings["dtype"]),
        ),
        region_definitions=region_definitions(config.sink_slots),
        notes=[note, NULLS, *([HEAD_MEANS] if config.level == "default" else [])],
    )
    findings = list(disagreements(settings, spec, d2t))
    add_engine_settings(info, name, settings, findings, vllm_version())
    return info
