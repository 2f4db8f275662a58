"""What the app may import, name by name; import-linter holds the order app -> driftscope -> probes.

The app takes numbers from driftscope. Of probes it takes what both sides speak with: errors,
the names of what is recorded, and how files of others are opened. Nothing that measures.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "app").rglob("*.py"))
OF_PROBES = {"probes.errors", "probes.record", "probes.regular_file"}
OTHERS = {"driftscope", "driftscope_app", "numpy", "plotly", "pyarrow", "pydantic", "starlette", "streamlit"}
MEASURING = ("driftscope.measure", "driftscope.vllm_plugin", "driftscope.cli", "driftscope.bench")


def imported(file: Path) -> set[str]:
    """Full names of all modules that a file imports, also inside functions; `from a import b` counts as both."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "Streamlit runs pages as scripts: no relative imports"
            names |= {str(node.module)}
    return names


def faults(names: set[str]) -> set[str]:
    """What the app may not import."""
    allowed = OTHERS | set(sys.stdlib_module_names) | {"__future__"}
    foreign = {name for name in names if name.split(".")[0] not in allowed} - OF_PROBES
    return foreign | {name for name in names if name.startswith(MEASURING)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_app_imports_what_it_may(file: Path) -> None:
    assert faults(imported(file)) == set()


@pytest.mark.parametrize(
    "line",
    [
        *(
            "import torch",
            "from transformers import AutoModel",
            "import vllm.engine",
            "from probes.job.loaded import load",
        ),
        *("from probes import target", "import probes", "from driftscope.measure import measure"),
        "import driftscope.cli.app",
    ],
)
def test_what_it_may_not_import_is_found(tmp_path: Path, line: str) -> None:
    file = tmp_path / "page.py"
    file.write_text(f"def later():\n    {line}\n")
    assert len(faults(imported(file))) == 1


def test_the_app_was_found() -> None:
    assert {"streamlit_app.py", "door.py", "overview.py"} <= {file.name for file in FILES}
