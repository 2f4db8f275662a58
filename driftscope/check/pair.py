"""Reads a target and a drafter as far as checks need them: configs, headers, no weights.

Knows no check. What makes the input unusable is raised (exit code 2); what only the reader of drafters refuses, though the
files can be opened, is kept as `refusal` and becomes a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from driftscope.check.weights import PLACES, Likeness, is_float, likeness, sample_same
from probes.checkpoint.files import MAX_CONFIG_BYTES, CheckpointFiles, open_checkpoint, read_json_object
from probes.checkpoint.hub import CONFIG, HUB_ID
from probes.checkpoint.layout import canonical_names
from probes.checkpoint.producers import producer_named
from probes.checkpoint.read import read_spec
from probes.checkpoint.rope import read_rope
from probes.checkpoint.safetensors_file import TensorEntry
from probes.checkpoint.spec import DrafterSpec
from probes.checkpoint.values import MAX_INTEGER, Section, Settings, whole_number
from probes.errors import CheckpointError

FOUND_BY_CHECKS = frozenset(
    {
        *("d2t_absolute", "d2t_out_of_range", "tensor_missing", "tensor_shape", "duplicate_tensor", "fc_width"),
        *("aux_ids_invalid", "aux_ids_missing", "config_inconsistent", "config_key_missing", "target_mismatch"),
        "rope_invalid",
    }
)
"""Refusals of the reader that are faults of a readable checkpoint. Anything else it refuses is unusable input."""

EMBEDDING_NAMES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
LM_HEAD_NAMES = ("lm_head.weight", "output.weight", "embed_out.weight")


@dataclass(frozen=True, kw_only=True)
class Target:
    """The target's config and the headers of its weights; `tensors` is None where they cannot be read, see `problem`."""

    name: str
    folder: Path
    config: Mapping[str, object]
    tensors: Mapping[str, TensorEntry] | None
    problem: str = ""

    def file(self, name: str) -> Path | None:
        """A small file beside config.json, fetched for a Hub id; None where there is none."""
        return _optional_file(self.name, self.folder, name)

    @property
    def settings(self) -> Mapping[str, object]:
        """The language model's part of config.json; multimodal configs nest it."""
        nested = self.config.get("text_config")
        return {**self.config, **nested} if isinstance(nested, Mapping) else self.config

    def integer(self, key: str) -> int | None:
        number = whole_number(self.settings.get(key))
        return number if number is not None and 0 < number <= MAX_INTEGER else None

    @property
    def num_layers(self) -> int | None:
        return self.integer("num_hidden_layers")

    @property
    def model_type(self) -> str:
        value = self.settings.get("model_type")
        return value if isinstance(value, str) else ""

    @cached_property
    def rope(self) -> Mapping[str, object] | None:
        """As the drafter's rope is given; None where it is of a kind that cannot be compared."""
        head_dim = self.integer("head_dim")
        if head_dim is None:
            hidden, heads = self.integer("hidden_size"), self.integer("num_attention_heads")
            head_dim = hidden // heads if hidden and heads else 2
        try:
            return read_rope(Settings("the target's config", [Section(values=self.settings)]), head_dim)[0].value
        except CheckpointError:
            return None

    @property
    def embedding(self) -> TensorEntry | None:
        return _by_suffix(self.tensors, EMBEDDING_NAMES)

    @property
    def lm_head(self) -> TensorEntry | None:
        """Its own, or the embedding where the two are tied."""
        head = _by_suffix(self.tensors, LM_HEAD_NAMES)
        return head or (self.embedding if self.settings.get("tie_word_embeddings") is True else None)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """`spec` is None exactly when `refusal` is not. `tensors`: the drafter's, by canonical name where it has one."""

    target: Target
    drafter_name: str
    files: CheckpointFiles
    tensors: Mapping[str, TensorEntry]
    spec: DrafterSpec | None
    refusal: CheckpointError | None

    @property
    def config(self) -> Mapping[str, object]:
        """The drafter's config.json."""
        return self.files.config

    @property
    def algorithm(self) -> str:
        """A refused checkpoint counts as what is read most."""
        return "eagle3" if self.spec is None else self.spec.algorithm

    @property
    def where(self) -> str:
        """The drafter's config.json, for messages."""
        return str(self.files.config_path)

    def file(self, name: str) -> Path | None:
        """A small file beside the drafter's config.json, fetched for a Hub id; None where there is none."""
        return _optional_file(self.drafter_name, self.files.folder, name)

    @cached_property
    def num_places(self) -> int:
        """In how many places tensors are looked at: fewer where each look is a request."""
        entries = (*self.tensors.values(), *([self.target.embedding] if self.target.embedding is not None else []))
        return PLACES if all(path.exists() for path in {entry.path for entry in entries}) else 1

    @property
    def is_remote(self) -> bool:
        """Whether tensors come over the network."""
        return self.num_places == 1

    @cached_property
    def embedding_likeness(self) -> Likeness | None:
        """The drafter's own embedding against the target's; None where there are not two that can be compared."""
        own, target = self.tensors.get("embed_tokens.weight"), self.target.embedding
        if own is None or target is None or not (is_float(own) and is_float(target)):
            return None
        if len(own.shape) != 2 or len(target.shape) != 2 or own.shape[1] != target.shape[1]:
            return None
        return likeness(*sample_same(own, target, self.num_places))


