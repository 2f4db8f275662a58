"""A path is a name, never a pattern: commands read the run that they were given, beside one that it would match."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from driftscope.cli import main
from tests.synthetic_run import make_records, write_run

NAMES = [
    "a[b]",
    "a*",
    "a?",
    "{a,b}",
    "[!x]b",
    "q'u\"o;te",
    "two\nlines",
    "a%20b",
    "~",
    "s3:",
    "\\*",
    os.fsdecode(b"bad\xff"),
]
NUM_PROMPTS = 3
NUM_ROUNDS = NUM_PROMPTS * 2 * 2 * 29  # two system prompts, two drafters


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("originals")
    return (
        write_run(folder / "own.drift", make_records(num_prompts=NUM_PROMPTS)),
        write_run(folder / "other.drift", make_records(num_prompts=5, seed=9)),
    )


@pytest.fixture(params=NAMES, ids=ascii)
def run(request: pytest.FixtureRequest, tmp_path: Path, originals: tuple[Path, Path]) -> Path:
    """A run under a folder and a name of this kind; siblings `ab` and `ac` match the patterns among them."""
    own, other = originals
    folder = tmp_path / request.param
    for sibling in ("ab", "ac", "xb", "a b"):
        shutil.copytree(other, tmp_path / sibling / f"{sibling}.drift")
        shutil.copytree(other, folder / f"{sibling}.drift")
    shutil.copytree(own, folder / f"{request.param}.drift")
    return folder / f"{request.param}.drift"


def told(capfd: pytest.CaptureFixture[str], *arguments: str | Path, exit_code: int = 0) -> dict[str, object]:
    """What a command prints with --json."""
    assert main([*map(str, arguments), "--json"]) == exit_code
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    return dict(json.loads(out))


def test_every_command_reads_the_named_run(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    shown = told(capfd, "show", run)
    assert [c["num_prompts"] for c in shown["conditions"]] == [NUM_PROMPTS] * 4  # type: ignore[attr-defined]
    assert shown["run"]["path"] == str(run)  # type: ignore[index]
    verified = told(capfd, "runs", "verify", run)
    assert verified["is_sound"] is True
    checked = {check["name"]: check["num_checked"] for check in verified["checks"]}  # type: ignore[attr-defined]
    assert checked["round_ids_unique"] == NUM_ROUNDS
    assert told(capfd, "runs", "recover", run)["counts"]["num_rounds"] == NUM_ROUNDS  # type: ignore[index]
    told(capfd, "advise", run)
    told(capfd, "diagnose", run, "--no-interventions", exit_code=1)
    told(capfd, "report", run, "-o", out / "r.html")
    exported = told(capfd, "export", run, "--to", "csv", "-o", out / "tables")
    assert sum(file["num_rows"] for file in exported["files"] if "rounds" in file["path"]) == NUM_ROUNDS  # type: ignore[attr-defined]
    assert len((out / "tables" / "rounds.csv").read_text().splitlines()) == NUM_ROUNDS + 1
    other = run.with_name("ab.drift")
    compared = told(capfd, "compare", other, run)
    assert {cell["num_paired"] for cell in compared["cells"]} == {NUM_PROMPTS}  # type: ignore[attr-defined]


def test_text_and_a_table_beside_the_run(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is written goes to the name that was given, too."""
    for arguments in (
        ["show"],
        ["runs", "verify"],
        ["runs", "recover"],
        ["advise"],
        ["compare", str(run.with_name("ab.drift"))],
    ):
        assert main([*arguments, str(run)]) == 0, arguments
    assert main(["report", str(run), "-o", str(run.with_suffix(".html"))]) == 0
    is_utf8 = str(run).isprintable() or "\n" in str(run)  # duckdb writes to such a name only
    assert main(["export", str(run), "--to", "parquet", "-o", str(run.with_suffix(".tables"))]) == (0 if is_utf8 else 2)
    if is_utf8:
        assert sorted(os.listdir(run.with_suffix(".tables"))) == ["depths.parquet", "rounds.parquet"]
    _, err = capfd.readouterr()
    assert "Traceback" not in err


def test_the_list_shows_all(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    listed = told(capfd, "runs", "list", run.parent)
    rows = {row["name"]: row for row in listed["runs"]}  # type: ignore[attr-defined]
    name = run.stem.encode("utf-8", "backslashreplace").decode()
    assert set(rows) == {"ab", "ac", "xb", "a b", name}
    if name == run.stem:
        assert (rows[name]["num_rounds"], rows[name]["error"]) == (NUM_ROUNDS, None)
    else:
        assert "not UTF-8" in rows[name]["error"]
    assert main(["runs", "list", str(run.parent)]) == 0
