"""A target's folder or Hub id: its config and tokenizer without its weights, and why it cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from probes.checkpoint.files import name_and_revision
from probes.errors import CheckpointError


def target_config(path: str | Path, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """The target's text config as a dict, without loading weights."""
    name, options = source_of(path, trust_remote_code)
    try:
        return dict(AutoConfig.from_pretrained(name, **options).get_text_config().to_dict())
    except Exception as error:  # as in Target.load
        raise not_loadable(path, error) from error


def target_tokenizer(path: str | Path, *, trust_remote_code: bool = False) -> Any:
    """The target's tokenizer, without loading weights."""
    name, options = source_of(path, trust_remote_code)
    try:
        return AutoTokenizer.from_pretrained(name, **options)
    except Exception as error:  # as in Target.load
        raise not_loadable(path, error) from error


def source_of(path: str | Path, trust_remote_code: bool) -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` is given. Raises CheckpointError for a path that is not there."""
    name, revision = name_and_revision(str(path))
    return name, {"trust_remote_code": trust_remote_code, **({"revision": revision} if revision else {})}


def not_loadable(path: str | Path, error: Exception) -> CheckpointError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "trust_remote_code" in str(error):
        return CheckpointError(
            "this target brings its own Python code, which is not run",
            code="remote_code",
            where=str(path),
            remedy="If you trust it, add --trust-remote-code.",
        )
    return CheckpointError(
        f"transformers cannot load this target: {' '.join(lines[:2])[:300] or repr(error)}",
        code="target_not_loadable",
        where=str(path),
        remedy="give a folder with config.json, safetensors weights and a tokenizer, or a Hub id",
    )
