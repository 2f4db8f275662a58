"""The recorder with two tensor parallel workers, each on a GPU of its own: V2 runner, torch.compile and CUDA graphs on.

float32 against one GPU; bfloat16 against the same two GPUs without a recorder. Run with `-s`. The engines with two workers
are in a process of their own, as in production (in this one, closing them was seen to wait for ever in ZeroMQ's
`Context.term`, vLLM 0.26.0), so the sync debugging of test_vllm_recorder.py does not reach them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm.v1", reason="needs vLLM and two GPUs", exc_type=ImportError)

from tests.gpu.test_vllm_recorder import FLAGS, differences, merged, outcome
from tests.recorded_pair import Pair, tiny_pair

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

NUM_HEADS = 4
TWO: dict[str, Any] = {"tensor_parallel_size": 2, "in_process": False}


@pytest.fixture(scope="module", params=["eagle3", "eagle3.1", "replicated key head"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    flags = FLAGS.get(request.param, {"num_kv_heads": 1})
    return tiny_pair(tmp_path_factory.mktemp("pair"), device="cuda", **flags)


@pytest.mark.parametrize("mode", ["full", "eager"])
def test_float32_is_one_gpus(pair: Pair, mode: str) -> None:
    one = outcome(pair, dtype="float32", mode=mode, level="heads")
    two = outcome(pair, dtype="float32", mode=mode, level="heads", **TWO)
    num_equal = sum(a.token_ids == b.token_ids for a, b in zip(one.texts, two.texts, strict=True))
    worst = merged([differences(a, b) for a, b in zip(one.batches, two.batches, strict=True)])
    print(f"float32 {mode}: {num_equal} of {len(one.texts)} texts are one GPU's; {worst}", flush=True)
    assert num_equal >= len(one.texts) - 1  # sums in another order: a tie may fall the other way
    if num_equal == len(one.texts):
        assert two.counters == one.counters
    assert all(b.mass["own"].shape[-1] == NUM_HEADS for b in two.batches)
    assert worst["rounds"] > 50
    for name, value in worst.items():
        if name != "rounds":
            assert value < 1e-3, f"{name}: {value}"
    if mode == "eager":  # what each GPU has a part of
        for ours, theirs in zip(one.batches, two.batches, strict=True):
            if np.array_equal(ours.draft_token, theirs.draft_token):
                np.testing.assert_allclose(theirs.input_share_embed, ours.input_share_embed, atol=1e-3)


def test_bfloat16_tokens_are_the_same_without_the_recorder(pair: Pair) -> None:
    without, heads, default = (
        outcome(pair, dtype="bfloat16", mode="full", level=level, **TWO) for level in (None, "heads", "default")
    )
    for name, found in (("heads", heads), ("default", default)):
        assert [t.token_ids for t in found.texts] == [t.token_ids for t in without.texts], name
        assert found.counters == without.counters, name
    for by_head, mean in zip(heads.batches, default.batches, strict=True):
        np.testing.assert_array_equal(mean.draft_token, by_head.draft_token)
        for region in ("own", "current", "sink", "response"):
            expected = by_head.mass[region].mean(axis=-1, keepdims=True)
            np.testing.assert_allclose(mean.mass[region], expected, atol=1e-4, err_msg=region)
