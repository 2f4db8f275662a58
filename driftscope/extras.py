"""What must be installed beside the base package before something heavy begins."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from probes.errors import InputError


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
