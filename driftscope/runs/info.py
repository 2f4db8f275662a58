"""`run.json`: what a run is, how it was made, how far it got.

Every field has a default, so that files of older versions load; unknown fields of newer minor versions are kept when
the file is rewritten. Knows nothing of the parts beside it except their counts.
"""

from __future__ import annotations

import dataclasses
import platform
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import driftscope
from driftscope.runs.files import refuse_links_out, write_bytes_atomically
from probes.checkpoint.spec import DrafterSpec
from probes.errors import InputError, RunError
from probes.regular_file import read_regular

SCHEMA_VERSION = 1
RUN_JSON = "run.json"

# What is larger was not written by driftscope: arrays are sized by these, and a list of a million objects takes memory.
MAX_RUN_JSON_BYTES = 8 << 20
MAX_DEPTH = 64
MAX_LAYERS = 64  # of a drafter
MAX_HEADS = 1_024
MAX_AUX_LAYERS = 64
MAX_DRAFTERS = 1_000
MAX_ITEMS = 100_000
Size = Annotated[int, Field(ge=0, le=2**53)]
Microseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


BAD_RUN_JSON_REMEDY = "Restore it from a copy of the run; the parts beside it stay readable with any Parquet reader."


class RunStatus(StrEnum):
    """How far a run got. A `running` run whose writer is dead counts as `incomplete`."""

    running = "running"
    complete = "complete"
    incomplete = "incomplete"  # stopped by a signal or a kill; can be resumed
    failed = "failed"  # stopped by an error; see `error`


class Stored(BaseModel):
    """Base of what run.json holds: unknown fields are kept."""

    model_config = ConfigDict(extra="allow")


class TargetInfo(Stored):
    """The target, as the run found it."""

    name: str = ""  # as asked for: a folder or a Hub id with @revision
    path: str = ""  # the folder that was read
    model_type: str = ""
    num_layers: Size | None = None
    hidden_size: Size | None = None
    vocab_size: Size | None = None
    files_sha256: dict[str, str] = Field(default_factory=dict)  # file name -> sha256


class DrafterInfo(Stored):
    """One drafter: effective settings, each with where it came from."""

    name: str
    path: str = ""
    kind: str = ""  # "eagle3" | "eagle3.1"
    producer: str = ""
    # boundary ids, ascending: the order of fusion_share
    aux_layer_ids: list[Size] = Field(default_factory=list, max_length=MAX_AUX_LAYERS)
    num_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | None = None
    num_heads: Annotated[int, Field(ge=1, le=MAX_HEADS)] | None = None  # the length of every list of heads in depths/
    num_kv_heads: Size | None = None
    draft_vocab_size: Size | None = None
    settings: dict[str, Any] = Field(default_factory=dict)  # every field of DrafterSpec
    origins: dict[str, dict[str, Any]] = Field(default_factory=dict)  # setting -> source, detail, is_certain
    findings: list[dict[str, Any]] = Field(default_factory=list)
    files_sha256: dict[str, str] = Field(default_factory=dict)
    file_findings: list[dict[str, Any]] | None = None  # faults that `driftscope check` found; null: it was not run

    @classmethod
    def from_spec(
        cls, name: str, path: str | Path, spec: DrafterSpec, *, files_sha256: Mapping[str, str] | None = None
    ) -> DrafterInfo:
        """Everything that a `DrafterSpec` says, as JSON values."""
        settings = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
        origins, findings = settings.pop("origins"), settings.pop("findings")
        settings["rope_parameters"] = dict(spec.rope_parameters)
        return cls(
            name=name,
            path=str(path),
            kind=spec.kind,
            producer=spec.producer,
            aux_layer_ids=list(spec.aux_layer_ids),
            num_layers=spec.num_layers,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            draft_vocab_size=spec.draft_vocab_size,
            settings=settings,
            origins={key: dataclasses.asdict(origin) for key, origin in origins.items()},
            findings=[dataclasses.asdict(finding) for finding in findings],
            files_sha256=dict(files_sha256 or {}),
        )


class Provenance(Stored):
    """What is needed to make the run again."""

    driftscope_version: str = ""
    python_version: str = ""
    platform: str = ""
    packages: dict[str, str] = Field(default_factory=dict)  # name -> version
    device: str = ""  # "cpu" | "cuda:0"
    gpu_name: str | None = None
    dtype: str = ""
    attention_backend: str = ""
    cuda_graph_mode: str | None = None
    template_sha256: dict[str, str] = Field(default_factory=dict)  # template name -> sha256
    seed: int | None = None
    argv: list[str] = Field(default_factory=list)

    @classmethod
    def here(cls, **known: Any) -> Provenance:
        """Provenance of a run that this process makes; `known`: what else its maker knows."""
        python = platform.python_version()
        return cls(driftscope_version=driftscope.__version__, python_version=python, argv=list(sys.argv), **known)


