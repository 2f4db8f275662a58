"""The plug-in in a `vllm serve` with two tensor parallel workers: heads of both in one run, one of them failing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

from driftscope.runs import Run, RunStatus, read_run
from driftscope.runs.verify import verify
from tests.recorded_pair import DEPTH, Pair, assert_rounds_are_replays, tiny_pair
from tests.vllm.server import distribution, notes, serve, wait_for

PROMPTS = ("Why is the sky blue?", "Name three rivers.")
MAX_NEW_TOKENS = 16

CRASH_PLUGIN = """
def register():
    from driftscope.vllm_plugin.sampling import Sampler
    from vllm.distributed import get_tensor_model_parallel_rank
    decide = Sampler.decide
    def crashing(self, request):
        if request.label == "crash" and get_tensor_model_parallel_rank() == 1:
            raise RuntimeError("made to fail")
        return decide(self, request)
    Sampler.decide = crashing
"""


@dataclass(frozen=True, kw_only=True)
class Served:
    pair: Pair
    answers: list[list[int]]
    after_crash: list[list[int]]
    run: Run  # once the server has ended


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("served")
    pair = tiny_pair(folder / "pair")
    config = folder / "driftscope.toml"
    config.write_text('out = "prod.drift"\nlevel = "heads"\nrate = 0\nflush_seconds = 0.5\ntext = true\n')
    plugin = distribution(folder / "plugin", "crash", "0", "[vllm.general_plugins]\ncrash = crash:register\n")
    (plugin / "crash.py").write_text(CRASH_PLUGIN)
    path = folder / "prod.drift"
    with serve(
        folder,
        target=pair.target_path,
        drafter=pair.drafter_path,
        depth=DEPTH,
        # by default vLLM kills its workers at once
        options=("--tensor-parallel-size", "2", "--max-model-len", "256", "--shutdown-timeout", "60"),
        VLLM_DRIFTSCOPE_CONFIG=str(config),
        path=str(plugin),
    ) as server:
        answers = [server.ask(prompt, "fine", max_tokens=MAX_NEW_TOKENS) for prompt in PROMPTS]
        wait_for(lambda: path.exists() and "recorded 2 of 2" in notes(read_run(path)))
        after_crash = [server.ask(PROMPTS[0], label, max_tokens=MAX_NEW_TOKENS) for label in ("crash", "later")]
        wait_for(lambda: "recorded 4 of 4" in notes(read_run(path)))
    print((folder / "server.log").read_text()[-3000:])
    return Served(pair=pair, answers=answers, after_crash=after_crash, run=read_run(path))


def test_masses_of_both_workers_are_replays(served: Served) -> None:
    assert verify(served.run.path).is_sound
    responses = assert_rounds_are_replays(served.run, "fine", served.pair, max_new_tokens=MAX_NEW_TOKENS, atol=1e-4)
    assert responses == served.answers


def test_a_worker_whose_recorder_crashes_fails_no_request(served: Served) -> None:
    assert served.after_crash == [served.answers[0]] * 2
    assert "THE RECORDER OF RANK 1 FAILED and is off; requests were answered: RuntimeError: made to fail" in notes(
        served.run
    )
    assert "2 requests have no masses: the heads of another worker did not come" in notes(served.run)
    rows = served.run.query(
        "select system_prompt, count(mass_own) as masses, count(hidden_feedback_norm) as norms from depths "
        "group by system_prompt order by system_prompt"
    ).to_pylist()
    assert [(r["system_prompt"], r["masses"] > 0) for r in rows] == [("crash", False), ("fine", True), ("later", False)]
    assert all(r["norms"] > 0 for r in rows)


def test_a_server_that_ended_in_order_leaves_its_run_and_nothing_else(served: Served) -> None:
    assert served.run.status is RunStatus.complete
    beside = [file.name for file in Path(served.run.path).parent.iterdir() if file.name.startswith(".")]
    assert beside == []
