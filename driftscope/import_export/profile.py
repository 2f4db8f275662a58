"""Model-Optimizer's `speculation_profile.json`, schema 1.0: acceptance by depth, to travel with a checkpoint.

Keys and formulas are those of specdec_bench's speculation_profile.py: rates are over all rounds (a round with fewer
drafts counts as one that accepted no more), so that 1 + their sum is the mean; lengths include the bonus token. Not
verified against a consumer: the inner keys of draft_checkpoint, target_model and per_category, which the schema leaves
open. Names of checkpoints are cut to their last two parts: a profile is published, paths are not.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np

import driftscope
from driftscope.import_export.condition import Walk, categories
from driftscope.runs import RunInfo

SCHEMA_VERSION = "1.0"
MEAN_TOLERANCE = 0.02
DIGITS = 6


def speculation_profile(walk: Walk, info: RunInfo) -> dict[str, Any]:
    """The profile of one condition, as JSON values."""
    num_rounds = int(walk.num_rounds.sum())
    marginal = [count / num_rounds for count in walk.accepted_at()]
    conditional = [later / earlier if earlier else 0.0 for earlier, later in pairwise([1.0, *marginal])]
    mean = walk.tokens_per_round()
    drafter = info.drafter(walk.drafter)
    is_eagle = drafter is not None and drafter.kind.startswith("eagle")
    lengths = np.bincount(walk.accepted_drafts + 1, walk.num_rounds).astype(int)
    implied = 1.0 + sum(marginal)
    return {
        "schema_version": SCHEMA_VERSION,
        "measured": True,
        "method": "eagle3" if is_eagle else None,
        "draft_checkpoint": {
            "id": _checkpoint_id(drafter.path or drafter.name) if drafter is not None else walk.drafter,
            "kind": drafter.kind or None if drafter is not None else None,
        },
        "target_model": {"id": _checkpoint_id(info.target.name) if info.target.name else None},
        "num_speculative_tokens": walk.depth,
        "block_size": None,
        "max_supported_k": walk.depth,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [round(rate, DIGITS) for rate in conditional],
        "marginal_accept_rates": [round(rate, DIGITS) for rate in marginal],
        "mean_accept_length": round(mean, DIGITS),
        "mean_accept_length_per_request": round(walk.tokens_per_round_prompt_mean(), DIGITS),
        "accept_length_model": "chain_analytic" if is_eagle else "measured_per_k",
        "accept_length_by_k": {str(walk.depth): round(mean, DIGITS)},
        "acceptance_length_histogram": {str(length): int(n) for length, n in enumerate(lengths) if n},
        "per_category": _per_category(walk) or None,
        "measurement_conditions": {
            "tool": f"driftscope {driftscope.__version__}",
            "engine": info.engine,
            "system_prompt": walk.system_prompt,
            "template": walk.template,
            "context_tokens": walk.context_tokens,
            "temperature": _temperature(info),
            "acceptance_rule": info.acceptance_rule,
            "num_requests": len(set(walk.prompt.tolist())),
            "num_steps": num_rounds,
            "num_degenerate_left_out": walk.num_degenerate,
        },
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": round(implied, DIGITS),
                "reported_mean_accept_length": round(mean, DIGITS),
                "abs_delta": round(abs(implied - mean), DIGITS),
                "tolerance": MEAN_TOLERANCE,
                "passed": abs(implied - mean) <= MEAN_TOLERANCE,
            },
            "marginal_monotonicity": _monotonicity(marginal),
        },
    }


def _temperature(info: RunInfo) -> float | None:
    """None where an imported run does not know it."""
    imported = info.plan.get("import")
    return imported.get("temperature") if isinstance(imported, dict) else info.temperature


def _per_category(walk: Walk) -> dict[str, dict[str, float | int]]:
    result: dict[str, dict[str, float | int]] = {}
    for name in categories(walk):
        groups = walk.category == name
        result[name] = {
            "mean_accept_length": round(walk.tokens_per_round(groups), DIGITS),
            "mean_accept_length_per_request": round(walk.tokens_per_round_prompt_mean(groups), DIGITS),
            "num_steps": int(walk.num_rounds[groups].sum()),
        }
    return result


def _monotonicity(marginal: list[float]) -> dict[str, Any]:
    violations = [
        {"position": i, "value": later, "previous": earlier}
        for i, (earlier, later) in enumerate(pairwise(marginal), start=1)
        if later > earlier + 1e-9
    ]
    return {"passed": not violations, "violations": violations}


def _checkpoint_id(name: str) -> str:
    return "/".join([part for part in PurePosixPath(name.replace("\\", "/")).parts if part != "/"][-2:])
