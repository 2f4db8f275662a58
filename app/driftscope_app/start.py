"""The start of the server: its door, the address that it prints, the browser that it opens.

Knows no run. Runs once in the server's process, before the first page.
"""

from __future__ import annotations

import contextlib
import html
import tempfile
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.middleware import Middleware
from streamlit.cli_util import open_browser

from driftscope_app import door


def guarded(token: str, allowed_hosts: Sequence[str]) -> Middleware:
    """The door, open for this machine, the address that the server listens on, and `allowed_hosts`."""
    address = st.get_option("server.address")
    return Middleware(door.Door, token=token, hosts=[*door.LOOPBACK, *([address] if address else []), *allowed_hosts])


def announced(token: str) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """A server's lifespan: the address with the token is printed, and opened unless the server is headless."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        url = f"{address()}?{door.TOKEN}={token}"
        print(
            f"\n  driftscope app: {url}\n\n  Whoever has this address can read the runs and start probes. "
            "The next start makes another.\n",
            flush=True,
        )
        with contextlib.ExitStack() as until_the_end:
            if not st.get_option("server.headless"):
                _open(url, until_the_end)
            yield

    return lifespan


def address() -> str:
    """Where a browser on this machine finds the app, with a slash at its end."""
    host = st.get_option("server.address") or "localhost"
    host = "localhost" if host in door.WILDCARDS else f"[{host}]" if ":" in host else host
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    base = st.get_option("server.baseUrlPath").strip("/")
    return f"{scheme}://{host}:{st.get_option('server.port')}/{base + '/' if base else ''}"


def _open(url: str, until_the_end: contextlib.ExitStack) -> None:
    """In the user's browser, by a file that only the user can read: all can read the arguments of a process."""
    try:
        folder = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="driftscope-app-")))  # 0700
        file = folder / "open.html"
        file.touch(mode=0o600)
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(url)}">', "utf-8")
    except OSError:  # no place for a temporary file: the printed address is there
        return

    def open_it() -> None:
        with contextlib.suppress(OSError, webbrowser.Error):  # there is no browser: the printed address is there
            open_browser(file.as_uri())

    threading.Thread(target=open_it, daemon=True, name="opens the browser").start()  # a text browser does not return
