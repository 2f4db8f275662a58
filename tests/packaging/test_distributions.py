"""What is in the wheel and in the sdist, and that one makes the other."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import CHECKOUT, build, install

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
        *(".ci", "app", "benchmarks", "docs", "driftscope", "probes", "sample_prompts", "tests", "training"),
        *("LICENSE", "Makefile", "PKG-INFO", "constraints.txt", "pyproject.toml", ".gitignore"),
        *(path.name for path in CHECKOUT.glob("*.md")),
        *(path.name for path in CHECKOUT.glob("*.mk")),
    }
    assert {"LICENSE", "README.md", "pyproject.toml", "tests/conftest.py", "app/streamlit_app.py"} <= names
    assert sdist.stat().st_size < MAX_WHEEL_BYTES


def test_the_sdist_has_every_file_of_the_repository(sdist: Path) -> None:
    """So that `make test` and every other target do in it what they do in a clone."""
    if not (CHECKOUT / ".git").exists():
        pytest.skip("this is no clone: which files are the repository's cannot be asked")
    asked = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    tracked = {name for name in asked.stdout.split("\0") if name and (CHECKOUT / name).exists()}
    assert {"benchmarks/intervals.py", ".ci/run", "tests/unit/test_stats_family.py"} <= tracked
    with tarfile.open(sdist) as file:
        names = {member.name.partition("/")[2] for member in file.getmembers() if member.isfile()}
    assert tracked - names == set()


def test_unit_tests_and_linter_run_in_the_unpacked_sdist(sdist: Path, scratch: Path) -> None:
    """As `make test` does there; all tests are collected that need no torch."""
    with tarfile.open(sdist) as file:
        file.extractall(scratch / "source", filter="data")
    source = scratch / "source" / "driftscope-0.1.0"
    tools = ("pytest>=8.3", "hypothesis>=6.120", "jsonschema>=4.20", "ruff>=0.14")
    installed = install(scratch, "of-sdist", str(source), *tools)
    options = ("-q", "-p", "no:cacheprovider", "--rootdir", source, "-c", source / "pyproject.toml")
    collected = installed.run("python", "-m", "pytest", *options, "--collect-only", source / "tests" / "unit")
    assert int(collected.split(" tests collected")[0].split()[-1]) > 1_000
    ran = installed.run("python", "-m", "pytest", *options, source / "tests" / "unit" / "test_stats_family.py")
    assert " passed" in ran
    assert installed.run("ruff", "check", "--no-cache", source) == "All checks passed!\n"
