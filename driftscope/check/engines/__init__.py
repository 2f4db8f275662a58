"""What each engine makes of the same files: one small file per engine, exporting `ENGINES`.

An engine file says which sources and versions were read; what they do not show is `unknown`, never guessed. It knows no
check and no other engine.
"""

from __future__ import annotations

from driftscope.check.engines import safeailab, sglang, tensorrt_llm, vllm
from driftscope.check.engines.engine import Engine, Reading

ENGINES = (*vllm.ENGINES, *sglang.ENGINES, *tensorrt_llm.ENGINES, *safeailab.ENGINES)

__all__ = ["ENGINES", "Engine", "Reading"]
