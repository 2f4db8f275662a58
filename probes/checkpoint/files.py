"""Finds a checkpoint's files and reads what is small: config.json, the index, the headers of the weights.

Knows no producer and no tensor's meaning. Every problem is one CheckpointError naming file, place and remedy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from probes.checkpoint import hub
from probes.checkpoint.hub import CONFIG, INDEX, WEIGHTS
from probes.checkpoint.safetensors_file import TensorEntry, read_header, refuse_lfs_pointer
from probes.checkpoint.spec import Finding
from probes.errors import CheckpointError

MAX_CONFIG_BYTES = 4 * 2**20
MAX_INDEX_BYTES = 64 * 2**20
MAX_JSON_DEPTH = 32  # a config has 3 or 4 levels
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, kw_only=True)
class CheckpointFiles:
    """A checkpoint's parsed config and tensor headers. `tensors` maps the names in the files to their entries."""

    folder: Path
    config: Mapping[str, object]
    tensors: Mapping[str, TensorEntry]
    weight_paths: tuple[Path, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def config_path(self) -> Path:
        return self.folder / CONFIG


def open_checkpoint(path_or_id: str) -> CheckpointFiles:
    """Locate a local folder or Hub id (`owner/name[@revision]`), parse config.json and all weight headers.

    Raises CheckpointError for everything that is missing, broken or not what it claims to be.
    """
    folder = locate(path_or_id)
    config = read_json_object(folder / CONFIG, MAX_CONFIG_BYTES)
    paths, findings = _weight_paths(folder)
    tensors: dict[str, TensorEntry] = {}
    for path in paths:
        for name, entry in read_header(path).items():
            if name in tensors:
                raise CheckpointError(
                    f"the tensor `{name}` is also in {tensors[name].path.name}",
                    code="duplicate_tensor",
                    where=str(path),
                    remedy="Keep one set of weights in the folder",
                )
            tensors[name] = entry
    if (folder / INDEX).exists():
        _check_index(folder / INDEX, tensors)
    if not tensors:
        raise CheckpointError(
            "the weights hold no tensors",
            code="weights_missing",
            where=str(paths[0]),
            remedy="Save the weights again",
        )
    return CheckpointFiles(folder=folder, config=config, tensors=tensors, weight_paths=paths, findings=findings)


def locate(path_or_id: str) -> Path:
    """The folder of a checkpoint; a Hub id is downloaded (or found in the cache) first. A local folder wins."""
    try:
        path = Path(path_or_id).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # name too long, unknown user after ~
        raise _not_found(path_or_id[:200], str(error)) from error
    if is_folder:
        if not (path / CONFIG).exists():
            raise CheckpointError(
                "the folder has no config.json",
                code="config_missing",
                where=str(path),
                remedy="Name the folder that holds the drafter's config.json and weights",
            )
        return path
    if is_file:
        raise CheckpointError(
            "this is a file; a checkpoint is a folder with config.json and safetensors weights",
            code="not_a_folder",
            where=str(path),
            remedy="Name the folder",
        )
    if hub.HUB_ID.fullmatch(path_or_id):
        return hub.fetch(path_or_id)
    raise _not_found(path_or_id[:200], "no such folder, and not of the form owner/name[@revision]")


def file_hashes(path_or_id: str) -> dict[str, str]:
    """sha256 (hex) by file name of config.json, the index and every weight file, for provenance. Streamed."""
    folder = locate(path_or_id)
    paths, _ = _weight_paths(folder)
    index = [folder / INDEX] if (folder / INDEX).exists() else []
    hashes = {}
    for path in (folder / CONFIG, *index, *paths):
        try:
            with path.open("rb") as file:
                hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(path, error) from error
    return hashes


def read_json_object(path: Path, max_bytes: int) -> dict[str, object]:
    """A JSON file that holds one object. Raises CheckpointError when it is missing, too large, or anything else."""
    try:
        with path.open("rb") as file:
            text = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise _not_found(str(path), "no such file") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    refuse_lfs_pointer(path, text)
    if len(text) > max_bytes:
        raise _bad_json(path, f"it is larger than {max_bytes} bytes")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and absurd integers are ValueErrors too
        raise _bad_json(path, str(error)) from error
    if not isinstance(parsed, dict):
        raise _bad_json(path, "it does not hold an object {...}")
    if _depth(parsed) > MAX_JSON_DEPTH:
        raise _bad_json(path, f"it is nested more than {MAX_JSON_DEPTH} levels deep")
    return parsed


def _depth(value: object) -> int:
    """How deep a parsed JSON value is nested; level by level, as recursion is what must not happen."""
    depth, level = 0, [value]
    while level:
        level = [v for x in level if isinstance(x, (dict, list)) for v in (x.values() if isinstance(x, dict) else x)]
        depth += 1
    return depth


def _weight_paths(folder: Path) -> tuple[tuple[Path, ...], tuple[Finding, ...]]:
    """The weight files to read: what the index names, else model.safetensors, else every *.safetensors."""
    found = sorted(p for p in folder.glob("*.safetensors") if p.is_file())
    if (folder / INDEX).exists():
        paths = _indexed_paths(folder / INDEX)
    elif (folder / WEIGHTS).exists():
        paths = [folder / WEIGHTS]
    else:
        paths = found
    if not paths:
        pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
        if pickles:
            raise CheckpointError(
                f"its weights are only in {', '.join(pickles[:3])}, which is not read (pickle)",
                code="weights_not_safetensors",
                where=str(folder),
                remedy="Convert them: load with torch.load(..., weights_only=True) and save with "
                "safetensors.torch.save_file as model.safetensors",
            )
        raise CheckpointError(
            "the folder has no safetensors weights",
            code="weights_missing",
            where=str(folder),
            remedy=f"Put {WEIGHTS} (or its shards with {INDEX}) beside config.json",
        )
    unused = [p.name for p in found if p not in paths]
    if not unused:
        return tuple(paths), ()
    finding = Finding(
        code="unused_weight_file",
        severity="warning",
        message=f"not read: {', '.join(unused[:5])}{' ...' if len(unused) > 5 else ''}; the weights are in "
        f"{paths[0].name}{' ...' if len(paths) > 1 else ''}",
        where=str(folder),
        remedy="Remove the files that do not belong to this checkpoint; engines may read them",
    )
    return tuple(paths), (finding,)


def _indexed_paths(index: Path) -> list[Path]:
    names = sorted(set(_weight_map(index).values()))
    for name in names:
        if not re.fullmatch(r"[\w.-]+\.safetensors", name):
            raise _bad_index(index, f"it names the shard {name[:80]!r}, which is not a safetensors file beside it")
        if not (index.parent / name).is_file():
            raise CheckpointError(
                f"{INDEX} names the shard {name}, which is not there",
                code="shard_missing",
                where=str(index),
                remedy="Copy or download the checkpoint again, all shards of it",
            )
    return [index.parent / name for name in names]


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad_index(index, "it has no `weight_map`")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise _bad_index(index, "its `weight_map` must map tensor names to file names")
    return weight_map


def _check_index(index: Path, tensors: Mapping[str, TensorEntry]) -> None:
    for name, shard in _weight_map(index).items():
        if name not in tensors or tensors[name].path.name != shard:
            raise _bad_index(index, f"it says that `{name[:80]}` is in {shard}, which is not so")


def _not_found(where: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint not found: {what}",
        code="checkpoint_not_found",
        where=where,
        remedy="Give a local folder or a Hub id (owner/name, owner/name@revision)",
    )


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot be read: {error.strerror or error}",
        code="file_unreadable",
        where=str(path),
        remedy="Check the file's permissions and the disk",
    )


def _bad_json(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"not a valid JSON file: {what}", code="bad_json", where=str(path), remedy="Copy or download it again"
    )


def _bad_index(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the index does not fit the weights: {what}",
        code="bad_index",
        where=str(path),
        remedy="Save the checkpoint again, or remove the index if model.safetensors is whole",
    )
