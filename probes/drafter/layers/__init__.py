"""Decoder layers of drafters, one module a family, one row here; Triton kernels beside them for a CUDA device.

A layer projects, is attended from outside, and finishes. It owns its scale, head sizes and rotary embedding. Knows no
chain and no cache. `probes.checkpoint.families` has the row on its files.
"""

from __future__ import annotations

from probes.drafter.layers.llama import LlamaDrafterLayer
from probes.drafter.layers.qwen3 import Qwen3DrafterLayer

LAYER_FAMILIES: dict[str, type[LlamaDrafterLayer]] = {"llama": LlamaDrafterLayer, "qwen3": Qwen3DrafterLayer}
