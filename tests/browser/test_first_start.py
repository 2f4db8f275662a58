"""The app on a machine that has never seen Streamlit: an empty HOME, with and without a terminal, and who gets in then."""

from __future__ import annotations

import http.client
import os
import pty
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import DRIFTSCOPE, ROOT, Started, free_port, printed_address

STARTS = {
    "driftscope app": [*DRIFTSCOPE, "app", "RUNS", "--port", "PORT"],
    "streamlit run app": [
        *(
            sys.executable,
            "-m",
            "streamlit",
            "run",
            str(ROOT / "app"),
            "--server.port",
            "PORT",
            "--server.headless",
            "false",
        ),
        *("--", "--runs", "RUNS"),
    ],
}
OPENER = """#!/bin/sh
file="${1#file://}"
stat -c '%a %n' "$file" "$(dirname "$file")" > "$OPENED.part"
cat "$file" >> "$OPENED.part"
tr '\\0' ' ' < /proc/$$/cmdline > "$OPENED.words"
mv "$OPENED.part" "$OPENED"
"""


@contextmanager
def started(
    start: str, runs: Path, folder: Path, *, has_terminal: bool
) -> Iterator[tuple[Started, subprocess.Popen[bytes]]]:
    """The app, started as a new user does: nothing in HOME, the browser not turned off."""
    home, tools = folder / "home", folder / "tools"
    home.mkdir()
    tools.mkdir()
    opener = tools / "xdg-open"  # stands for the desktop's: says what it was given
    opener.write_text(OPENER)
    opener.chmod(0o755)
    environment = {
        **{"HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}", "OPENED": str(folder / "opened")},
        **{name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ},
    }
    command = [{"RUNS": str(runs), "PORT": str(free_port())}.get(word, word) for word in STARTS[start]]
    said = bytearray()
    if has_terminal:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
    else:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        ours = process.stdout.fileno()

    def listen() -> None:
        while True:
            try:
                content = os.read(ours, 4096)
            except OSError:  # a terminal whose last user has ended
                return
            if not content:
                return
            said.extend(content)

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield printed_address(process, lambda: bytes(said)), process
    finally:
        process.terminate()
        process.wait(60)
        assert b"Email" not in said
        assert b"Traceback" not in said


@pytest.mark.parametrize("has_terminal", [True, False], ids=["terminal", "no terminal"])
@pytest.mark.parametrize("start", STARTS)
def test_the_first_start_opens_the_app(
    browser: Browser, runs: Path, tmp_path: Path, start: str, has_terminal: bool
) -> None:
    with started(start, runs, tmp_path, has_terminal=has_terminal) as (app, _):
        context = browser.new_context()
        page = context.new_page()
        answer = page.goto(app.url)
        assert answer is not None
        assert answer.status == 403
        expect(page.get_by_role("heading", level=1)).to_have_text("This app wants its token")
        page.goto(app.address)
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        assert app.token not in page.url
        [cookie] = [c for c in context.cookies() if c["value"] == app.token]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        page.goto(f"{app.url}/compare")
        expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
        context.close()


def test_the_browser_is_opened_with_the_token_and_no_argument_shows_it(runs: Path, tmp_path: Path) -> None:
    with started("driftscope app", runs, tmp_path, has_terminal=False) as (app, process):
        opened = tmp_path / "opened"
        for _ in range(600):
            if opened.exists():
                break
            assert process.poll() is None
            threading.Event().wait(0.1)
        modes, content = opened.read_text().splitlines()[:2], opened.read_text().splitlines()[2]
        assert [line.split()[0] for line in modes] == ["600", "700"]
        assert f"url={app.address}" in content
        assert app.token not in (tmp_path / "opened.words").read_text()
        for other in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = other.read_bytes()
            except OSError:
                continue
            assert app.token.encode() not in words
        file = Path(modes[0].split(maxsplit=1)[1])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not file.exists()


REQUESTS = (
    *(
        ("GET", path)
        for path in ("/", "/compare", "/static/index.js", "/media/x", "/_stcore/health", "/_stcore/stream")
    ),
    *(("GET", path) for path in ("/_stcore/host-config", "/_stcore/script-health-check", "/component/x/index.html")),
    *(("PUT", "/_stcore/upload_file/a/b"), ("DELETE", "/_stcore/upload_file/a/b"), ("OPTIONS", "/_stcore/health")),
)
UPGRADE = {
    **{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"},
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def status(app: Started, method: str, path: str, **headers: str) -> int:
    """The answer's status line."""
    place = urlsplit(app.url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse().status
    connection.close()
    return answer


@pytest.mark.parametrize("method_path", REQUESTS, ids=" ".join)
def test_nothing_of_a_running_app_is_seen_by_others(app: Started, method_path: tuple[str, str]) -> None:
    port = urlsplit(app.url).port
    cookie = f"driftscope-{port}={app.token}"
    assert status(app, *method_path) == 403
    assert status(app, *method_path, Host=f"evil.example:{port}", Cookie=cookie) == 403
    assert status(app, *method_path, Cookie=cookie, Origin=f"http://127.0.0.1:{port + 1 if port else 1}") == 403
    assert status(app, *method_path, Cookie=cookie) != 403 or method_path[0] in (
        "PUT",
        "DELETE",
    )  # XSRF, Streamlit's own


def test_the_websocket_is_behind_the_door(app: Started) -> None:
    port = urlsplit(app.url).port
    cookie = f"driftscope-{port}={app.token}"
    evil = {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"}
    assert status(app, "GET", "/_stcore/stream", **UPGRADE) == 403
    assert status(app, "GET", "/_stcore/stream", **UPGRADE, **evil) == 403
    assert status(app, "GET", "/_stcore/stream", **UPGRADE, **evil, Cookie=cookie) == 403
    assert status(app, "GET", "/_stcore/stream", **UPGRADE, Cookie=cookie, Origin="http://127.0.0.1:1") == 403
    assert status(app, "GET", "/_stcore/stream", **UPGRADE, Cookie=cookie, Origin=app.url) == 101
