"""Hub ids without a network: offline from a cache folder made by hand, and the client's errors one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from probes.checkpoint import hub
from probes.checkpoint.files import open_checkpoint
from probes.errors import CheckpointError
from tests.checkpoint_writers import Tiny, config, weights, write_checkpoint

TINY = Tiny()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import json, sys
from probes.checkpoint.read import read_spec
from probes.errors import CheckpointError
try:
    spec = read_spec(sys.argv[1])
    print(json.dumps([spec.producer, list(spec.aux_layer_ids)]))
except CheckpointError as error:
    print(json.dumps([error.code, error.where]))
"""


def cache(home: Path, num_shards: int = 1) -> Path:
    """A Hub cache that holds acme/drafter at one commit, branch main."""
    repo = home / "hub" / "models--acme--drafter"
    snapshot = repo / "snapshots" / COMMIT
    write_checkpoint(snapshot, "specforge", weights(TINY), config("specforge", TINY), num_shards=num_shards)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    return snapshot


def read_offline(home: Path, hub_id: str) -> list[Any]:
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        env.pop(name, None)
    command = [sys.executable, "-c", PROGRAM, hub_id]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    answer: list[Any] = json.loads(result.stdout)
    return answer


def test_offline_reads_the_cache(tmp_path: Path) -> None:
    cache(tmp_path / "one")
    cache(tmp_path / "shards", num_shards=2)
    assert read_offline(tmp_path / "one", "acme/drafter") == ["specforge", [2, 4, 5]]
    assert read_offline(tmp_path / "one", f"acme/drafter@{COMMIT}") == ["specforge", [2, 4, 5]]
    assert read_offline(tmp_path / "shards", "acme/drafter@main") == ["specforge", [2, 4, 5]]


def test_offline_without_the_files(tmp_path: Path) -> None:
    (cache(tmp_path / "weights") / "model.safetensors").unlink()
    shard = "model-00002-of-00002.safetensors"
    (cache(tmp_path / "shard", num_shards=2) / shard).unlink()
    assert read_offline(tmp_path / "empty", "acme/drafter") == ["hub_unreachable", "acme/drafter"]
    assert read_offline(tmp_path / "weights", "acme/drafter") == ["weights_missing", "acme/drafter"]
    assert read_offline(tmp_path / "shard", "acme/drafter") == ["shard_missing", "acme/drafter"]


class FakeHub:
    """Stands in for `hf_hub_download`: serves a folder, or raises; notes what was asked for."""

    def __init__(self, folder: Path | None = None, error: Exception | None = None) -> None:
        self.folder, self.error = folder, error
        self.asked: list[tuple[str, str, str | None]] = []

    def __call__(self, repo: str, name: str, *, revision: str | None = None) -> str:
        self.asked.append((repo, name, revision))
        if self.error is not None:
            raise self.error
        assert self.folder is not None
        if not (self.folder / name).exists():
            raise errors.RemoteEntryNotFoundError("404", response=response(404))
        return str(self.folder / name)


def response(status: int) -> Any:
    """As much of an HTTP response as the client's errors read (the HTTP library differs by the client's version)."""
    return SimpleNamespace(status_code=status, headers={}, request=None)


def test_only_config_index_and_named_weights_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config("specforge", TINY)
    folder = write_checkpoint(tmp_path / COMMIT, "specforge", weights(TINY), settings, num_shards=2)
    (folder / "training_state.bin").write_bytes(b"large")
    fake = FakeHub(folder)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake)
    assert hub.fetch("acme/drafter@v1") == folder
    assert fake.asked == [
        ("acme/drafter", "config.json", "v1"),  # the others come from the commit that this came from
        ("acme/drafter", "model.safetensors.index.json", COMMIT),
        ("acme/drafter", "model-00001-of-00002.safetensors", COMMIT),
        ("acme/drafter", "model-00002-of-00002.safetensors", COMMIT),
    ]


def test_a_repository_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", FakeHub(tmp_path))
    with pytest.raises(CheckpointError, match=r"model\.safetensors") as caught:
        open_checkpoint("acme/drafter")
    assert (caught.value.code, caught.value.where) == ("weights_missing", "acme/drafter")
    assert "pytorch_model.bin" in caught.value.message
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint("acme/drafter")
    assert caught.value.code == "config_missing"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RepositoryNotFoundError("404", response=response(404)), "checkpoint_not_found"),
        (errors.GatedRepoError("403", response=response(403)), "hub_gated"),
        (errors.RevisionNotFoundError("404", response=response(404)), "hub_revision_not_found"),
        (errors.LocalEntryNotFoundError("offline"), "hub_unreachable"),
        (errors.HfHubHTTPError("500 Server Error", response=response(500)), "hub_download_failed"),
        (errors.HFValidationError("bad name"), "hub_download_failed"),
        (OSError(28, "No space left on device"), "hub_download_failed"),
        (ConnectionError(), "hub_download_failed"),
    ],
)
def test_the_hubs_errors(monkeypatch: pytest.MonkeyPatch, error: Exception, code: str) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", FakeHub(error=error))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint("acme/drafter@main")
    assert (caught.value.code, caught.value.where) == (code, "acme/drafter@main")
    assert caught.value.remedy


def test_a_local_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "acme" / "drafter", "specforge", weights(TINY), config("specforge", TINY))
    monkeypatch.chdir(tmp_path)
    fake = FakeHub(error=AssertionError("must not be asked"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake)
    assert open_checkpoint("acme/drafter").folder == Path("acme/drafter")
    assert fake.asked == []
