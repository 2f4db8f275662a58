"""`driftscope check` from the command line: exit codes, one JSON object, text for 100 columns, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from driftscope.check.registry import all_checks
from driftscope.cli import main
from driftscope.cli.schema import OUTPUTS, model_of
from tests.check_pairs import IDS, Settings, write_drafter, write_target
from tests.checkpoint_writers import Arrays

HEAVY = ("torch", "transformers", "vllm", "safetensors", "pandas")


def _fault(settings: Settings, arrays: Arrays) -> None:
    arrays["d2t"] = np.zeros_like(arrays["d2t"])
    settings[IDS] = [3, 7, 10]
    settings["rms_norm_eps"] = 1e-6


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(write_target(tmp_path / "target"))


@pytest.fixture
def sound(tmp_path: Path) -> str:
    return str(write_drafter(tmp_path / "eagle3"))


@pytest.fixture
def broken(tmp_path: Path) -> str:
    return str(write_drafter(tmp_path / "broken-eagle3", fault=_fault))


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_exit_codes(target: str, sound: str, broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", target, sound]) == 0
    assert main(["check", target, broken]) == 1
    assert main(["check", target, sound + "-missing"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "Traceback" not in error


def test_json_follows_its_schema(target: str, sound: str, broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    for drafter, code in ((sound, 0), (broken, 1)):
        found, output = _json(capsys, "check", target, drafter)
        assert found == code
        assert output["is_clean"] == (code == 0)
        assert main(["schema", "check"]) == 0
        schema = json.loads(capsys.readouterr().out)
        jsonschema.validate(output, schema)
        assert set(output) == set(schema["properties"])
        assert output["schema_version"] == 1
    assert [f["id"] for f in output["findings"]][:2] == ["DS302", "DS306"]


def test_a_list_of_checks(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = _json(capsys, "check", "--list")
    assert code == 0
    jsonschema.validate(output, model_of(OUTPUTS["check list"]).model_json_schema(mode="serialization"))
    assert [item["id"] for item in output["checks"]] == [check.id for check in all_checks()]
    assert all(Path(item["page"]).is_file() for item in output["checks"])  # tests run at the top of the checkout
    assert main(["check", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(check.id in text for check in all_checks())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "argument_missing"),
        (["TARGET"], "argument_missing"),
        (["TARGET", "NOWHERE"], "checkpoint_not_found"),
        (["NOWHERE", "DRAFTER"], "checkpoint_not_found"),
        (["TARGET", "demo:none"], "no_such_demo_drafter"),
        (["TARGET", "DRAFTER", "--prompts", "NOWHERE"], None),
        (["TARGET", "DRAFTER", "--no-such-option"], "usage"),
    ],
)
def test_mistakes(
    target: str, sound: str, arguments: list[str], code: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"TARGET": target, "DRAFTER": sound, "NOWHERE": "/no/such/place"}
    found, output = _json(capsys, "check", *(places.get(word, word) for word in arguments))
    assert found == 2
    jsonschema.validate(output, model_of(OUTPUTS["error"]).model_json_schema())
    assert code is None or output["error"]["code"] == code
    assert output["error"]["remedy"]


def test_text_fits_100_columns_and_reads_worst_first(
    target: str, broken: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    main(["check", target, broken])
    text = capsys.readouterr().out
    own_lines = [line for line in text.splitlines() if target not in line and broken not in line]
    assert max(map(len, own_lines)) <= 100
    order = [
        text.index(word) for word in ("Findings", "DS302", "DS101", "DS212", "\nSettings", "\nlayer_ids", "Not checked")
    ]
    assert order == sorted(order)
    assert "2 errors, 3 warnings, 2 notes" in text


def test_coverage_comes_after_the_settings(
    target: str, sound: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(40)} | {"[red]": 39}, unk_token="w0"))
    tokenizer.save(str(Path(target) / "tokenizer.json"))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        json.dumps({"messages": [{"role": "user", "content": "w1"}], "category": "[bold]x[/bold]"}) + "\n"
    )
    assert main(["check", target, sound, "--prompts", str(prompts), "--prompt-format", "openai-chat"]) == 0
    text = capsys.readouterr().out
    assert text.index("Settings") < text.index("Vocabulary coverage") < text.index("Not checked")
    assert "[bold]x[/bold]" in text  # shown, not obeyed


def test_hostile_names_are_shown_not_obeyed(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fault(_settings: Settings, arrays: Arrays) -> None:
        arrays["[red]x\x1b[31m</b>"] = np.ones(2, np.float32)

    drafter = write_drafter(tmp_path / "eagle3-[bold]", fault=fault)
    assert main(["check", target, str(drafter)]) == 1
    text = capsys.readouterr().out
    assert "eagle3-[bold]" in text
    assert "[red]x" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("arguments", ["check TARGET DRAFTER", "check TARGET DRAFTER --json", "check --list"])
def test_neither_torch_nor_transformers(target: str, broken: str, arguments: str) -> None:
    words = [{"TARGET": target, "DRAFTER": broken}.get(word, word) for word in arguments.split()]
    code = f"""
import sys
import driftscope.cli
assert driftscope.cli.main({words!r}) == {0 if "--list" in words else 1}
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout
