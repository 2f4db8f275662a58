"""What a client's request costs the engine's thread with the plug-in on: `python -m benchmarks.plugin_requests`.

CPU time of `schedule`, all that runs on that thread when the scheduler has a new request: the decision, the regions at
level `heads`, the upload of both. One row for each kind of request that a client can make large. Needs no vLLM and no GPU;
the device is the CPU, so an upload is a copy here. The least of 20: other work on the machine only adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from driftscope.builtin import resolve_target
from driftscope.vllm_plugin.config import ProductionConfig
from driftscope.vllm_plugin.sampling import Sampler
from driftscope.vllm_plugin.turns import RoleMarkers, learn
from probes.vllm.attach import schedule
from probes.vllm.recorder import Recorder, RecorderConfig
from probes.vllm.rows import RowLayout

NUM_TOKENS = 32_768  # max_prompt_tokens
REPETITIONS = 20


def new_request(
    request_id: str = "chatcmpl-1",
    *,
    label: object = "policy",
    tokens: list[int] | None = None,
    stops: list[int] | None = None,
    more: dict[str, object] | None = None,
) -> SimpleNamespace:
    """A request as vLLM's scheduler hands it to a worker."""
    sampling = SimpleNamespace(
        stop_token_ids=stops or [],
        eos_token_id=2,
        extra_args={"driftscope": label, **(more or {})},
        temperature=0.0,
        max_tokens=16,
    )
    return SimpleNamespace(req_id=request_id, prompt_token_ids=tokens or [5, 6, 7], sampling_params=sampling)


def cases(markers: RoleMarkers) -> dict[str, Callable[[], SimpleNamespace]]:
    """Name -> the request."""
    generator = np.random.default_rng(0)
    special = sorted(markers.special_ids)
    plain = generator.integers(1000, 30_000, NUM_TOKENS).tolist()
    mixed = generator.choice(special, NUM_TOKENS).tolist()
    whole = list(max(markers.markers.values(), key=len))
    turns = (whole * NUM_TOKENS)[:NUM_TOKENS]
    floats = generator.random(1_000_000).tolist()
    return {
        "an ordinary request": new_request,
        "label: a list of 1e6 numbers": lambda: new_request(label=floats),
        "label: an object of 100,000 keys": lambda: new_request(label=dict.fromkeys(map(str, range(100_000)), 1)),
        "label: 10 MB of text": lambda: new_request(label="x" * 10_000_000),
        "label: a number of 4,000 digits": lambda: new_request(label=10**4000),
        "another key of 1 MB": lambda: new_request(more={"x" * 1_000_000: 1}),
        "100,000 other keys": lambda: new_request(more=dict.fromkeys(map(str, range(100_000)), 1)),
        "id: 1 MB": lambda: new_request("chatcmpl-" + "x" * 1_000_000),
        "id: a lone surrogate": lambda: new_request("chatcmpl-\ud800"),
        "1e6 stop token ids": lambda: new_request(stops=list(range(1_000_000))),
        f"prompt: {NUM_TOKENS:,} plain tokens": lambda: new_request(tokens=plain),
        f"prompt: {NUM_TOKENS:,} special tokens": lambda: new_request(tokens=mixed),
        f"prompt: one special token, {NUM_TOKENS:,} times": lambda: new_request(tokens=special[1:2] * NUM_TOKENS),
        f"prompt: {NUM_TOKENS:,} tokens, nothing but role markers": lambda: new_request(tokens=turns),
    }


def milliseconds(make: Callable[[], SimpleNamespace], level: str, regions: Callable[..., Any]) -> tuple[float, bool]:
    """-> (least CPU time of this thread, whether the recorder is still on)."""
    config = ProductionConfig(out=Path("x.drift"), level=level)
    sampler = Sampler(config, regions=regions if level == "heads" else None)
    recorder = Recorder(RecorderConfig(level=level, decide=sampler.decide, write=lambda rounds: None))
    layout = RowLayout(level=level, depth=3, num_aux=3, num_layers=1, num_heads=8)
    recorder.prepare(layout, num_rows=4, max_model_len=NUM_TOKENS + 1000, device=torch.device("cpu"))
    seconds = []
    for _ in range(REPETITIONS):
        new = make()
        output = SimpleNamespace(
            scheduled_new_reqs=[new],
            finished_req_ids=set(),
            preempted_req_ids=None,
            scheduled_spec_decode_tokens={},
            num_scheduled_tokens={new.req_id: 1},
        )
        begin = time.thread_time()
        recorder.guarded(schedule, recorder, output)
        seconds.append(time.thread_time() - begin)
        recorder.guarded(recorder.requests_changed, [], [new.req_id], [])
    recorder.transport.stop()
    return min(seconds) * 1e3, recorder.failure is None


def main() -> None:
    markers, _ = learn(AutoTokenizer.from_pretrained(resolve_target("demo")))
    assert markers is not None
    print(f"{'ms of the engine thread, least of ' + str(REPETITIONS):<58} {'default':>9} {'heads':>9}")
    for name, make in cases(markers).items():
        found = [milliseconds(make, level, markers.regions) for level in ("default", "heads")]
        print(f"{name:<58}", *(f"{ms:9.3f}" + ("" if is_on else " OFF") for ms, is_on in found), flush=True)


if __name__ == "__main__":
    main()
