"""The workflow of docs/compare.md: its commands are understood, and its step Compare does what the page says."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from driftscope.cli import app
from tests.unit.compare_runs import equal, worse_in, write

PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


@pytest.fixture(scope="module")
def steps() -> dict[str, dict[str, Any]]:
    """The named steps of the page's workflow."""
    [block] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [job] = yaml.safe_load(block)["jobs"].values()
    assert job["defaults"]["run"]["shell"] == "bash"
    return {step["name"]: step for step in job["steps"] if "name" in step}


def commands(script: str) -> list[list[str]]:
    """Every driftscope command of a script, in words."""
    lines = script.replace("\\\n", " ").splitlines()
    return [shlex.split(line.split("|")[0]) for line in lines if line.strip().startswith("driftscope ")]


@pytest.mark.parametrize(
    "name", ["The wiring first", "The same questions under the old and the new system prompt", "Compare"]
)
def test_every_option_exists(steps: dict[str, dict[str, Any]], name: str) -> None:
    group: Any = typer.main.get_command(app)
    found = commands(steps[name]["run"])
    assert found
    for _, command, *arguments in found:
        context = group.commands[command].make_context(command, arguments)
        assert context.params["json"] is False


def test_every_command_of_the_page_is_understood() -> None:
    group: Any = typer.main.get_command(app)
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    words = [shlex.split(line) for block in blocks for line in block.splitlines() if "--fail-if" in line]
    assert len(words) == 2
    for _, command, *arguments in words:
        assert len(group.commands[command].make_context(command, arguments).params["runs"]) == 2


@pytest.mark.parametrize(("loss", "code", "title"), [(0.6, 1, "gate failed"), (0.0, 0, "gate passed")])
def test_compare_fails_on_a_certain_loss_and_writes_the_summary(
    steps: dict[str, dict[str, Any]], tmp_path: Path, loss: float, code: int, title: str
) -> None:
    accepted = worse_in({("drafter", "new", 0): loss}) if loss else equal
    write(
        tmp_path / "acceptance.drift", accepted, drafters=("drafter",), system_prompts=("old", "new"), prompts=range(24)
    )
    summary = tmp_path / "summary.md"
    summary.write_text("of an earlier step\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps["Compare"]["run"]],  # as GitHub's shell: bash
        cwd=tmp_path,
        env=os.environ | {"GITHUB_STEP_SUMMARY": str(summary), "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == code, result.stderr
    written = (tmp_path / "comparison.md").read_text()
    assert summary.read_text() == "of an earlier step\n" + written
    assert written.startswith(f"### driftscope compare: {title}\n")
    assert written.count("\n| ") == 3  # head, rule, the one cell
