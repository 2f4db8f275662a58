"""The packages that measuring needs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from probes.errors import InputError

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pyarrow")


def need_probe_extra() -> None:
    """Raises InputError when the packages that measuring needs are not installed."""
    for name in ("torch", "transformers", "safetensors"):
        try:
            version(name)
        except PackageNotFoundError as error:
            raise InputError(
                f"measuring needs {name}, which is not installed",
                code="probe_extra_missing",
                remedy="pip install 'driftscope[probe]'",
            ) from error


def package_versions() -> dict[str, str]:
    """Versions of what a run's numbers depend on; Triton where it is installed."""
    from probes.attention.kernel import has_triton

    return {name: version(name) for name in (*PACKAGES, *(("triton",) if has_triton() else ()))}
