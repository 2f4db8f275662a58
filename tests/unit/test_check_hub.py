"""Hub ids against a server on this machine: configs, headers and a few ranges; the weights are never downloaded.

The client is huggingface_hub itself, in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.check_pairs import TINY, Settings, write_drafter, write_target
from tests.checkpoint_writers import Arrays
from tests.file_server import FileHandler

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WIDE = replace(TINY, inner=6000)  # the drafter's weights are 1.2 MB: many times what is looked at
PROGRAM = """
import json, sys
from driftscope.check import check_pair
from probes.errors import CheckpointError
try:
    report = check_pair(sys.argv[1], sys.argv[2])
    print(json.dumps([sorted(f.id for f in report.findings), report.drafter.producer, list(report.not_checked)]))
except CheckpointError as error:
    print(json.dumps([error.code, error.where, error.remedy]))
assert "torch" not in sys.modules
"""


@dataclass
class Hub:
    """Repositories acme/NAME are the folders of `root`; every request is noted."""

    root: Path
    requests: list[tuple[str, str, str, str | None]] = field(default_factory=list)  # method, repo, file, range
    bytes_of_weights: int = 0
    server: Any = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


class _Handler(FileHandler):
    hub: Hub
    is_weights = False

    def answer(self) -> None:
        match = re.fullmatch(r"/acme/([\w.-]+)/resolve/([^/]+)/([\w./-]+)", self.path)
        assert match is not None, f"nothing but files is asked for: {self.path}"
        repo, _, name = match.groups()
        wanted = self.headers.get("Range")
        self.hub.requests.append((self.command, repo, name, wanted))
        if not (self.hub.root / repo).is_dir():
            return self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        path = self.hub.root / repo / name
        if not path.is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        data = path.read_bytes()
        self.is_weights = name.endswith(".safetensors")
        return self.send_file(data, {"X-Repo-Commit": COMMIT, "ETag": f'"{repo}-{name}"'})

    def on_sent(self, num_bytes: int) -> None:
        if self.is_weights:
            self.hub.bytes_of_weights += num_bytes


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path / "hub")
    write_target(made.root / "target", WIDE)
    write_drafter(made.root / "eagle3", tiny=WIDE)
    made.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": made}))
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def run(hub: Hub, home: Path, target: str = "acme/target", drafter: str = "acme/eagle3", **environment: str) -> Any:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    env |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, target, drafter], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(result.stdout)


def test_a_sound_pair_is_read_by_ranges(hub: Hub, tmp_path: Path) -> None:
    found, producer, not_checked = run(hub, tmp_path / "home")
    assert (found, producer) == ([], "specforge")
    assert any("ranges" in sentence for sentence in not_checked)
    weights = [(repo, wanted) for method, repo, name, wanted in hub.requests if name == "model.safetensors"]
    assert {repo for repo, _ in weights} == {"target", "eagle3"}
    assert all(wanted is not None for _, wanted in weights)
    total = sum((hub.root / repo / "model.safetensors").stat().st_size for repo in ("target", "eagle3"))
    assert hub.bytes_of_weights < total / 2
    assert not list((tmp_path / "home").rglob("*.safetensors"))


def test_faults_are_found_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    def fault(settings: Settings, arrays: Arrays) -> None:
        settings["rope_theta"] = 10000.0
        arrays["d2t"] = np.zeros_like(arrays["d2t"])
        arrays["embed_tokens.weight"] = np.random.default_rng(5).standard_normal((TINY.vocab, 16), dtype=np.float32)
        arrays["norm.weight"][:] = 0

    write_drafter(hub.root / "eagle3", tiny=WIDE, fault=fault)
    (hub.root / "target" / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.7}')
    found, _, _ = run(hub, tmp_path / "home")
    assert found == ["DS302", "DS306", "DS312", "DS313", "DS401", "DS510", "DS605"]


def test_a_local_drafter_and_a_target_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "eagle3", tiny=WIDE)
    assert run(hub, tmp_path / "home", drafter=str(drafter))[0] == []


def test_a_target_repository_without_safetensors(hub: Hub, tmp_path: Path) -> None:
    (hub.root / "target" / "model.safetensors").unlink()
    found, _, not_checked = run(hub, tmp_path / "home")
    assert found == ["DS606"]
    assert any("embedding and lm_head were not compared" in sentence for sentence in not_checked)


@pytest.mark.parametrize(("target", "drafter"), [("acme/none", "acme/eagle3"), ("acme/target", "acme/none")])
def test_a_repository_that_does_not_exist(hub: Hub, tmp_path: Path, target: str, drafter: str) -> None:
    code, where, remedy = run(hub, tmp_path / "home", target, drafter)
    assert (code, where) == ("checkpoint_not_found", "acme/none")
    assert remedy


def test_offline(hub: Hub, tmp_path: Path) -> None:
    assert run(hub, tmp_path / "home", HF_HUB_OFFLINE="1")[0] == "hub_unreachable"
    assert hub.requests == []
