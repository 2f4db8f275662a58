"""What is in the wheel and in the sdist, and that one makes the other."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from pathlib import Path

from tests.packaging.conftest import CHECKOUT, build

DATA = {"driftscope/_app": "app", "driftscope/_sample_prompts": "sample_prompts"}
MAX_WHEEL_BYTES = 40_000_000  # the demo drafters have at most 36 MB


def contents(wheel: Path) -> dict[str, str]:
    """sha256 by name."""
    with zipfile.ZipFile(wheel) as file:
        return {name: hashlib.sha256(file.read(name)).hexdigest() for name in file.namelist()}


def files_in(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_two_packages_and_no_top_level_app(wheel: Path) -> None:
    names = contents(wheel)
    assert {name.split("/")[0] for name in names} == {"driftscope", "probes", "driftscope-0.1.0.dist-info"}
    assert not any("__pycache__" in name for name in names)
    assert {"driftscope-0.1.0.dist-info/licenses/LICENSE", "driftscope/__init__.py", "probes/__init__.py"} <= set(names)
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


def test_app_prompts_and_demo_drafters_travel_as_data(wheel: Path) -> None:
    names = contents(wheel)
    for inside, outside in DATA.items():
        packed = {name.removeprefix(inside + "/") for name in names if name.startswith(inside + "/")}
        assert packed == files_in(CHECKOUT / outside)
    assert {"driftscope/_app/streamlit_app.py", "driftscope/_app/.streamlit/config.toml"} <= set(names)
    assert {"driftscope/_sample_prompts/user_turns.jsonl", "driftscope/_sample_prompts/LICENSE"} <= set(names)
    for drafter in ("eagle3", "eagle3.1"):
        for name in ("config.json", "model.safetensors", "README.md"):
            assert f"driftscope/_demo_drafters/{drafter}/{name}" in names


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, scratch: Path) -> None:
    with tarfile.open(sdist) as file:
        file.extractall(scratch / "unpacked", filter="data")
    again = build("--wheel", scratch / "unpacked" / "driftscope-0.1.0", scratch / "wheel-of-sdist")
    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


def test_the_sdist_has_sources_and_tests_and_nothing_that_lies_around(sdist: Path) -> None:
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    top = {name.split("/")[0] for name in names}
    assert top <= {
        *("app", "docs", "driftscope", "probes", "sample_prompts", "tests", "training"),
        *("LICENSE", "Makefile", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml", ".gitignore"),
        *(path.name for path in CHECKOUT.glob("*.mk")),
    }
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py", "app/streamlit_app.py"} <= names
    assert sdist.stat().st_size < MAX_WHEEL_BYTES
