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
from probes.checkpoint.hub import CONFIG, INDEX, PICKLE, PICKLE_INDEX, WEIGHTS
from probes.checkpoint.pickle_file import read_pickle
from probes.checkpoint.safetensors_file import (
    LocalFile,
    TensorEntry,
    WeightFile,
    open_file,
    read_header,
    refuse_lfs_pointer,
    unreadable,
)
from probes.checkpoint.spec import Finding
from probes.errors import CheckpointError

MAX_CONFIG_BYTES = 4 * 2**20
MAX_INDEX_BYTES = 64 * 2**20
MAX_JSON_DEPTH = 32  # a config has 3 or 4 levels
OTHER_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")  # by names that nobody loads a drafter from


@dataclass(frozen=True, kw_only=True)
class CheckpointFiles:
    """A checkpoint's parsed config and tensor headers. `tensors` maps the names in the files to their entries.

    Opened by its headers only, a Hub checkpoint's `weight_paths` need not exist.
    """

    folder: Path
    config: Mapping[str, object]
    tensors: Mapping[str, TensorEntry]
    weight_paths: tuple[Path, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def config_path(self) -> Path:
        return self.folder / CONFIG


def open_checkpoint(path_or_id: str, *, headers_only: bool = False) -> CheckpointFiles:
    """Locate a local folder or Hub id (`owner/name[@revision]`), parse config.json and all weight headers.

    With `headers_only` the weights of a Hub id are not downloaded: their headers, and what `read_array` is asked for, are
    read from the Hub. Raises CheckpointError for everything that is missing, broken or not what it claims to be.
    """
    folder = _local_folder(path_or_id)
    remote: list[WeightFile] = []
    if folder is None:
        folder, remote = hub.fetch_headers(path_or_id) if headers_only else (hub.fetch(path_or_id), [])
    config = read_json_object(folder / CONFIG, MAX_CONFIG_BYTES)
    findings: tuple[Finding, ...] = ()
    index = folder / INDEX
    if remote:
        weights = remote
        if index.exists():
            _indexed_names(index)
    else:
        paths, index, findings = _weight_paths(folder)
        weights = [LocalFile(path) for path in paths]
    tensors: dict[str, TensorEntry] = {}
    for file in weights:
        for name, entry in (read_pickle(file.path) if file.path.suffix == ".bin" else read_header(file)).items():
            if name in tensors:
                raise CheckpointError(
                    f"the tensor `{name}` is also in {tensors[name].path.name}",
                    code="duplicate_tensor",
                    where=str(file.path),
                    remedy="Keep one set of weights in the folder",
                )
            tensors[name] = entry
    if index.exists():
        _check_index(index, tensors)
    if not tensors:
        raise CheckpointError(
            "the weights hold no tensors",
            code="weights_missing",
            where=str(weights[0].path) if weights else str(folder),
            remedy="Save the weights again",
        )
    paths = tuple(file.path for file in weights)
    return CheckpointFiles(folder=folder, config=config, tensors=tensors, weight_paths=paths, findings=findings)


def locate(path_or_id: str) -> Path:
    """The folder of a checkpoint; a Hub id is downloaded (or found in the cache) first. A local folder wins."""
    return _local_folder(path_or_id) or hub.fetch(path_or_id)


def name_and_revision(path_or_id: str) -> tuple[str, str | None]:
    """What other libraries load a model by: a local folder, or a Hub id and its revision.

    Raises CheckpointError for a path that is not there: those libraries would take it for an id and ask the Hub.
    """
    if _local_folder(path_or_id) is not None:
        return str(Path(path_or_id).expanduser()), None
    match = hub.HUB_ID.fullmatch(path_or_id)
    assert match is not None
    return match["repo"], match["revision"]


def _local_folder(path_or_id: str) -> Path | None:
    """None for a Hub id. Raises CheckpointError for anything that is neither that nor a checkpoint's folder."""
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
                remedy="Name the folder that holds config.json and the weights",
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
        return None
    raise _not_found(path_or_id[:200], "no such folder, and not of the form owner/name[@revision]")


def file_hashes(path_or_id: str) -> dict[str, str]:
    """sha256 (hex) by file name of config.json, the index and every weight file, for provenance. Streamed."""
    folder = locate(path_or_id)
    paths, index, _ = _weight_paths(folder)
    hashes = {}
    for path in (folder / CONFIG, *([index] if index.exists() else []), *paths):
        try:
            with open_file(path) as file:
                hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise unreadable(path, error) from error
    return hashes


def read_json_object(path: Path, max_bytes: int) -> dict[str, object]:
    """A JSON file that holds one object. Raises CheckpointError when it is missing, too large, or anything else."""
    try:
        with open_file(path) as file:
            text = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        raise _not_found(str(path), "no such file") from error
    except OSError as error:
        raise unreadable(path, error) from error
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
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair, which no text can hold
        raise _bad_json(path, "it holds an escape that is no character") from error
    return parsed


def _depth(value: object) -> int:
    """How deep a parsed JSON value is nested; level by level, as recursion is what must not happen."""
    depth, level = 0, [value]
    while level:
        level = [v for x in level if isinstance(x, (dict, list)) for v in (x.values() if isinstance(x, dict) else x)]
        depth += 1
    return depth


def _weight_paths(folder: Path) -> tuple[tuple[Path, ...], Path, tuple[Finding, ...]]:
    """The weight files to read, the index that may list them, and what lies beside them unread.

    Safetensors before pickles: what the index names, else model.safetensors, else every *.safetensors; else
    pytorch_model.bin's index or itself.
    """
    safetensors = sorted(p for p in folder.glob("*.safetensors") if p.is_file())
    pickles = sorted(p for p in folder.glob("pytorch_model*.bin") if p.is_file())
    index = folder / INDEX
    if index.exists():
        paths = _indexed_paths(index)
    elif (folder / WEIGHTS).exists():
        paths = [folder / WEIGHTS]
    elif safetensors:
        paths = safetensors
    elif (folder / PICKLE_INDEX).exists():
        index = folder / PICKLE_INDEX
        paths = _indexed_paths(index)
    elif (folder / PICKLE).exists():
        paths = [folder / PICKLE]
    else:
        raise _no_weights(folder)
    unused = [p.name for p in (*safetensors, *pickles) if p not in paths]
    if not unused:
        return tuple(paths), index, ()
    finding = Finding(
        code="unused_weight_file",
        severity="warning",
        message=f"not read: {', '.join(unused[:5])}{' ...' if len(unused) > 5 else ''}; the weights are in "
        f"{paths[0].name}{' ...' if len(paths) > 1 else ''}",
        where=str(folder),
        remedy="Remove the files that do not belong to this checkpoint; engines may read them",
    )
    return tuple(paths), index, (finding,)


def _no_weights(folder: Path) -> CheckpointError:
    pickles = sorted(p.name for pattern in OTHER_PICKLES for p in folder.glob(pattern))
    if not pickles:
        return CheckpointError(
            "the folder has no weights",
            code="weights_missing",
            where=str(folder),
            remedy=f"Put {WEIGHTS} (or its shards with {INDEX}) beside config.json",
        )
    return CheckpointError(
        f"its weights are only in {', '.join(pickles[:3])}; of pickles {PICKLE} alone is read",
        code="weights_not_safetensors",
        where=str(folder),
        remedy="Convert them: load with torch.load(..., weights_only=True) and save a flat map of the tensors with "
        f"safetensors.torch.save_file as {WEIGHTS}",
    )


def _indexed_paths(index: Path) -> list[Path]:
    names = _indexed_names(index)
    for name in names:
        if not (index.parent / name).is_file():
            raise CheckpointError(
                f"{index.name} names the shard {name}, which is not there",
                code="shard_missing",
                where=str(index),
                remedy="Copy or download the checkpoint again, all shards of it",
            )
    return [index.parent / name for name in names]


def _indexed_names(index: Path) -> list[str]:
    suffix = "bin" if index.name == PICKLE_INDEX else "safetensors"
    names = sorted(set(_weight_map(index).values()))
    for name in names:
        if not re.fullmatch(rf"[\w.-]+\.{suffix}", name):
            raise _bad_index(index, f"it names the shard {name[:80]!r}, which is not a {suffix} file beside it")
    return names


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
