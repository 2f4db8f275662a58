"""What `driftscope app` starts: Streamlit without its first questions, on this machine, with the allowed names."""

from __future__ import annotations

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from driftscope.cli import main


class Ended:
    """A server that has ended with a code."""

    def __init__(self, code: int) -> None:
        self.code = code

    def wait(self) -> int:
        return self.code


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was started, in place of starting it."""
    seen: list[list[str]] = []

    def popen(command: list[str]) -> Ended:
        seen.append(command)
        return Ended(0)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    return seen


def test_nothing_is_asked_and_only_this_machine_is_served(commands: list[list[str]], tmp_path: Path) -> None:
    assert main(["app", str(tmp_path), "--port", "8765"]) == 0
    [command] = commands
    pairs = list(pairwise(command))
    for pair in [
        ("--server.showEmailPrompt", "false"),
        ("--logger.hideWelcomeMessage", "true"),  # it prints an address without the token
        ("--browser.gatherUsageStats", "false"),
        ("--server.address", "127.0.0.1"),
        ("--server.headless", "false"),
        ("--runs", str(tmp_path)),
    ]:
        assert pair in pairs
    assert "--allow-host" not in command
    assert "token" not in " ".join(command)


def test_allowed_names_are_handed_on(commands: list[list[str]], tmp_path: Path) -> None:
    names = ["driftscope.example.org", "gpu-box", "10.0.0.7", "::1"]
    options = [word for name in names for word in ("--allow-host", name)]
    assert main(["app", str(tmp_path), "--no-browser", "--host", "0.0.0.0", *options]) == 0
    [command] = commands
    own = command[command.index("--") + 1 :]
    assert [name for word, name in pairwise(own) if word == "--allow-host"] == names
    assert ("--server.address", "0.0.0.0") in pairwise(command)
    assert ("--server.headless", "true") in pairwise(command)


@pytest.mark.parametrize("name", ["https://x.org", "x.org:443", "x.org/", "*", "*.x.org", "", "-x", "a b", "x.org."])
def test_what_is_no_name_is_refused(commands: list[list[str]], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["app", f"--allow-host={name}"]) == 2
    assert "this is not a host name" in capsys.readouterr().err
    assert commands == []


def test_a_server_that_a_signal_ended_ends_as_a_shell_says(
    commands: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda command: Ended(-15))
    assert main(["app", str(tmp_path)]) == 143
