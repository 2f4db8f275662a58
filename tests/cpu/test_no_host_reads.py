"""Between the depths of a block of chains the host reads no value of the device: on fake tensors, which have none.

An `.item()`, a `.tolist()`, an `if` on a tensor, or an index by a boolean mask raises there. `tests/gpu/test_replay.py`
asks the CUDA runtime itself, which also sees copies to the device that wait.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from probes.chain.replay import draft_chains
from probes.chain.rounds import measure_rounds
from probes.chain.step import SlotCache
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.target.trace import Choices, TargetTrace
from tests.tiny_models import random_tensors, tiny_spec

FIRST, LAST, DEPTH, NUM_TOKENS = 9, 20, 4, 30


def block(mode: FakeTensorMode, *, is_forced: bool, **flags: object) -> dict[str, torch.Tensor]:
    spec = tiny_spec(**flags)
    drafter = Eagle3.load(spec, random_tensors(spec, 0))
    for module in drafter.modules():
        for kept in (module._parameters, module._buffers):
            for name, value in kept.items():
                if value is not None:
                    kept[name] = mode.from_tensor(value)
    with mode, torch.no_grad():
        trace = TargetTrace(
            token_ids=torch.zeros(NUM_TOKENS, dtype=torch.int64),
            num_prompt_tokens=FIRST + 1,
            num_response_tokens=NUM_TOKENS - FIRST - 1,
            finish_reason="forced",
            aux={i: torch.zeros(NUM_TOKENS, spec.target_hidden_size) for i in spec.aux_layer_ids},
            logits=torch.zeros(NUM_TOKENS - FIRST - 1, spec.vocab_size),
            is_forced=is_forced,
        )
        positions = torch.zeros(len(trace.logits))
        trace.__dict__["choices"] = Choices(positions.long(), positions, positions)  # computed before, once a text
        shape = (NUM_TOKENS - 1, spec.num_kv_heads, spec.head_dim)
        slots = tuple(torch.zeros(shape) for _ in range(spec.num_layers))
        regions = torch.zeros(NUM_TOKENS - 1, dtype=torch.uint8)
        drafts, fresh = draft_chains(drafter, trace, SlotCache(slots, slots), regions, (FIRST, LAST), DEPTH)
        return measure_rounds(drafter, trace, torch.arange(FIRST, LAST + 1), (FIRST, LAST), drafts, fresh)


@pytest.mark.parametrize("is_forced", [True, False])
@pytest.mark.parametrize(
    "flags", [{}, {"num_layers": 2, "sliding_window": 3, "has_fc_norm": True, "norm_output": True}]
)
def test_a_block_of_chains_reads_no_value(flags: dict[str, object], is_forced: bool) -> None:
    columns = block(FakeTensorMode(), is_forced=is_forced, **flags)
    assert columns["draft_token"].shape == (LAST - FIRST + 1, DEPTH)
    assert columns["mass/sink"].shape == (LAST - FIRST + 1, DEPTH, flags.get("num_layers", 1), 6)


def test_what_the_test_above_would_catch() -> None:
    with FakeTensorMode():
        value = torch.zeros(3)
        with pytest.raises(DataDependentOutputException):
            value.sum().item()
        with pytest.raises(DynamicOutputShapeException):
            value[value > 0]
