"""Costs of a draft and a verify: one row for each drafter, batch and context, and what does not fit is said."""

from __future__ import annotations

import pytest
import torch

from probes.chain import costs as costs_module
from probes.chain.costs import measure_costs
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.errors import InputError
from probes.target.model import Target
from tests.tiny_models import matched_drafter, tiny_target, tiny_tokenizer

DEPTH = 3


@pytest.fixture(scope="module")
def pair() -> tuple[Target, Drafter]:
    model = tiny_target(seed=0)
    spec, tensors = matched_drafter(model, seed=0, num_layers=2, sliding_window=5)
    return Target(model, tiny_tokenizer(), aux_layer_ids=spec.aux_layer_ids), Eagle3.load(spec, tensors)


def test_every_batch_and_context_has_a_row(pair: tuple[Target, Drafter]) -> None:
    target, drafter = pair
    options = {"depth": DEPTH, "batch_sizes": (4, 1), "context_tokens": (60, 20)}
    found, notes = measure_costs(target, [("a", drafter), ("b", drafter)], num_repeats=3, **options)  # type: ignore[arg-type]
    keys = [(c.drafter, c.batch_size, c.context_tokens) for c in found]
    assert keys == [(d, b, c) for c in (20, 60) for b in (1, 4) for d in "ab"]
    assert notes == []
    for cost in found:
        assert len(cost.draft_us) == len(cost.verify_us) == DEPTH
        assert min(cost.draft_us[0], *cost.verify_us, cost.plain_us) > 0
        assert cost.draft_us[1] == cost.draft_us[2]


def test_a_batch_that_does_not_fit_ends_its_context(
    pair: tuple[Target, Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, drafter = pair
    measure = costs_module._at

    def full(*args: object) -> object:
        if args[4] == 8:  # the batch size
            raise torch.OutOfMemoryError("full")
        return measure(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(costs_module, "_at", full)
    found, notes = measure_costs(
        target, [("a", drafter)], depth=DEPTH, batch_sizes=(1, 8, 16), context_tokens=(9,), num_repeats=1
    )
    assert [c.batch_size for c in found] == [1]
    assert notes == ["costs: batch 8 does not fit into memory at a context of 9 tokens"]


def test_a_context_beyond_the_targets_positions_is_refused(pair: tuple[Target, Drafter]) -> None:
    with pytest.raises(InputError, match="allows 512"):
        measure_costs(pair[0], [], depth=DEPTH, batch_sizes=(1,), context_tokens=(510,))
