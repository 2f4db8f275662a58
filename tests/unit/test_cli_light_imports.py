"""Runs made elsewhere can be read on a laptop: reading needs neither torch nor transformers nor vllm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthetic_run import write_run

HEAVY = ("torch", "transformers", "vllm", "streamlit")
CHECK = f"""
heavy = [name for name in {HEAVY} if name in sys.modules]
assert not heavy, heavy
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys\n" + code + CHECK], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    "module", ["probes", "probes.record", "driftscope", "driftscope.cli", "driftscope.runs", "driftscope.summary"]
)
def test_imports(module: str) -> None:
    result = _run(f"import {module}")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "show --help",
        "show RUN",
        "show RUN --json",
        "advise RUN",
        "report RUN -o OUT",
        "compare --help",
        "compare RUN --by drafter",
        "compare RUN --by drafter --markdown",
        "compare RUN --by drafter --json",
        "runs list FOLDER",
        "runs verify RUN",
        "runs recover RUN",
        "schema show",
    ],
)
def test_commands(arguments: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.drift")
    filled = [
        {"RUN": str(run), "FOLDER": str(tmp_path), "OUT": str(tmp_path / "r.html")}.get(word, word)
        for word in arguments.split()
    ]
    result = _run(f"import driftscope.cli\nassert driftscope.cli.main({filled!r}) == 0\n")
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_help_reads_no_data_libraries() -> None:
    """`--help` is quick because nothing that computes is imported."""
    result = _run(
        "import driftscope.cli\ndriftscope.cli.main(['--help'])\n"
        "data = [name for name in ('pyarrow', 'duckdb', 'scipy', 'pandas') if name in sys.modules]\n"
        "assert not data, data\n"
    )
    assert result.returncode == 0, result.stderr
