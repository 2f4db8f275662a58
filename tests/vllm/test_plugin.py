"""The plug-in in a real `vllm serve` on 127.0.0.1 that answers OpenAI clients: one server with it, one without."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

from driftscope.builtin import resolve_drafter, resolve_target
from driftscope.compare import compare
from driftscope.runs import RunStatus, read_run, recover
from driftscope.runs.verify import verify
from driftscope.summary import summarise
from tests.vllm.server import Server, distribution, notes, serve, wait_for

PROMPTS = ("Why is the sky blue?", "Write a haiku about rain.", "Name three rivers of Europe.", "Explain a hash table.")
LABELS = (None, "policy-a", "policy-b")

CRASH_PLUGIN = """
def register():
    from driftscope.vllm_plugin.sampling import Sampler
    decide = Sampler.decide
    def crashing(self, request):
        if request.label == "crash":
            raise RuntimeError("made to fail")
        return decide(self, request)
    Sampler.decide = crashing
"""


def demo() -> dict[str, Any]:
    options = ("--max-model-len", "1024")
    return {"target": resolve_target("demo"), "drafter": resolve_drafter("demo:eagle3.1"), "options": options}


def answers(server: Server) -> dict[tuple[str, str | None], list[int]]:
    return {(prompt, label): server.ask(prompt, label) for prompt in PROMPTS for label in LABELS}


@dataclass(frozen=True, kw_only=True)
class Served:
    answers: dict[tuple[str, str | None], list[int]]
    while_written: dict[str, object]  # read while the server lived
    after_crash: list[list[int]]
    path: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """All that one server with the plug-in is asked; it is killed at the end."""
    folder = tmp_path_factory.mktemp("served")
    config = folder / "driftscope.toml"
    config.write_text(
        'out = "prod.drift"\nlevel = "heads"\nrate = 0\nlabel_rate = 1\nflush_seconds = 0.5\n'
        'labels = ["policy-a", "crash"]\n'
    )
    plugin = distribution(folder / "plugin", "crash", "0", "[vllm.general_plugins]\ncrash = crash:register\n")
    (plugin / "crash.py").write_text(CRASH_PLUGIN)
    path = folder / "prod.drift"
    with serve(folder, VLLM_DRIFTSCOPE_CONFIG=str(config), path=str(plugin), **demo()) as server:
        given = answers(server)
        wait_for(lambda: "recorded 4 of 12" in notes(read_run(path)))
        run = read_run(path)
        while_written = {
            "status": run.status,
            "labels": Counter(run.query("select system_prompt from prompts")["system_prompt"].to_pylist()),
            "summary": summarise(run),
        }
        server.ask(PROMPTS[0], "policy-a")  # a prompt that came before
        wait_for(lambda: "recorded 5 of 13" in notes(read_run(path)))
        crashed = [server.ask(PROMPTS[0], label) for label in ("crash", "policy-a")]
        wait_for(lambda: "THE RECORDER FAILED" in notes(read_run(path)))
        os.killpg(server.process.pid, signal.SIGKILL)
    return Served(answers=given, while_written=while_written, after_crash=crashed, path=path)


def test_the_run_is_read_while_it_is_written(served: Served) -> None:
    assert served.while_written["status"] is RunStatus.running
    assert served.while_written["labels"] == {"policy-a": 4}  # rate 0: no other request, and no other label
    [condition] = served.while_written["summary"].conditions
    assert condition.system_prompt == "policy-a"


def test_tokens_are_those_of_a_server_without_the_plugin(
    served: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serve(tmp_path_factory.mktemp("stock"), **demo()) as server:
        assert answers(server) == served.answers


def test_a_recorder_that_crashes_fails_no_request(served: Served) -> None:
    expected = served.answers[PROMPTS[0], None]
    assert served.after_crash == [expected, expected]
    assert "THE RECORDER FAILED (1 times) and is off; requests were answered: RuntimeError: made to fail" in notes(
        read_run(served.path)
    )


def test_a_killed_servers_run_is_recovered(served: Served) -> None:
    assert read_run(served.path).status is RunStatus.incomplete
    recovery = recover(served.path)
    assert recovery.counts.num_prompts == recovery.counts.num_batches == 5
    assert verify(served.path).is_sound
    ids = sorted(read_run(served.path).query("select prompt_id from prompts")["prompt_id"].to_pylist())
    assert sorted(name.endswith("-2") for name in ids) == [False] * 4 + [True]
    run = read_run(served.path)  # the same prompts given to two servers would be paired
    [cell] = compare([run, run]).cells
    assert cell.num_paired == 5
    assert cell.differences[0].difference == 0


def test_what_is_stored(served: Served) -> None:
    run = read_run(served.path)
    assert not run.info.has_text
    [drafter] = run.info.drafters
    assert drafter.model_extra["engine_settings"]["has_vocab_map"]
    assert not any(f["code"].startswith("engine_") for f in drafter.findings)
    prompts = run.query("select * from prompts order by prompt_id").to_pylist()
    assert all(p["token_ids"] is None and p["messages"] is None for p in prompts)
    lengths = sorted(len(served.answers[prompt, "policy-a"]) for prompt in (*PROMPTS, PROMPTS[0]))
    assert sorted(p["num_response_tokens"] for p in prompts) == lengths
    rounds = run.query(
        "select prompt_id, sum(accepted_drafts + 1) - any_value(num_trimmed_tokens) as n from rounds where on_walk "
        "group by prompt_id"
    ).to_pylist()
    # the first token comes from the prompt, the others from rounds
    assert sorted(r["n"] for r in rounds) == [length - 1 for length in lengths]
    masses = run.query("select mass_system, mass_user, mass_template, mass_unknown from depths").to_pylist()
    assert all(min(m["mass_system"]) > 0 and min(m["mass_user"]) > 0 and max(m["mass_unknown"]) == 0 for m in masses)
