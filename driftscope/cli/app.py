"""`driftscope app [DIR]`: the app on a folder of runs, as a process of its own (`python -m streamlit run`).

Knows nothing of the app but where it lies; streamlit is never imported here.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from driftscope.cli.console import INTERRUPTED
from probes.errors import InputError

DEFAULT_RUNS = Path("runs")
HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


def app_folder() -> Path:
    """The folder of streamlit_app.py: packaged in a wheel, at the top of a checkout."""
    package = Path(__file__).parent.parent
    for folder in (package / "_app", package.parent / "app"):
        if (folder / "streamlit_app.py").is_file():
            return folder
    raise InputError(
        "the app is missing from this installation", code="no_app", where=str(package), remedy="Reinstall driftscope."
    )


def app(
    runs: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of runs.")] = DEFAULT_RUNS,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; all but the default are for a proxy that encrypts. See docs/app.md."),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Answer requests for this host name too, for instance a proxy's. Repeatable."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to listen on. [8501, or the next free]")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> int:
    """Look at runs in the browser: compare, depth, heads, fusion, context, rounds; start probes."""
    if find_spec("streamlit") is None:
        raise InputError(
            "the app needs streamlit, which is not installed",
            code="app_extra_missing",
            remedy="pip install 'driftscope[app]'",
        )
    if runs.exists() and not runs.is_dir():
        raise InputError("this is a file", code="folder_not_found", where=str(runs), remedy="Give a folder of runs.")
    for name in allow_host or ():
        if not _is_host(name):
            raise InputError(
                "this is not a host name",
                code="bad_host",
                where=name,
                remedy="Give the name alone, without https:// and port, for instance driftscope.example.org.",
            )
    command = [
        *(sys.executable, "-m", "streamlit", "run", str(app_folder())),
        *("--server.address", host),
        *("--server.headless", "false" if browser else "true"),
        *("--server.showEmailPrompt", "false"),
        *("--logger.hideWelcomeMessage", "true"),
        *("--browser.gatherUsageStats", "false"),
        *(("--server.port", str(port)) if port is not None else ()),
        *("--", "--runs", str(runs.resolve())),
        *(word for name in allow_host or () for word in ("--allow-host", name)),
    ]
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())  # whoever ends this ends the server too
    try:
        code = process.wait()
        return code if code >= 0 else 128 - code  # as a shell says it of one that a signal ended
    except KeyboardInterrupt:  # the terminal has sent it to streamlit too, which then ends by itself
        process.wait()
        return INTERRUPTED


def _is_host(name: str) -> bool:
    try:
        return bool(HOST_NAME.fullmatch(name) or ip_address(name))
    except ValueError:
        return False
