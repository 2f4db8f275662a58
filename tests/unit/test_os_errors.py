"""What the operating system refuses is one message and exit code 2, in every command: no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.cli import main
from driftscope.runs import read_run
from tests.synthetic_run import write_run

REPOSITORY = Path(__file__).parents[2]
METRICS = REPOSITORY / "tests/fixtures/exchange/metrics.prom"
READERS = (
    ["show"],
    ["diagnose", "--no-interventions"],
    ["advise"],
    ["report"],
    ["export", "--to", "csv"],
    ["runs", "verify"],
    ["runs", "recover"],
    ["compare"],
)


def _said(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says as it fails: one message, as text and as one JSON object."""
    assert main(command) == 2, command
    text = capsys.readouterr().err
    assert text.startswith("error: "), text
    assert "Traceback" not in text
    assert text.count("error: ") == 1
    assert main([*command, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"]
    return text


def _command(words: list[str], path: Path, tmp_path: Path) -> list[str]:
    if words == ["compare"]:
        return ["compare", str(path), str(path)]
    out = ["-o", str(tmp_path / "out")] if words[0] in ("report", "export") else []
    return [*words, str(path), *out]


@pytest.mark.parametrize("words", READERS, ids=lambda words: " ".join(words))
@pytest.mark.parametrize("kind", ["a file", "too long", "below a file", "a loop", "a dangling link", "missing"])
def test_a_path_that_is_no_run(kind: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.drift"
    if kind == "a file":
        path.write_text("no run")
    elif kind == "too long":
        path = tmp_path / ("x" * 300 + ".drift")
    elif kind == "below a file":
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "a.drift"
    elif kind == "a loop":
        path.symlink_to(path)
    elif kind == "a dangling link":
        path.symlink_to(tmp_path / "nothing")
    said = _said(_command(words, path, tmp_path), capsys)
    assert path.name[:50] in said or kind == "below a file"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["/proc/x.drift", "/etc/passwd/x.drift", "/dev/null/x.drift", "x" * 300 + ".drift"])
def test_a_run_that_cannot_be_made_there(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _said(["import", str(METRICS), "-o", out], capsys)


@pytest.mark.parametrize("command", [["report"], ["export", "--to", "csv"]])
@pytest.mark.parametrize("out", ["/proc/x", "/etc/passwd/x", "x" * 300])
def test_a_file_that_cannot_be_made_there(
    command: list[str], out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "a.drift")
    assert _said([*command, str(run), "-o", out], capsys)


def test_a_list_of_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "none", tmp_path / ("x" * 300)):
        assert _said(["runs", "list", str(path)], capsys)


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the kernel refuses the same write."""
    run = write_run(tmp_path / "a.drift")
    rounds = read_run(run).rounds().num_rows
    for command in (["export", str(run), "--to", "csv", "-o", str(tmp_path / "o")], ["runs", "recover", str(run)]):
        code = (
            "import resource, signal, sys; from driftscope.cli import main\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
            "sys.exit(main(sys.argv[1:]))"
        )
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, env=environment)
        assert done.returncode == 2, done.stderr
        assert "File too large" in done.stderr
        assert "Traceback" not in done.stderr
    assert read_run(run).rounds().num_rows == rounds
