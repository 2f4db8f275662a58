"""Fetches a drafter from the Hugging Face Hub: config.json, the index and the weights it names, nothing else.

Knows no file format. huggingface_hub does the caching and honours HF_HUB_OFFLINE, HF_HOME, HF_ENDPOINT and HF_TOKEN.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from probes.errors import CheckpointError

HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?")
COMMIT = re.compile(r"[0-9a-f]{40}")
CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"


def fetch(hub_id: str) -> Path:
    """The snapshot folder of `owner/name[@revision]` with config.json and all its safetensors weights.

    Raises CheckpointError: no such repository, revision or file, no access, offline and not in the cache.
    """
    match = HUB_ID.fullmatch(hub_id)
    if match is None:
        raise ValueError(f"not a Hub id: {hub_id!r}")
    repo, revision = match["repo"], match["revision"]
    config = _download(hub_id, repo, revision, CONFIG)
    if config is None:
        raise CheckpointError(
            "the repository has no config.json",
            code="config_missing",
            where=hub_id,
            remedy="Name a repository that holds one drafter",
        )
    folder = config.parent
    if COMMIT.fullmatch(folder.name):
        revision = folder.name  # all files from the commit that config.json came from
    index = _download(hub_id, repo, revision, INDEX)
    if index is None:
        if _download(hub_id, repo, revision, WEIGHTS) is None:
            raise CheckpointError(
                f"the repository has neither {WEIGHTS} nor {INDEX}"
                " (or, offline, they are not in the local cache): no safetensors weights",
                code="weights_missing",
                where=hub_id,
                remedy="Convert pytorch_model.bin to safetensors, go online, or name another revision",
            )
        return folder
    for shard in _shards(index):
        if _download(hub_id, repo, revision, shard) is None:
            raise CheckpointError(
                f"{INDEX} names the shard {shard}, which the repository (or the local cache) does not have",
                code="shard_missing",
                where=hub_id,
                remedy="Name another revision, or download the repository again",
            )
    return folder


def _shards(index: Path) -> list[str]:
    """The files an index names, as far as it can be read; `files` judges the index itself."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = set(weight_map.values())
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return []
    return sorted(name for name in names if isinstance(name, str) and re.fullmatch(r"[\w.-]+\.safetensors", name))


def _download(hub_id: str, repo: str, revision: str | None, name: str) -> Path | None:
    """The local path of one file; None when the repository (or, offline, the cache) does not have it."""
    import huggingface_hub  # here, not above: half a second that local folders need not pay
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.hf_hub_download(repo, name, revision=revision))
    except errors.LocalEntryNotFoundError as error:
        if name != CONFIG:
            return None
        raise CheckpointError(
            "neither a local folder nor in the local Hub cache, and the Hub cannot be reached (or HF_HUB_OFFLINE is set)",
            code="hub_unreachable",
            where=hub_id,
            remedy="Check the path; for a Hub id go online once, or copy the checkpoint here",
        ) from error
    except errors.EntryNotFoundError:
        return None
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(
            f"the repository has no revision {revision!r}",
            code="hub_revision_not_found",
            where=hub_id,
            remedy="Name a branch, tag or commit that exists after the @",
        ) from error
    except errors.GatedRepoError as error:
        raise CheckpointError(
            "access to this repository must be granted first",
            code="hub_gated",
            where=hub_id,
            remedy="Accept its terms on the Hub and set HF_TOKEN",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            "neither a local folder nor a repository on the Hub that can be seen",
            code="checkpoint_not_found",
            where=hub_id,
            remedy="Check the spelling; a private repository needs HF_TOKEN",
        ) from error
    except (errors.HFValidationError, OSError, getattr(errors, "HTTPError", OSError)) as error:
        raise CheckpointError(
            f"{name} could not be downloaded: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            code="hub_download_failed",
            where=hub_id,
            remedy="Check the network and the disk, then try again",
        ) from error