def read_pair(target: str, drafter: str) -> Pair:
    """Both given as a folder or Hub id. Raises CheckpointError for what cannot be read at all."""
    target_read = _read_target(target)
    files = open_checkpoint(drafter, headers_only=True)
    spec, refusal = None, None
    try:
        spec = read_spec(drafter, target_config=target_read.config)
    except CheckpointError as error:
        if error.code not in FOUND_BY_CHECKS:
            raise
        refusal = error
    return Pair(
        target=target_read,
        drafter_name=drafter,
        files=files,
        tensors=_canonical(files, spec),
        spec=spec,
        refusal=refusal,
    )


def _read_target(name: str) -> Target:
    """Weights that are absent or unreadable are no obstacle: most checks need the config only."""
    path = Path(name).expanduser()
    try:
        files = open_checkpoint(name, headers_only=True)
        return Target(name=name, folder=files.folder, config=files.config, tensors=files.tensors)
    except CheckpointError as error:
        if not (path / CONFIG).is_file() and not (HUB_ID.fullmatch(name) and error.code == "weights_missing"):
            raise
        folder = path if path.is_dir() else _cached_folder(name)
        config = read_json_object(folder / CONFIG, MAX_CONFIG_BYTES)
        return Target(name=name, folder=folder, config=config, tensors=None, problem=error.message)


def _cached_folder(hub_id: str) -> Path:
    path = _download(hub_id, CONFIG)
    if path is None:
        raise CheckpointError(
            "the repository has no config.json",
            code="config_missing",
            where=hub_id,
            remedy="Name a repository that holds one model",
        )
    return path.parent


def _optional_file(name_or_id: str, folder: Path, name: str) -> Path | None:
    path = folder / name
    if path.is_file():
        return path
    is_hub_id = not Path(name_or_id).expanduser().is_dir() and HUB_ID.fullmatch(name_or_id) is not None
    return _download(name_or_id, name) if is_hub_id else None


def _download(hub_id: str, name: str) -> Path | None:
    """None where the repository, or offline the cache, does not have the file."""
    import huggingface_hub
    from huggingface_hub import errors

    match = HUB_ID.fullmatch(hub_id)
    assert match is not None
    try:
        return Path(huggingface_hub.hf_hub_download(match["repo"], name, revision=match["revision"]))
    except errors.EntryNotFoundError:  # offline: LocalEntryNotFoundError, one of its kind
        return None
    except (OSError, errors.HfHubHTTPError) as error:
        raise CheckpointError(
            f"{name} could not be downloaded: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            code="hub_download_failed",
            where=hub_id,
            remedy="Check the network, then try again",
        ) from error


def _canonical(files: CheckpointFiles, spec: DrafterSpec | None) -> Mapping[str, TensorEntry]:
    """A refused checkpoint has no producer for sure; the names common to all are enough for what is still looked at."""
    if spec is not None:
        names = canonical_names(files.tensors, producer_named(spec.producer), where=str(files.folder))
        return {names[name]: entry for name, entry in files.tensors.items()}
    return {_common_name(name): entry for name, entry in files.tensors.items()}


def _common_name(name: str) -> str:
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _by_suffix(tensors: Mapping[str, TensorEntry] | None, suffixes: tuple[str, ...]) -> TensorEntry | None:
    """The shortest name that ends so: a vision tower's own stands deeper."""
    for suffix in suffixes:
        names = [name for name in tensors or {} if name == suffix or name.endswith("." + suffix)]
        if names:
            assert tensors is not None
            return tensors[min(names, key=len)]
    return None
