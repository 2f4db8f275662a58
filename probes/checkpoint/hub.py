"""Fetches a drafter from the Hugging Face Hub: config.json, an index, and of the weights what is asked for, nothing else.

Knows no file format. huggingface_hub does the caching, finds the token in its own places and honours HF_HUB_OFFLINE,
HF_HOME and HF_ENDPOINT. A spec needs headers and a few small tensors: those are read by HTTP ranges, unless the weights
are in the local cache or the server gives no ranges. pytorch_model.bin has no header and is downloaded whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from probes.checkpoint.safetensors_file import LocalFile, WeightFile
from probes.errors import CheckpointError

HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
PICKLE_INDEX, PICKLE = "pytorch_model.bin.index.json", "pytorch_model.bin"
FIRST_READ_BYTES = 64 * 2**10  # a drafter's header is a few kB: one request
TIMEOUT_SECONDS = 30.0


class NoRangesError(Exception):
    """The server answered a range request with something else."""


class HubFile:
    """A safetensors file on the Hub, read by ranges. The first read also tells its size."""

    def __init__(self, snapshot: _Snapshot, name: str) -> None:
        from huggingface_hub import hf_hub_url

        self.snapshot = snapshot
        self.path = snapshot.folder / name  # where it would lie, for messages
        self._url = hf_hub_url(snapshot.repo, name, revision=snapshot.revision)
        self._first, self.size = self._get(0, FIRST_READ_BYTES)

    def read(self, start: int, num_bytes: int) -> bytes:
        end = min(start + num_bytes, self.size)
        if end <= len(self._first):
            return self._first[start:end]
        return self._get(start, end - start)[0]

    def _get(self, start: int, num_bytes: int) -> tuple[bytes, int]:
        """-> (the bytes, the whole file's size). Raises NoRangesError, and the Hub's errors as CheckpointError."""
        import huggingface_hub

        utils: Any = huggingface_hub.utils  # its names are public, but not typed as exported
        headers = utils.build_hf_headers() | {
            "Range": f"bytes={start}-{start + num_bytes - 1}",
            "Accept-Encoding": "identity",  # ranges of the file, not of a compressed one
        }
        with (
            self.snapshot.errors(self.path.name),
            utils.get_session().stream("GET", self._url, headers=headers, timeout=TIMEOUT_SECONDS) as response,
        ):
            utils.hf_raise_for_status(response)
            given = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
            if response.status_code != 206 or given is None or int(given[1]) != start:
                raise NoRangesError
            data = b"".join(_at_most(response.iter_bytes(), num_bytes))
            return data, int(given[3])


def _at_most(chunks: Iterator[bytes], num_bytes: int) -> Iterator[bytes]:
    """No more than asked for, whatever a server sends."""
    for chunk in chunks:
        yield chunk[:num_bytes]
        num_bytes -= len(chunk)
        if num_bytes <= 0:
            return


class _Snapshot:
    """One commit of one repository: config.json is fetched first, everything else from the commit it came from."""

    def __init__(self, hub_id: str) -> None:
        match = HUB_ID.fullmatch(hub_id)
        if match is None:
            raise ValueError(f"not a Hub id: {hub_id!r}")
        self.hub_id = hub_id
        self.repo: str = match["repo"]
        self.revision: str | None = match["revision"]
        config = self.download(CONFIG)
        if config is None:
            raise CheckpointError(
                "the repository has no config.json",
                code="config_missing",
                where=hub_id,
                remedy="Name a repository that holds one drafter",
            )
        self.folder = config.parent
        if COMMIT.fullmatch(self.folder.name):
            self.revision = self.folder.name

    def download(self, name: str) -> Path | None:
        """The local path of one file; None when the repository (or, offline, the cache) does not have it."""
        import huggingface_hub  # here, not above: half a second that local folders need not pay
        from huggingface_hub import errors

        with self.errors(name):
            try:
                return Path(huggingface_hub.hf_hub_download(self.repo, name, revision=self.revision))
            except errors.LocalEntryNotFoundError:
                if name == CONFIG:
                    raise
                return None
            except errors.EntryNotFoundError:
                return None

    def cached(self, name: str) -> Path | None:
        import huggingface_hub

        found = huggingface_hub.try_to_load_from_cache(self.repo, name, revision=self.revision)
        return Path(found) if isinstance(found, str) else None

    def needed(self, name: str) -> LocalFile:
        """One file, downloaded. Raises CheckpointError when it is not there."""
        path = self.download(name)
        if path is None:
            raise CheckpointError(
                f"the weights' index names {name}, which the repository (or the local cache) does not have",
                code="shard_missing",
                where=self.hub_id,
                remedy="Name another revision, or download the repository again",
            )
        return LocalFile(path)

    @contextmanager
    def errors(self, name: str) -> Iterator[None]:
        """Turns the client's errors into CheckpointErrors that say what to do."""
        from huggingface_hub import errors

        try:
            yield
        except errors.LocalEntryNotFoundError as error:
            self._fail(
                error,
                "hub_unreachable",
                "neither a local folder nor in the local Hub cache, and the Hub cannot be reached (or HF_HUB_OFFLINE is "
                "set)",
                "Check the path; for a Hub id go online once, or copy the checkpoint here",
            )
        except errors.RevisionNotFoundError as error:
            self._fail(
                error,
                "hub_revision_not_found",
                f"the repository has no revision {self.revision!r}",
                "Name a branch, tag or commit that exists after the @",
            )
        except errors.GatedRepoError as error:
            self._fail(
                error,
                "hub_gated",
                "access to this repository must be granted first",
                "Accept its terms on the Hub and set HF_TOKEN",
            )
        except errors.RepositoryNotFoundError as error:
            self._fail(
                error,
                "checkpoint_not_found",
                "neither a local folder nor a repository on the Hub that can be seen",
                "Check the spelling; a private repository needs HF_TOKEN",
            )
        except errors.EntryNotFoundError:
            raise  # an answer, not a failure: the callers know which files may be absent
        except (errors.HFValidationError, OSError, getattr(errors, "HTTPError", OSError)) as error:
            self._fail(
                error,
                "hub_download_failed",
                f"{name} could not be downloaded: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
                "Check the network and the disk, then try again",
            )

    def _fail(self, error: Exception, code: str, message: str, remedy: str) -> NoReturn:
        raise CheckpointError(message, code=code, where=self.hub_id, remedy=remedy) from error


def fetch(hub_id: str) -> Path:
    """The snapshot folder of `owner/name[@revision]` with config.json, the index and all weights it names.

    Safetensors before pickles. Raises CheckpointError: no such repository, revision or file, no access, offline and not
    in the cache.
    """
    snapshot = _Snapshot(hub_id)
    return _fetch_weights(snapshot, ((INDEX, WEIGHTS), (PICKLE_INDEX, PICKLE)))


def fetch_headers(hub_id: str) -> tuple[Path, list[WeightFile]]:
    """The snapshot folder with config.json and the index, and the files to read headers from; none where the folder has
    all of them: pickles, which have to be whole. Raises as `fetch` does.
    """
    snapshot = _Snapshot(hub_id)
    index = snapshot.download(INDEX)
    if index is not None:
        return snapshot.folder, [_header_source(snapshot, name) or snapshot.needed(name) for name in _shards(index)]
    whole = _header_source(snapshot, WEIGHTS)
    if whole is not None:
        return snapshot.folder, [whole]
    return _fetch_weights(snapshot, ((PICKLE_INDEX, PICKLE),)), []


def _fetch_weights(snapshot: _Snapshot, layouts: tuple[tuple[str, str], ...]) -> Path:
    for index_name, whole in layouts:
        index = snapshot.download(index_name)
        if index is not None:
            for shard in _shards(index):
                snapshot.needed(shard)
            return snapshot.folder
        if snapshot.download(whole) is not None:
            return snapshot.folder
    raise CheckpointError(
        f"the repository has no {WEIGHTS}, no {PICKLE} and no index of shards (or, offline, they are not in the local "
        "cache)",
        code="weights_missing",
        where=snapshot.hub_id,
        remedy="Go online, or name another repository or revision",
    )


def _header_source(snapshot: _Snapshot, name: str) -> WeightFile | None:
    """The cached file, else the one on the Hub, else (no ranges) the downloaded one. None where there is none."""
    from huggingface_hub import constants, errors

    cached = snapshot.cached(name)
    if cached is not None:
        return LocalFile(cached)
    if constants.HF_HUB_OFFLINE:
        return None
    try:
        return HubFile(snapshot, name)
    except errors.EntryNotFoundError:
        return None
    except NoRangesError:
        return snapshot.needed(name)


def _shards(index: Path) -> list[str]:
    """The files an index names, as far as it can be read; `files` judges the index itself."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = set(weight_map.values())
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return []
    return sorted(name for name in names if isinstance(name, str) and re.fullmatch(r"[\w.-]+\.(safetensors|bin)", name))
