"""The process in which chat templates are rendered, as transformers renders them, under limits of memory and CPU time.

A script of its own, started by `template_process` with the file descriptor of a socket: it imports transformers' base
class of tokenizers (no torch, nothing of driftscope), says "ready", and answers requests until the socket is closed, as
it is when the starter dies. A template that takes more CPU time than its request allows ends this process.

Request, pickled: {"template", "conversation", "tools", "add_generation_prompt", "special_tokens", "kwargs", "cpu_seconds",
"max_text_bytes"}. Answer, JSON: "cpu_seconds" and one of "text"; "error" with "line", the template's own failure; "limit",
"memory" or "text".
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MAX_BYTES = 2 << 30
"""Address space beyond what the imports take. A prompt of the longest text takes 32 MB a copy (4 bytes a character, as
marks are outside of Unicode's first plane), and a template makes many. macOS has this limit and does not enforce it:
there time and the length of the text are what bounds a template."""

MAX_ERROR = 2_000  # characters


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # running out of time would dump core
    taken = 0
    with suppress(OSError):
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = taken + MAX_BYTES if hard == resource.RLIM_INFINITY else min(taken + MAX_BYTES, hard)
    with suppress(ValueError, OSError):  # macOS, some versions
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def limit_cpu_time(seconds: float) -> None:
    """From now on. The kernel's limit is of whole seconds, since the start of the process; it ends it with SIGXCPU."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def render(tokenizer: Any, request: dict[str, Any]) -> dict[str, Any]:
    tokenizer.special_tokens_map = request["special_tokens"]
    try:
        text: str = tokenizer.apply_chat_template(
            request["conversation"],
            tools=request["tools"],
            chat_template=request["template"],
            add_generation_prompt=request["add_generation_prompt"],
            tokenize=False,
            **request["kwargs"],
        )
    except MemoryError:
        return {"limit": "memory"}
    except Exception as error:  # a template is foreign code: it may fail in any way, and its words are the reason
        said = str(error)[:MAX_ERROR] or type(error).__name__
        return {"error": said, "line": getattr(error, "lineno", None)}
    num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return {"limit": "text"} if num_bytes > request["max_text_bytes"] else {"text": text}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's; when it goes, so does the socket
    socket = Connection(int(sys.argv[1]))
    try:
        from transformers.tokenization_utils_base import PreTrainedTokenizerBase
    except ImportError as error:
        socket.send_bytes(str(error).encode())
        return

    class Tokenizer(PreTrainedTokenizerBase):
        """All of a tokenizer that transformers' rendering reads."""

        chat_template = None
        special_tokens_map: Any = None

        def __init__(self) -> None:
            pass

    tokenizer = Tokenizer()
    limit_memory()
    socket.send_bytes(b"ready")
    told = time.process_time()
    while True:
        try:
            request = socket.recv()
        except (EOFError, OSError):
            return
        limit_cpu_time(request["cpu_seconds"])
        answer = render(tokenizer, request)
        now = time.process_time()
        answer["cpu_seconds"] = now - told  # since the last answer: clocks of 10 ms would lose short renderings
        told = now
        socket.send_bytes(json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass"))


if __name__ == "__main__":
    main()
