"""The plug-in in a `vllm serve` on one GPU and on two: torch.compile and CUDA graphs on, requests at the same time.

float32 (vLLM then takes its Triton attention) against `replay`. Each server takes a minute to start.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm.v1", reason="needs vLLM and a GPU", exc_type=ImportError)

from driftscope.runs import RunStatus, read_run
from driftscope.runs.verify import verify
from tests.gpu.test_vllm_recorder import FLAGS
from tests.recorded_pair import DEPTH, assert_rounds_are_replays, tiny_pair
from tests.vllm.server import Server, notes, serve, wait_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "driftscope" not in entry_points(group="vllm.general_plugins").names,
        reason="the plug-in comes with an installed driftscope: pip install -e .",
    ),
]

PROMPTS = (
    "Why is the sky blue?",
    "Name three rivers.",
    "Write a haiku about rain.",
    "Explain a hash table.",
    "Hi",
    "Go on.",
)
MAX_NEW_TOKENS = 48


def answers(server: Server, label: str) -> list[list[int]]:
    with ThreadPoolExecutor(4) as clients:
        return list(clients.map(lambda prompt: server.ask(prompt, label, max_tokens=MAX_NEW_TOKENS), PROMPTS))


@pytest.mark.parametrize("num_gpus", [1, 2])
@pytest.mark.parametrize("kind", FLAGS)
def test_rounds_are_replays_and_tokens_those_without_the_plugin(kind: str, num_gpus: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < num_gpus:
        pytest.skip(f"needs {num_gpus} GPUs")
    pair = tiny_pair(tmp_path / "pair", device="cuda", **FLAGS[kind])
    options = ["--tensor-parallel-size", str(num_gpus), "--max-model-len", "256", "--shutdown-timeout", "60"]
    options += ["--gpu-memory-utilization", "0.05", "--kv-cache-memory-bytes", str(1 << 28)]
    given: dict[str, Any] = {"target": pair.target_path, "drafter": pair.drafter_path, "depth": DEPTH}
    given |= {"is_eager": False, "options": options}
    config = tmp_path / "driftscope.toml"
    config.write_text('out = "prod.drift"\nlevel = "heads"\nrate = 0\nflush_seconds = 0.5\ntext = true\n')
    path = tmp_path / "prod.drift"
    (tmp_path / "recorded").mkdir()
    with serve(tmp_path / "recorded", VLLM_DRIFTSCOPE_CONFIG=str(config), **given) as server:
        found = answers(server, "fine")
        wait_for(lambda: path.exists() and f"recorded {len(PROMPTS)} of {len(PROMPTS)}" in notes(read_run(path)))
    run = read_run(path)
    print(notes(run))
    assert run.status is RunStatus.complete
    assert verify(path).is_sound
    [drafter] = run.info.drafters
    assert drafter.model_extra["engine_settings"]["cuda_graph_mode"] == "FULL_AND_PIECEWISE"
    assert not any(f["code"].startswith("engine_") for f in drafter.findings)
    responses = assert_rounds_are_replays(run, "fine", pair, max_new_tokens=MAX_NEW_TOKENS, atol=2e-3)
    assert sorted(responses) == sorted(found)  # requests at the same time end in any order
    (tmp_path / "stock").mkdir()
    with serve(tmp_path / "stock", **given) as server:
        assert answers(server, "fine") == found
