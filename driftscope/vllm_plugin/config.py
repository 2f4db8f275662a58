"""The plug-in's TOML file. Imports no torch and no vLLM, so that a file can be checked anywhere."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from driftscope.runs.files import RUN_SUFFIX
from probes.errors import InputError

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class ProductionConfig(BaseModel):
    """What VLLM_DRIFTSCOPE_CONFIG names. Every key but `out` may be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: Path = Field(description="the run's folder, ends in .drift; NAME-2.drift when NAME.drift is there already")
    level: Literal["counts", "default", "heads"] = Field("default", description="as of `probe --level`")
    rate: Share = Field(0.01, description="share of the requests without a label that are recorded")
    label_rate: Share = Field(1.0, description="share of the requests with a label that are recorded")
    labels: list[str] | None = Field(
        None, description="labels that are recorded as such; others count as unlabelled. Left out: every label"
    )
    max_labels: Annotated[int, Field(ge=1)] = Field(100, description="later labels are all recorded as `other`")
    max_mb: Positive = Field(500, description="recording stops once the run takes this many MB of disk")
    max_hours: Positive = Field(24, description="recording stops this many hours after the server's start")
    max_prompt_tokens: Annotated[int, Field(ge=1)] = Field(32768, description="longer prompts are not recorded")
    flush_seconds: Positive = Field(10, description="how often what was recorded is put on disk")
    text: bool = Field(False, description="store token ids; without: hashes only")
    sink_slots: Annotated[int, Field(ge=1)] = Field(1, description="how many first slots count as the sink")

    @field_validator("out")
    @classmethod
    def _is_run_name(cls, out: Path) -> Path:
        if out.suffix != RUN_SUFFIX:
            raise ValueError(f"a run's name ends in {RUN_SUFFIX}, this is {out.name!r}")
        return out


def read_config(path: Path) -> ProductionConfig:
    """A relative `out` is relative to the file. Raises InputError naming the file, the key and what to do."""
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the plug-in's configuration cannot be read: {error}",
            code="bad_plugin_config",
            where=str(path),
            remedy="let VLLM_DRIFTSCOPE_CONFIG name a TOML file that the server's user can read",
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"not TOML: {error}",
            code="bad_plugin_config",
            where=str(path),
            remedy="docs/production.md has an example",
        ) from error
    try:
        config = ProductionConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        known = ", ".join(ProductionConfig.model_fields)
        raise InputError(
            f"{key}: {first['msg']}",
            code="bad_plugin_config",
            where=str(path),
            remedy=f"known keys: {known} (docs/production.md)",
        ) from error
    return config.model_copy(update={"out": (path.parent / config.out).absolute()})