class Cost(Stored):
    """What a round costs on the machine that made the run: medians in microseconds (`probes.chain.costs.MeasuredCost`)."""

    drafter: str
    batch_size: Annotated[int, Field(ge=1, le=2**53)]  # requests in a round
    context_tokens: Size  # that each has
    draft_us: Annotated[list[Microseconds], Field(min_length=1, max_length=MAX_DEPTH)]  # of draft step k = 1..K
    verify_us: Annotated[
        list[Microseconds], Field(min_length=1, max_length=MAX_DEPTH)
    ]  # of a verify of K' + 1 tokens, K' = 1..K
    plain_us: Microseconds  # of one step without speculation
    num_repeats: Size


class Counts(Stored):
    """What the parts hold; rewritten at every flush, recomputed by `recover`."""

    num_prompts: Size = 0
    num_batches: Size = 0  # prompt x drafter, those without a round left out
    num_rounds: Size = 0
    num_depth_rows: Size = 0
    num_parts: Size = 0


class RunInfo(Stored):
    """The whole of run.json."""

    schema_version: Size = SCHEMA_VERSION
    status: RunStatus = RunStatus.running
    engine: str = ""  # "replay" | "live" | "vllm" | "import"
    level: str = "default"  # vllm: counts | default | heads
    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)] = 0  # K, the largest of all drafters
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = (
        None  # null: an imported run whose source does not say
    )
    top_k: Annotated[int, Field(ge=-1)] | None = (
        None  # at temperature > 0; 0 = all; null: an import, or a run from before (all)
    )
    top_p: Annotated[float, Field(allow_inf_nan=False)] | None = None
    draft_sample_method: str | None = None  # "greedy" | "probabilistic"
    acceptance_rule: str = ""  # e.g. "greedy", "rejection_sampling"
    sink_slots: Annotated[int, Field(ge=0)] = 1  # S: how many first slots are the sink
    has_text: bool = True  # False: hashes instead of messages and token ids
    plan: dict[str, Any] = Field(default_factory=dict)  # everything that was asked for
    target: TargetInfo = Field(default_factory=TargetInfo)
    drafters: list[DrafterInfo] = Field(default_factory=list, max_length=MAX_DRAFTERS)
    provenance: Provenance = Field(default_factory=Provenance)
    region_definitions: dict[str, str] = Field(default_factory=dict)  # region -> what it covers in this run
    interventions: list[str] = Field(
        default_factory=list, max_length=MAX_ITEMS
    )  # ids that were run on every text, as far as they apply
    reference_target: str | None = None  # what `reference_target` and target_states.parquet compare with
    notes: list[str] = Field(default_factory=list, max_length=MAX_ITEMS)  # what a reader of the numbers must know
    costs: list[Cost] = Field(default_factory=list, max_length=MAX_DRAFTERS)  # empty: not measured
    counts: Counts = Field(default_factory=Counts)
    created_at: str = ""  # ISO 8601, UTC
    updated_at: str = ""
    finished_at: str | None = None
    error: str | None = None  # of a failed run
    replaces: str | None = None  # the name of the run whose place it takes when it is complete (--overwrite)

    def drafter(self, name: str) -> DrafterInfo | None:
        """The drafter of that name; None when run.json does not describe it."""
        return next((drafter for drafter in self.drafters if drafter.name == name), None)


def read_info(run: Path) -> RunInfo:
    """Read `run`/run.json. Raises RunError: run_not_found, not_a_run, link_out, bad_run_json, newer_schema."""
    if not run.exists():
        raise RunError(
            "there is no such run",
            code="run_not_found",
            where=str(run),
            remedy="See which runs there are with `driftscope runs list FOLDER`.",
        )
    refuse_links_out(run)
    file = run / RUN_JSON
    try:
        info = RunInfo.model_validate_json(read_regular(file, max_bytes=MAX_RUN_JSON_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            "not a run: it has no run.json",
            code="not_a_run",
            where=str(run),
            remedy="Give the path of a NAME.drift folder.",
        ) from None
    except InputError as error:
        raise RunError(error.message, code="bad_run_json", where=str(file), remedy=BAD_RUN_JSON_REMEDY) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunError(
            f"run.json cannot be read: {first['msg']}" + (f" at {place}" if place else ""),
            code="bad_run_json",
            where=str(file),
            remedy=BAD_RUN_JSON_REMEDY,
        ) from error
    if info.schema_version > SCHEMA_VERSION:
        raise RunError(
            f"made by a newer driftscope (schema_version {info.schema_version}, this one reads up to {SCHEMA_VERSION})",
            code="newer_schema",
            where=str(file),
            remedy="Update with `pip install -U driftscope`.",
        )
    return info


def write_info(run: Path, info: RunInfo) -> None:
    """Replace `run`/run.json in one step."""
    write_bytes_atomically(run / RUN_JSON, info.model_dump_json(indent=2).encode() + b"\n")
