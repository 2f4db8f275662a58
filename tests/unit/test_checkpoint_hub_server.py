"""The Hub client against a server on this machine: revisions, tokens, offline mode, and every request counted.

The client is huggingface_hub itself, in a process of its own with HF_ENDPOINT, HF_HOME and HF_TOKEN set.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probes.checkpoint.hub import FIRST_READ_BYTES
from tests.checkpoint_writers import Tiny, config, weights, write_checkpoint
from tests.file_server import FileHandler

TINY = Tiny(inner=2400)  # about 500 kB of weights: many times what a header takes
OLD, NEW = "0" * 39 + "1", "0" * 39 + "2"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
READ = """
import json, sys
from probes.checkpoint.read import read_spec
from probes.errors import CheckpointError
try:
    spec = read_spec(sys.argv[1], target_config=json.loads(sys.argv[2]))
    print(json.dumps([spec.producer, list(spec.aux_layer_ids), [f.code for f in spec.findings]]))
except CheckpointError as error:
    print(json.dumps([error.code, error.where, error.message]))
"""
FETCH = """
import json, sys
from probes.checkpoint.files import file_hashes
print(json.dumps(sorted(file_hashes(sys.argv[1]))))
"""


class Hub:
    """acme/drafter, two commits; `requests` lists (method, revision, file, range), `bytes_sent` what GETs cost."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.refs = {"main": NEW, "v1": OLD, OLD: OLD, NEW: NEW}
        self.token: str | None = None  # asked for when set
        self.gives_ranges = True
        self.cdn: Hub | None = None  # where it sends those who want weights, as the Hub does with large files
        self.is_gated = False
        self.requests: list[tuple[str, str, str, str | None]] = []
        self.authorizations: set[str | None] = set()
        self.bytes_sent = 0
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def files(self) -> list[tuple[str, str]]:
        """(method, file) of every request, in order."""
        return [(method, name) for method, _, name, _ in self.requests]


class _Handler(FileHandler):
    hub: Hub

    def answer(self) -> None:
        match = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/([\w./-]+)", self.path)
        assert match is not None, f"nothing but files is asked for: {self.path}"
        repo, revision, name = match.groups()
        wanted = self.headers.get("Range")
        self.hub.requests.append((self.command, revision, name, wanted))
        self.hub.authorizations.add(self.headers.get("Authorization"))
        if repo != "acme/drafter" or (
            self.hub.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.token}"
        ):
            return self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        if self.hub.is_gated:
            return self.send(403, b"", {"X-Error-Code": "GatedRepo"})
        if revision not in self.hub.refs:
            return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        commit = self.hub.refs[revision]
        path = self.hub.root / commit / name
        if not path.is_file():
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        if self.hub.cdn is not None and self.command == "GET" and name == WEIGHTS:
            return self.send(302, b"", {"Location": self.hub.cdn.endpoint + self.path, "X-Repo-Commit": commit})
        data = path.read_bytes()
        headers = {"X-Repo-Commit": commit, "ETag": f'"{commit[-1]}-{name}"'}
        return self.send_file(data, headers, gives_ranges=self.hub.gives_ranges)

    def on_sent(self, num_bytes: int) -> None:
        self.hub.bytes_sent += num_bytes


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """The new commit is EAGLE-3.1 by SpecForge with unrelated files beside it, the old one SafeAILab's."""
    arrays = weights(TINY)
    new = write_checkpoint(tmp_path / "hub" / NEW, "specforge", arrays, config("specforge", TINY))
    for name in ("optimizer.bin", "README.md", "tokenizer.json", "model.gguf"):
        (new / name).write_bytes(b"x" * 100_000)
    write_checkpoint(tmp_path / "hub" / OLD, "safeailab", arrays, config("safeailab", TINY))
    server = Hub(tmp_path / "hub")
    yield server
    server.server.shutdown()
    server.server.server_close()


def run(hub: Hub, home: Path, program: str, hub_id: str = "acme/drafter", **environment: str) -> Any:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()}
    env |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    command = [sys.executable, "-c", program, hub_id, json.dumps(TINY.target_config)]
    return json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


