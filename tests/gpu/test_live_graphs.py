"""The live loop on a CUDA device: captured drafts are those of plain launches, and both are the CPU's in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from probes.chain.live import LiveOptions, LiveRounds, run_live_batch
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.target.model import Target
from probes.target.sampler import Sampler
from probes.target.trace import TargetTrace
from tests.tiny_models import matched_drafter, tiny_target, tiny_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

DEPTH, MAX_NEW_TOKENS = 5, 60
TOKENIZER: PreTrainedTokenizerFast = tiny_tokenizer()
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, 150, length).astype(np.int32) for length in (9, 23, 14, 23, 5)]


def lived(
    device: str,
    *,
    use_graph: bool,
    temperature: float = 0.0,
    method: str = "greedy",
    **flags: object,
) -> list[tuple[TargetTrace, LiveRounds]]:
    model = tiny_target(seed=0)
    spec, tensors = matched_drafter(model, seed=0, **flags)
    model.generation_config.eos_token_id = 17  # some responses end early
    target = Target(model.to(device), TOKENIZER, aux_layer_ids=spec.aux_layer_ids)
    drafter = Eagle3.load(spec, tensors, device=device)
    return run_live_batch(
        drafter,
        target,
        PROMPTS,
        [str(i) for i in range(len(PROMPTS))],
        LiveOptions(
            depth=DEPTH,
            max_new_tokens=MAX_NEW_TOKENS,
            sampler=Sampler(temperature, seed=3, top_k=12 if temperature else 0),
            draft_sample_method=method,
            use_graph=use_graph,
        ),
    )


def assert_same(ours: list[tuple[TargetTrace, LiveRounds]], theirs: list[tuple[TargetTrace, LiveRounds]]) -> None:
    assert sum(len(rounds.starts) for _, rounds in ours) > 20
    for (trace, rounds), (other_trace, other) in zip(ours, theirs, strict=True):
        assert trace.token_ids.tolist() == other_trace.token_ids.tolist()
        assert rounds.starts == other.starts
        assert [d.tolist() for d in rounds.drafts] == [d.tolist() for d in other.drafts]
        assert len(rounds.draft_us) == len(rounds.verify_us) == len(rounds.starts)
        assert all(us > 0 for us in (*rounds.draft_us, *rounds.verify_us))


@pytest.mark.parametrize(
    "flags", [{}, {"norm_output": True, "has_fc_norm": True}, {"num_layers": 2, "sliding_window": 5}]
)
@pytest.mark.parametrize(("temperature", "method"), [(0.0, "greedy"), (0.8, "greedy"), (0.8, "probabilistic")])
def test_a_captured_draft_changes_nothing(flags: dict[str, object], temperature: float, method: str) -> None:
    options = {"temperature": temperature, "method": method, **flags}
    with_graph = lived("cuda", use_graph=True, **options)  # type: ignore[arg-type]
    assert_same(with_graph, lived("cuda", use_graph=False, **options))  # type: ignore[arg-type]


def test_greedy_rounds_are_the_cpus() -> None:
    assert_same(lived("cuda", use_graph=True), lived("cpu", use_graph=True))
