"""The scalars of `show --json` that can be compared pair by pair: each is a ratio of sums over prompts.

Knows no pairing and no intervals. Names are those of `show --json`; one depth of an array is NAME@DEPTH, depth 1 first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from driftscope.compare.sides import Side
from driftscope.quantities import OUT_OF_DRAFT_VOCAB, OVER_DEPTH
from probes.errors import InputError

TOKENS_PER_ROUND = "tokens_per_round"
_ROUND_SETS = ("walk", "dense", "walk_all", "dense_all")
_ARRAYS = {name.replace("mass_", "mass."): name for name, q in OVER_DEPTH.items() if not q.is_relative}
"""As `show --json` has them -> quantity. A mean over another one is no ratio of sums."""
_PLAIN = (OUT_OF_DRAFT_VOCAB.name, "degenerate_share", "text_agreement", "fusion_share.bias")
METRIC_HELP = (
    f"{TOKENS_PER_ROUND} (over the walk); {', '.join(_ROUND_SETS)} followed by .tokens_per_round or "
    f".tokens_per_round_prompt_mean; {', '.join(_PLAIN)}; and with @DEPTH (1..K): "
    f"{', '.join(_ARRAYS)}"
)


class RowSums(NamedTuple):
    """float64 [prompt] each, of one condition; a denominator of 0 means that the prompt says nothing."""

    numerator: np.ndarray
    denominator: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`basis`: the rounds that it is over; "depths" are the condition's `depth_basis`, "prompts" are no rounds."""

    name: str
    basis: str  # walk | dense | depths | prompts
    has_degenerate: bool = False  # prompts whose response is degenerate take part
    sums: Callable[[Side], RowSums]


def metric_of(name: str) -> Metric:
    """Raises InputError `unknown_metric`."""
    array, at, depth = name.partition("@")
    if at and re.fullmatch("[1-9][0-9]{0,3}", depth) and array in _ARRAYS:
        return Metric(name=name, basis="depths", sums=_depth_mean(_ARRAYS[array], int(depth) - 1))
    if not at and name in _PLAIN:
        return _plain(name)
    rounds, _, mean = ("walk", ".", name) if name == TOKENS_PER_ROUND else name.partition(".")
    if not at and rounds in _ROUND_SETS and mean in ("tokens_per_round", "tokens_per_round_prompt_mean"):
        basis = rounds.removesuffix("_all")
        return Metric(
            name=name,
            basis=basis,
            has_degenerate=rounds.endswith("_all"),
            sums=_tokens(basis, is_prompt_mean=mean.endswith("_mean")),
        )
    if array in _ARRAYS:
        problem = f"{array} is an array over depth: say which depth, e.g. {array}@1"
    else:
        problem = f"{name!r} cannot be compared"
    raise InputError(problem, code="unknown_metric", where="metric", remedy=f"Metrics: {METRIC_HELP}.")


def _plain(name: str) -> Metric:
    if name == OUT_OF_DRAFT_VOCAB.name:
        return Metric(name=name, basis="depths", sums=_out_of_draft_vocab)
    if name == "degenerate_share":
        return Metric(name=name, basis="prompts", has_degenerate=True, sums=_degenerate)
    if name == "text_agreement":
        return Metric(name=name, basis="prompts", sums=_text_agreement)
    return Metric(name=name, basis="depths", sums=_fusion_bias)


def _tokens(basis: str, *, is_prompt_mean: bool) -> Callable[[Side], RowSums]:
    def sums(side: Side) -> RowSums:
        tokens, rounds = (getattr(side.sums, f"num_{basis}_{what}")[side.rows] for what in ("tokens", "rounds"))
        if not is_prompt_mean:
            return RowSums(tokens, rounds)
        return RowSums(tokens / np.maximum(rounds, 1), (rounds > 0).astype(np.float64))

    return sums


def _depth_mean(name: str, index: int) -> Callable[[Side], RowSums]:
    def sums(side: Side) -> RowSums:
        mean = side.sums.means[name]
        return _by_depth(side, mean.total, mean.count, index)

    return sums


def _by_depth(side: Side, total: np.ndarray, count: np.ndarray, index: int) -> RowSums:
    """One depth of [batch, depth]; beyond K nothing was measured."""
    if index >= min(side.depth, total.shape[1]):
        return RowSums(np.zeros(len(side.rows)), np.zeros(len(side.rows)))
    return RowSums(total[side.rows, index], np.where(side.in_depth_basis, count[side.rows, index], 0))


def _out_of_draft_vocab(side: Side) -> RowSums:
    """Each emitted token once: dense starts see it at depth 1, the walk where it was compared."""
    depths = 1 if side.depth_basis == "dense" else side.depth
    mean = side.sums.means[OUT_OF_DRAFT_VOCAB.name]
    count = mean.count[side.rows, :depths].sum(axis=1)
    return RowSums(mean.total[side.rows, :depths].sum(axis=1), np.where(side.in_depth_basis, count, 0))


def _fusion_bias(side: Side) -> RowSums:
    bias = side.sums.fusion_share_bias
    return _by_depth(side, bias.total, bias.count, 0)


def _degenerate(side: Side) -> RowSums:
    return RowSums(side.is_degenerate.astype(np.float64), np.ones(len(side.rows)))


def _text_agreement(side: Side) -> RowSums:
    agreement = side.sums.text_agreement[side.rows]
    weight = np.where(np.isnan(agreement), 0, side.sums.num_response_tokens[side.rows])
    return RowSums(np.nan_to_num(agreement) * weight, weight)