def test_a_spec_needs_no_weights_but_their_header_and_vocabulary_maps(hub: Hub, tmp_path: Path) -> None:
    assert run(hub, tmp_path / "home", READ) == ["specforge", [2, 4, 5], []]
    assert (
        hub.requests
        == [
            ("HEAD", "main", CONFIG, None),
            ("GET", "main", CONFIG, None),
            ("HEAD", NEW, INDEX, None),  # everything from the commit that config.json came from
            ("GET", NEW, WEIGHTS, f"bytes=0-{FIRST_READ_BYTES - 1}"),
            *hub.requests[4:],
        ]
    )
    total = (hub.root / NEW / WEIGHTS).stat().st_size
    assert {(method, name) for method, _, name, _ in hub.requests[4:]} == {("GET", WEIGHTS)}
    assert all(wanted is not None for _, _, _, wanted in hub.requests[3:])
    assert total > 5 * FIRST_READ_BYTES
    assert hub.bytes_sent < 1.2 * FIRST_READ_BYTES
    assert not list((tmp_path / "home").rglob(WEIGHTS))


def test_loading_downloads_each_needed_file_once_and_then_nothing(hub: Hub, tmp_path: Path) -> None:
    assert run(hub, tmp_path / "home", FETCH) == [CONFIG, WEIGHTS]
    assert hub.files() == [
        ("HEAD", CONFIG),
        ("GET", CONFIG),
        ("HEAD", INDEX),
        ("HEAD", WEIGHTS),
        ("GET", WEIGHTS),
    ]
    hub.requests.clear()
    hub.bytes_sent = 0
    assert run(hub, tmp_path / "home", READ)[0] == "specforge"  # from the cache
    assert ("GET", WEIGHTS) not in hub.files()
    assert hub.bytes_sent == 0


def test_shards_are_read_by_ranges_too(hub: Hub, tmp_path: Path) -> None:
    folder = hub.root / NEW
    (folder / WEIGHTS).unlink()
    write_checkpoint(folder, "specforge", weights(TINY), config("specforge", TINY), num_shards=2)
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert run(hub, tmp_path / "home", READ)[:2] == ["specforge", [2, 4, 5]]
    assert hub.files()[:6] == [
        ("HEAD", CONFIG),
        ("GET", CONFIG),
        ("HEAD", INDEX),
        ("GET", INDEX),
        ("GET", shards[0]),
        ("GET", shards[1]),
    ]
    assert {name for _, name in hub.files()[6:]} <= set(shards)
    hub.requests.clear()
    assert run(hub, tmp_path / "home", FETCH) == [CONFIG, *shards, INDEX]
    assert {name for _, name in hub.files()} == {CONFIG, *shards}  # the index of that commit is there already


@pytest.mark.parametrize(
    ("revision", "producer", "commit"), [("v1", "safeailab", OLD), (OLD, "safeailab", OLD), ("main", "specforge", NEW)]
)
def test_revisions(hub: Hub, tmp_path: Path, revision: str, producer: str, commit: str) -> None:
    assert run(hub, tmp_path / "home", READ, f"acme/drafter@{revision}")[0] == producer
    assert {asked for _, asked, name, _ in hub.requests if name != CONFIG} == {commit}


def test_a_revision_that_does_not_exist(hub: Hub, tmp_path: Path) -> None:
    code, where, message = run(hub, tmp_path / "home", READ, "acme/drafter@v9")
    assert (code, where) == ("hub_revision_not_found", "acme/drafter@v9")
    assert "v9" in message


@pytest.mark.parametrize("place", ["HF_TOKEN", "file"])
def test_the_token_comes_from_the_clients_own_places(hub: Hub, tmp_path: Path, place: str) -> None:
    hub.token = "hf_secret"
    home = tmp_path / "home"
    home.mkdir()
    code, where, message = run(hub, home, READ)
    assert (code, where) == ("checkpoint_not_found", "acme/drafter")
    assert "seen" in message
    hub.authorizations.clear()
    environment = {"HF_TOKEN": "hf_secret"} if place == "HF_TOKEN" else {}
    if place == "file":
        (home / "token").write_text("hf_secret\n")
    assert run(hub, home, READ, **environment)[0] == "specforge"
    assert hub.authorizations == {"Bearer hf_secret"}  # range requests included


def test_the_token_stays_with_the_hub(hub: Hub, tmp_path: Path) -> None:
    """Large files lie elsewhere: the range is asked for there, the token is not sent along."""
    hub.token, hub.cdn = "hf_secret", Hub(hub.root)
    assert run(hub, tmp_path / "home", READ, HF_TOKEN="hf_secret")[0] == "specforge"
    assert hub.authorizations == {"Bearer hf_secret"}
    assert hub.cdn.authorizations == {None}
    assert hub.cdn.requests[0] == ("GET", NEW, WEIGHTS, f"bytes=0-{FIRST_READ_BYTES - 1}")
    hub.cdn.server.shutdown()
    hub.cdn.server.server_close()


