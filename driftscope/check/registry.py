"""Every check by its id, the modules that raise them, and which check stands for what other parts report.

An id is never reused. A new check is a `Check` in a module of `rules/` and the lines there that raise it.
"""

from __future__ import annotations

from functools import cache

from driftscope.check.definition import Check
from driftscope.check.rules import files, layers, norms, positions, prompts, target, vocabulary

PAIR_MODULES = (layers, norms, vocabulary, positions, files, target)
"""Those whose `find` needs a pair alone; `prompts.find` needs a prompt file's coverage too."""

MODULES = (*PAIR_MODULES, prompts)

ENGINE_CHECKS = {
    "layer_ids": layers.ENGINE_LAYERS,
    "num_aux": layers.ENGINE_NUM_AUX,
    "fc_norm": norms.ENGINE_FC_NORM,
    "norm_before_fc": norms.ENGINE_INPUT_NORM,
    "norm_output": norms.ENGINE_FEEDBACK,
    "norm_before_residual": norms.ENGINE_RESIDUAL,
    "d2t": vocabulary.ENGINE_MAP,
    "embeddings": vocabulary.ENGINE_EMBEDDING,
    "lm_head": vocabulary.ENGINE_LM_HEAD,
    "rope": positions.ENGINE_ROPE,
    "max_positions": positions.ENGINE_POSITIONS,
    "sliding_window": positions.ENGINE_WINDOW,
    "qkv_bias": files.ENGINE_BIAS,
    "weights": files.ENGINE_WEIGHTS,
}
"""Setting of the table -> the check raised where an engine reads it otherwise than the checkpoint."""


@cache
def all_checks() -> tuple[Check, ...]:
    """Every check, by id."""
    found = [value for module in MODULES for value in vars(module).values() if isinstance(value, Check)]
    checks = sorted(found, key=lambda check: check.id)
    for key in ("id", "name"):
        values = [getattr(check, key) for check in checks]
        assert len(set(values)) == len(values), f"two checks have one {key}"
    return tuple(checks)


@cache
def check_of_reader_code(code: str) -> Check:
    """The check that a code of the checkpoint reader belongs to; the safety net for codes that have none."""
    return next((check for check in all_checks() if code in check.reader_codes), files.OTHER)
