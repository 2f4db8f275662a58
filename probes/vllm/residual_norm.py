"""The norm of the residual stream before the drafter's final norm, where the drafter itself returns only the normed state.

An opaque operator beside `model.norm`: `torch.compile` keeps it, CUDA graphs capture it, and it changes no value. It
must be there before compilation. Knows no runner.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("driftscope", "FRAGMENT")
_library.define("residual_norm(Tensor branch, Tensor residual, Tensor(a!) out) -> ()")


def _residual_norm(branch: Tensor, residual: Tensor, out: Tensor) -> None:
    if branch.device.type == "cuda":
        from probes.vllm.norms_triton import residual_norms

        residual_norms(branch, residual, out)
    else:
        torch.linalg.vector_norm(branch.float() + residual.float(), dim=-1, out=out[: len(branch)])


_library.impl("residual_norm", _residual_norm, "CompositeExplicitAutograd")
torch.library.register_fake("driftscope::residual_norm", lambda branch, residual, out: None, lib=_library)


def record_residual_norm(norm: Any, max_num_tokens: int) -> Tensor:
    """From now on each call `norm(branch, residual)` leaves ||branch + residual|| of its tokens -> float32 [token]."""
    device = norm.weight.device
    norm.register_buffer(
        "driftscope_residual_norm", torch.zeros(max_num_tokens, dtype=torch.float32, device=device), persistent=False
    )
    kind = type(norm)

    class RecordedNorm(kind):  # type: ignore[misc, valid-type]
        def forward(self, branch: Tensor, residual: Tensor | None = None) -> Any:
            if residual is not None:
                torch.ops.driftscope.residual_norm(branch, residual, self.driftscope_residual_norm)
            return kind.forward(self, branch, residual)

    norm.__class__ = RecordedNorm
    written: Tensor = norm.driftscope_residual_norm
    return written
