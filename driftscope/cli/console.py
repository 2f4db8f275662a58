"""How every command speaks: one JSON object or readable text on stdout, progress and errors on stderr.

Knows no command. `--json` prints exactly one object with `schema_version`, also when the command fails.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from probes.errors import DriftscopeError, InputError, printable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

PIPE_COLUMNS = 100  # text that goes to a file or a pipe is laid out for this width
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
BROKEN_PIPE = 141  # 128 + SIGPIPE

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print GitHub-flavoured Markdown.")]


def one_form(json: bool, markdown: bool) -> None:
    """Raises InputError where --json and --markdown are both given."""
    if json and markdown:
        raise InputError(
            "--json and --markdown exclude each other", code="usage", where="command line", remedy="Choose one."
        )


def without_effect(flag: str, remedy: str) -> InputError:
    """An option that was given and would change nothing."""
    return InputError(f"{flag} has no effect here", code="option_without_effect", where=flag, remedy=remedy)


def print_json(output: BaseModel) -> None:
    """The command's one JSON object, on stdout."""
    from pydantic_core import PydanticSerializationError

    try:
        text = output.model_dump_json(indent=2)
    except PydanticSerializationError:  # a file's name that is not UTF-8: as JSON escapes, which Python reads back
        text = json.dumps(output.model_dump(mode="json"), indent=2)
    sys.stdout.write(text + "\n")


def console() -> Console:
    """The console for text on stdout: as wide as the terminal, 100 columns in a pipe, COLUMNS where it is set. Text out of
    files moves no cursor and changes no colour there."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Clean(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable_lines(segment.text))

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_COLUMNS
    return Clean(width=width, highlight=False)


def printable_lines(text: str) -> str:
    """`printable`, the lines kept apart."""
    return text if text.isprintable() else "\n".join(printable(line) for line in text.split("\n"))


def print_error(error: DriftscopeError, *, is_json: bool) -> None:
    """Print the error: an object on stdout with --json, else text on stderr."""
    if is_json:
        from driftscope.cli.errors import ErrorDetail, ErrorOutput

        detail = ErrorDetail(code=error.code, message=error.message, where=error.where, remedy=error.remedy)
        print_json(ErrorOutput(error=detail))
        return
    place = f"{error.where}: " if error.where else ""
    sys.stderr.write(printable_lines(f"error: {place}{error.message}\n"))
    if error.remedy:
        sys.stderr.write(printable_lines(f"  {error.remedy}\n"))
