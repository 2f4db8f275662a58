"""The registry and what is made of it: stable ids, a page for each, a home for everything that the reader reports."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from driftscope.check.document import pages
from driftscope.check.engines import ENGINES
from driftscope.check.pair import FOUND_BY_CHECKS
from driftscope.check.registry import ENGINE_CHECKS, all_checks, check_of_reader_code
from driftscope.check.rules.files import OTHER
from driftscope.check.table import SETTINGS, short_names

ROOT = Path(__file__).parents[2]
READER = ROOT / "probes" / "checkpoint"
REPORTING = {"report", "_finding", "Finding", "Doubt"}
"""Calls in the reader that make a finding; the code is one of their arguments."""


def test_ids_and_names() -> None:
    checks = all_checks()
    assert len(checks) >= 20
    assert len({c.id for c in checks}) == len({c.name for c in checks}) == len(checks)
    for check in checks:
        assert re.fullmatch(r"DS[1-7]\d\d", check.id)
        assert re.fullmatch(r"[a-z0-9_]+", check.name)
        assert all((check.title, check.why, check.evidence, check.remedy))
        assert check.why.endswith(".")
        assert check.evidence.endswith(".")
        assert not check.title.endswith(".")
        assert not check.remedy.endswith(".")
        assert all(source.startswith("https://") for source in check.sources)


def test_ids_of_the_first_release_stay() -> None:
    """What people have written into their CI; an id may be added, never moved."""
    kept = {
        "DS101": "engine_other_layers",
        "DS102": "aux_ids_ambiguous",
        "DS204": "half_of_eagle31",
        "DS205": "engine_other_feedback",
        "DS207": "engine_other_residual",
        "DS301": "d2t_missing",
        "DS302": "d2t_all_zero",
        "DS303": "d2t_absolute",
        "DS312": "embedding_unlike_target",
        "DS401": "rope_theta_unlike_target",
        "DS409": "positions_below_target",
        "DS412": "engine_other_window",
        "DS504": "tensor_missing",
        "DS511": "engine_skips_tensors",
        "DS701": "coverage_low",
    }
    assert kept.items() <= {c.id: c.name for c in all_checks()}.items()


def test_docs_are_made_of_the_registry() -> None:
    folder = ROOT / "docs" / "checks"
    made = pages()
    assert {path.name for path in folder.iterdir()} == set(made)
    for name, text in made.items():
        assert (folder / name).read_text(encoding="utf-8") == text, "run `python -m driftscope.check.document`"


def _reader_codes() -> set[str]:
    """Every finding's code in the reader's source."""
    codes = set()
    for path in (*READER.glob("*.py"), *(READER / "producers").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if name in REPORTING:
                values = [*node.args, *(k.value for k in node.keywords if k.arg == "code")]
                texts = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
                codes |= {text for text in texts if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", text)}
    return codes


def test_every_code_of_the_reader_has_a_check() -> None:
    codes = _reader_codes()
    assert len(codes) >= 20
    assert {code for code in codes | FOUND_BY_CHECKS if check_of_reader_code(code) is OTHER} == set()
    known = {code for check in all_checks() for code in check.reader_codes}
    source = "".join(path.read_text(encoding="utf-8") for path in READER.rglob("*.py"))
    assert {code for code in known if f'"{code}"' not in source} == set(), (
        "codes that the reader does not have any more"
    )
    assert check_of_reader_code("something_new") is OTHER


def test_every_setting_has_a_check() -> None:
    assert set(ENGINE_CHECKS) == {setting.name for setting in SETTINGS}
    assert set(ENGINE_CHECKS.values()) <= set(all_checks())


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([e.name for e in ENGINES], "vLLM 0.25.1-0.33.0, SGLang, TensorRT-LLM, SafeAILab/EAGLE"),
        (["vLLM 0.25.1 V1", "vLLM 0.25.1 V2"], "vLLM 0.25.1"),
        ([f"vLLM {v} V2" for v in ("0.25.1", "0.26.0", "0.32.0", "0.33.0")], "vLLM 0.25.1-0.33.0 V2"),
        (["vLLM 0.25.1 V1", "vLLM 0.32.0 V1"], "vLLM 0.25.1 V1, vLLM 0.32.0 V1"),
        (["vLLM 0.25.1 V1", "vLLM 0.26.0 V1", "vLLM 0.26.0 V2"], "vLLM 0.25.1 V1, vLLM 0.26.0"),
        (["SafeAILab/EAGLE", "SGLang after PR 24663"], "SGLang after PR 24663, SafeAILab/EAGLE"),
        ([], ""),
    ],
)
def test_short_names(names: list[str], short: str) -> None:
    assert short_names(names) == short
