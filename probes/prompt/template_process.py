"""Renders chat templates in another process, which a template cannot make slow or large beyond the limits given here.

Jinja's sandbox keeps a template from files and code, not from loops and widths. What this module does not know: turns,
regions, tokens. One process serves all templates, one after the other; it ends with this one, and is started again after
a template that went over a limit, and in a process that was forked.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from probes.errors import InputError
from probes.prompt import template_worker
from probes.prompt.regions import RejectedError

MAX_CPU_SECONDS = 10.0
"""For all renderings of one prompt together (a handful, of milliseconds each)."""
MAX_TEXT_BYTES = 8 << 20
"""The largest rendered prompt, as UTF-8: two million tokens of English. Tokens and regions of it are this process' work."""
MAX_WAIT_SECONDS = 600.0
"""For an answer, however busy the machine: CPU time is what is bounded, this ends a process that was stopped."""

PLACE = "chat template"
_REMEDY = "Shorten the prompt, or give another template with NAME=FILE"


class Budget:
    """CPU time left for the renderings of one prompt, in seconds."""

    def __init__(self) -> None:
        self.cpu_seconds = MAX_CPU_SECONDS


def render_text(request: Mapping[str, Any], budget: Budget) -> str:
    """The rendered text of a request (see `template_worker`), its CPU time taken off the budget.

    Raises RejectedError with the template's own words where it fails, InputError `template_limit` where it takes too
    much; `template_process_failed` where the process cannot be started.
    """
    if budget.cpu_seconds <= 0:
        raise _too_slow()
    limits = {"cpu_seconds": budget.cpu_seconds, "max_text_bytes": MAX_TEXT_BYTES}
    try:
        content = pickle.dumps({**request, **limits}, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise template_failed(f"it cannot be given the conversation: {error}", None) from error
    answer = _shared.ask(content)
    budget.cpu_seconds -= answer["cpu_seconds"]
    if "text" in answer:
        return _unicode(answer["text"])
    if "error" in answer:
        raise template_failed(answer["error"], answer["line"])
    if answer["limit"] == "text":
        raise _over_limit(f"writes more than {MAX_TEXT_BYTES >> 20} MiB of text")
    raise _over_limit(f"takes more than {template_worker.MAX_BYTES >> 20:,} MiB of memory")


def template_failed(said: str, line: int | None) -> RejectedError:
    return RejectedError(
        "the chat template fails",
        quote=said,
        code="template_failed",
        where=PLACE + (f", line {line}" if line else ""),
        remedy="Check the roles and their order, or give another template with NAME=FILE",
    )


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RejectedError(
            "the chat template writes half of a surrogate pair, which is no character",
            code="not_unicode",
            where=PLACE,
            remedy="Mend the template, or give another one with NAME=FILE",
        ) from error
    return text


def _too_slow() -> InputError:
    return _over_limit(f"takes more than {MAX_CPU_SECONDS:g} s of CPU time for one prompt")


def _over_limit(what: str) -> InputError:
    return InputError(f"the chat template {what}", code="template_limit", where=PLACE, remedy=_REMEDY)


class _Worker:
    """The process and the socket to it. Raises InputError where it does not start."""

    def __init__(self) -> None:
        self.socket, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                # -P: what lies beside the script, or in the working directory, is not imported
                [sys.executable, "-P", str(Path(template_worker.__file__)), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what it would say there may quote a prompt
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # numpy comes with transformers
            )
        said = self._received()
        if said != b"ready":
            self.close()
            raise InputError(
                "the process that renders chat templates does not start",
                code="template_process_failed",
                where=sys.executable,
                remedy=(said or b"").decode(errors="replace") or "Is transformers installed for this Python?",
            )

    def ask(self, content: bytes) -> dict[str, Any]:
        """Raises InputError `template_limit` where no answer comes; then the process has ended."""
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: there is no answer either
            self.socket.send_bytes(content)
        received = self._received()
        if received is None:
            self.close()
            if self.process.returncode == -signal.SIGXCPU:
                raise _too_slow()
            raise _over_limit(f"ends the process that renders it (exit code {self.process.returncode})")
        return dict(json.loads(received.decode("utf-8", "surrogatepass")))

    def _received(self) -> bytes | None:
        try:
            if self.socket.poll(MAX_WAIT_SECONDS):
                return self.socket.recv_bytes(8 * MAX_TEXT_BYTES)
        except (EOFError, OSError):
            pass
        return None

    def close(self) -> None:
        self.socket.close()
        with suppress(subprocess.TimeoutExpired):  # one that has ended by itself says how
            self.process.wait(0.5)
        self.process.kill()
        self.process.wait()


class _Shared:
    """This process' worker: its start takes most of a second, so that a worker a prompt would be too slow."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.worker: _Worker | None = None

    def ask(self, content: bytes) -> dict[str, Any]:
        with self.lock:
            if self.worker is None or self.worker.process.poll() is not None:
                self.worker = _Worker()
            worker, self.worker = self.worker, None  # kept only if it answers
            answer = worker.ask(content)
            if answer.get("limit") == "memory":  # what is left of it may be in pieces
                worker.close()
            else:
                self.worker = worker
            return answer


_shared = _Shared()


def _forget() -> None:
    global _shared
    _shared = _Shared()


os.register_at_fork(after_in_child=_forget)  # two processes on one socket would read each other's answers
