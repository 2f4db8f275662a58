"""A tiny target and a drafter for it on disk, with nothing wrong; tests put one fault in. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from driftscope.check import CheckReport, check_pair
from tests.checkpoint_writers import Arrays, Tiny, config, save, weights, write_checkpoint

TINY = Tiny(target_layers=12, num_layers=1)
IDS = "eagle_aux_hidden_state_layer_ids"
DEFAULT = [2, 6, 9]  # boundary ids of 12 layers
Settings = dict[str, Any]
Fault = Callable[[Settings, Arrays], object]


def write_target(folder: Path, tiny: Tiny = TINY, **settings: object) -> Path:
    """config.json, and weights with the embedding and lm_head of `weights(tiny, seed=1)`."""
    folder.mkdir(parents=True, exist_ok=True)
    stated = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **tiny.target_config,
        "num_attention_heads": 4,
        "head_dim": 4,
        "max_position_embeddings": 2048,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        **settings,
    }
    (folder / "config.json").write_text(json.dumps(stated))
    save(folder / "model.safetensors", target_tensors(tiny))
    return folder


def target_tensors(tiny: Tiny = TINY) -> Arrays:
    full = Tiny(hidden=tiny.target_hidden, vocab=tiny.vocab, draft_vocab=tiny.vocab)
    arrays = weights(full, seed=1)
    return {"model.embed_tokens.weight": arrays["embed_tokens.weight"], "lm_head.weight": arrays["lm_head.weight"]}


def write_drafter(
    folder: Path, producer: str = "specforge", tiny: Tiny = TINY, fault: Fault | None = None, **flags: object
) -> Path:
    """A drafter that fits the target: its embedding is a copy, its ids are stated where every engine finds them."""
    arrays = weights(tiny)
    if "embed_tokens.weight" in arrays and tiny.hidden == tiny.target_hidden:
        arrays["embed_tokens.weight"] = target_tensors(tiny)["model.embed_tokens.weight"]
    settings = config(producer, tiny, **flags)
    if producer == "specforge":
        settings[IDS] = [i + 1 for i in settings["eagle_config"][IDS]]
    if fault is not None:
        fault(settings, arrays)
    return write_checkpoint(folder, producer, arrays, settings)


def checked(
    root: Path, producer: str = "specforge", tiny: Tiny = TINY, fault: Fault | None = None, **flags: object
) -> CheckReport:
    """The report on a pair with one fault."""
    target = write_target(root / "target", tiny)
    return check_pair(str(target), str(write_drafter(root / "eagle3", producer, tiny, fault, **flags)))


def ids(report: CheckReport, *severities: str) -> set[str]:
    """The ids of the findings, of all severities or of these."""
    return {f.id for f in report.findings if not severities or f.severity.value in severities}


def cell(report: CheckReport, setting: str, engine: str) -> tuple[str | None, bool | None]:
    """(value, agrees) of one engine."""
    row = next(row for row in report.settings if row.setting == setting)
    found = next(c for c in row.engines if c.engine == engine)
    return found.value, found.agrees
