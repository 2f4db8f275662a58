"""The drafter's weights under canonical names, read by safetensors' own reader or torch's restricted one. Needs torch.

Knows no forward pass: `probes.drafter` builds the module from a spec and loads this dict.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from probes.checkpoint.files import open_checkpoint
from probes.checkpoint.layout import canonical_names, expected_shapes
from probes.checkpoint.pickle_file import load_pickle
from probes.checkpoint.producers import producer_named
from probes.checkpoint.spec import DrafterSpec
from probes.errors import CheckpointError


def load_tensors(
    path_or_id: str,
    spec: DrafterSpec,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    names: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """What `spec` needs, and t2d where there is one. Weights in `dtype`, d2t int64, t2d bool, all on `device`.

    `names`: only these of them.

    A spec with changed flags (an intervention) gets what it then needs; a part borrowed from the target is absent.
    Raises CheckpointError when a tensor is missing, has another shape, or the file cannot be read.
    """
    files = open_checkpoint(path_or_id)
    canonical = canonical_names(files.tensors, producer_named(spec.producer), where=str(files.folder))
    needed = expected_shapes(spec) | {"t2d": (spec.vocab_size,)}
    if names is not None:
        needed = {name: shape for name, shape in needed.items() if name in names}
    tensors: dict[str, Tensor] = {}
    for path in files.weight_paths:
        if path.suffix == ".bin":
            for name, tensor in load_pickle(path).items():
                if canonical[name] in needed:
                    tensors[canonical[name]] = _converted(canonical[name], tensor, dtype).to(device)
            continue
        try:
            with safe_open(path, framework="pt", device=str(device)) as reader:
                for name in reader.keys():  # noqa: SIM118 (not a dict)
                    if canonical[name] in needed:
                        tensors[canonical[name]] = _converted(canonical[name], reader.get_tensor(name), dtype)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"cannot be read: {error}",
                code="file_unreadable",
                where=str(path),
                remedy="Copy or download it again",
            ) from error
    for name, shape in needed.items():
        if name not in tensors and name != "t2d":
            raise _unfit(f"missing: `{name}`", "tensor_missing", str(files.folder))
        if name in tensors and tuple(tensors[name].shape) != shape:
            found = list(tensors[name].shape)
            raise _unfit(f"`{name}` has shape {found}, expected {list(shape)}", "tensor_shape", str(files.folder))
    return tensors


def _converted(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy: what the file's place in memory is must not decide the last bit of a matrix product, nor may the file's
    being overwritten change a loaded drafter."""
    return tensor.to({"d2t": torch.int64, "t2d": torch.bool}.get(name, dtype), copy=True)


def _unfit(what: str, code: str, where: str) -> CheckpointError:
    return CheckpointError(what, code=code, where=where, remedy="Read the spec from this same checkpoint")
