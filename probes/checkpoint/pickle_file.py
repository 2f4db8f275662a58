"""`pytorch_model.bin` through torch's restricted reader (`weights_only=True`): tensors, and nothing that runs code.

The only part of reading a spec that needs torch, imported when such a file is met. Tensors stay mapped to the file, so
reading headers costs no memory. What the restricted reader refuses is an error; there is no other way in.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from probes.checkpoint.safetensors_file import LFS_POINTER, TensorEntry, open_file, refuse_lfs_pointer
from probes.errors import CheckpointError

CONVERT = (
    "If you trust the file, load it yourself and save a flat map of its tensors with safetensors.torch.save_file as "
    "model.safetensors"
)
DTYPES = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
}


@dataclass(frozen=True, eq=False)
class _TensorBytes:
    tensor: Any

    def read(self, start: int, num_bytes: int) -> bytes:
        import torch

        raw = self.tensor.contiguous().reshape(-1).view(torch.uint8)
        data: bytes = raw[start : start + num_bytes].numpy().tobytes()
        return data


def read_pickle(path: Path) -> dict[str, TensorEntry]:
    """The file's tensors by name. Raises CheckpointError as `load_pickle` does."""
    return {
        name: TensorEntry(
            name=name,
            path=path,
            dtype=_dtype(tensor),
            shape=tuple(tensor.shape),
            start=0,
            num_bytes=tensor.numel() * tensor.element_size(),
            data=_TensorBytes(tensor),
        )
        for name, tensor in load_pickle(path).items()
    }


def load_pickle(path: Path) -> dict[str, Any]:
    """name -> torch tensor on the CPU, mapped to the file where it is a zip (every torch since 1.6 writes one).

    Raises CheckpointError: torch is not installed, the file is broken, the restricted reader refuses it, or it holds
    anything but a flat map of ordinary tensors.
    """
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            "reading pytorch_model.bin needs torch, which is not installed",
            code="torch_needed",
            where=str(path),
            remedy="Install driftscope[probe], or save the weights as model.safetensors",
        ) from error
    try:
        _check_container(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except UnpicklingError as error:
        # torch's text goes on to say how to load it unsafely: only the name it blames is passed on
        blamed = re.search(r"(?i)unsupported (?:global|class|operand):?[\w :.]{0,80}", str(error))
        raise _refused(path, f"torch's restricted reader refuses it{f' ({blamed[0]})' if blamed else ''}") from error
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"cannot be read: {error.strerror or error}",
            code="file_unreadable",
            where=str(path),
            remedy="Check the file's permissions and the disk",
        ) from error
    except Exception as error:  # a crafted or broken pickle ends in whatever its opcodes meet
        raise CheckpointError(
            f"not a file that torch can read: {(str(error) or type(error).__name__).splitlines()[0][:200]}",
            code="pickle_broken",
            where=str(path),
            remedy="Copy or download it again",
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise _refused(path, "it does not hold a map of tensors by name")
    for name, tensor in content.items():
        if not isinstance(tensor, torch.Tensor):
            raise _refused(path, f"`{name[:80]}` is a {type(tensor).__name__}, not a tensor")
        is_ordinary = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        # more elements than bytes behind them: a tiny file would become a huge tensor
        if not is_ordinary or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise _refused(path, f"`{name[:80]}` is not an ordinary dense tensor")
    return {name: tensor.detach() for name, tensor in content.items()}


def _check_container(path: Path) -> None:
    """Refuses a Git LFS pointer and a zip with compressed parts, which could unfold to any size; torch writes none."""
    with open_file(path) as file:
        refuse_lfs_pointer(path, file.read(len(LFS_POINTER)))
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                raise _refused(path, "its parts are compressed")


def _dtype(tensor: Any) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return DTYPES.get(name, name)


def _refused(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"not read: {what}", code="pickle_refused", where=str(path), remedy=CONVERT)