def test_a_gated_repository(hub: Hub, tmp_path: Path) -> None:
    hub.is_gated = True
    assert run(hub, tmp_path / "home", READ)[0] == "hub_gated"


def test_access_that_is_lost_between_two_files(hub: Hub, tmp_path: Path) -> None:
    """config.json is cached, the weights are not: the range request's own error."""
    run(hub, tmp_path / "home", READ)
    hub.is_gated = True
    assert run(hub, tmp_path / "home", READ, f"acme/drafter@{NEW}")[0] == "hub_gated"


def test_offline_asks_nothing(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert run(hub, home, READ, HF_HUB_OFFLINE="1")[0] == "hub_unreachable"
    run(hub, home, READ)  # headers by ranges leave no weights in the cache
    hub.requests.clear()
    assert run(hub, home, READ, HF_HUB_OFFLINE="1")[0] == "weights_missing"
    run(hub, home, FETCH)
    hub.requests.clear()
    assert run(hub, home, READ, HF_HUB_OFFLINE="1")[0] == "specforge"
    assert run(hub, home, FETCH, HF_HUB_OFFLINE="1") == [CONFIG, WEIGHTS]
    assert hub.requests == []


def test_a_server_without_ranges(hub: Hub, tmp_path: Path) -> None:
    """The weights are downloaded, once, and read from the cache."""
    hub.gives_ranges = False
    assert run(hub, tmp_path / "home", READ) == ["specforge", [2, 4, 5], []]
    assert [request for request in hub.files() if request[1] == WEIGHTS][-2:] == [("HEAD", WEIGHTS), ("GET", WEIGHTS)]
    assert list((tmp_path / "home").rglob(WEIGHTS))


def test_a_repository_with_a_pickle_alone_is_asked_for_it_last(hub: Hub, tmp_path: Path) -> None:
    (hub.root / NEW / WEIGHTS).rename(hub.root / NEW / PICKLE)
    code, where, _ = run(hub, tmp_path / "home", READ)
    assert code in ("pickle_refused", "torch_needed")  # it is no pickle; what matters here is what was asked for
    assert where.endswith(PICKLE)
    assert hub.files() == [
        ("HEAD", CONFIG),
        ("GET", CONFIG),
        ("HEAD", INDEX),
        ("GET", WEIGHTS),
        ("HEAD", PICKLE_INDEX),
        ("HEAD", PICKLE),
        ("GET", PICKLE),
    ]


def test_a_repository_without_weights(hub: Hub, tmp_path: Path) -> None:
    (hub.root / NEW / WEIGHTS).unlink()
    code, where, message = run(hub, tmp_path / "home", READ)
    assert (code, where) == ("weights_missing", "acme/drafter")
    assert PICKLE in message
    assert "optimizer.bin" not in {name for _, name in hub.files()}


@pytest.mark.parametrize("damage", ["cut", "lfs", "html"])
def test_broken_weights_on_the_hub_are_named(hub: Hub, tmp_path: Path, damage: str) -> None:
    path = hub.root / NEW / WEIGHTS
    data = {
        "cut": path.read_bytes()[:-5],
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "html": b"<!DOCTYPE html><html>" + b" " * 100,
    }[damage]
    path.write_bytes(data)
    code, where, _ = run(hub, tmp_path / "home", READ)
    assert code == {"cut": "truncated", "lfs": "git_lfs_pointer", "html": "not_safetensors"}[damage]
    assert where.endswith(WEIGHTS)


def test_a_header_beyond_the_first_read_is_asked_for_once_more(hub: Hub, tmp_path: Path) -> None:
    arrays = weights(TINY) | {f"mystery.{'x' * 300}.{i}": np.zeros(1, np.float32) for i in range(250)}
    write_checkpoint(hub.root / NEW, "specforge", arrays, config("specforge", TINY))
    assert run(hub, tmp_path / "home", READ) == ["specforge", [2, 4, 5], ["unused_tensors"]]
    length = int.from_bytes((hub.root / NEW / WEIGHTS).read_bytes()[:8], "little")
    assert length > FIRST_READ_BYTES
    ranges = [wanted for _, _, name, wanted in hub.requests if name == WEIGHTS]
    assert ranges[:2] == [f"bytes=0-{FIRST_READ_BYTES - 1}", f"bytes=8-{7 + length}"]
