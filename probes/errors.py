"""The one error hierarchy. A message says what happened, where, and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

MAX_MESSAGE = 2_000
"""Characters of a message: what stands in it may come from a file of any size."""
MAX_WHERE = 500
MAX_QUOTE = 500


class DriftscopeError(Exception):
    """Base of every error that a user can cause or mend.

    `code` is stable and machine readable (`snake_case`), `where` names the file, tensor, option or line,
    `remedy` says what to do. `exit_code` is what the command line returns. `quote` ends the message with what may hold
    text of a prompt: `quotes_hidden` leaves it out, so nothing else of a message may.
    """

    exit_code = 2

    def __init__(self, message: str, *, code: str, where: str = "", remedy: str = "", quote: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.unquoted = message if quote else ""
        self.message = bounded(f"{message}: {bounded(quote, MAX_QUOTE)}" if quote else message, MAX_MESSAGE)
        self.where = bounded(where, MAX_WHERE)
        self.remedy = bounded(remedy, MAX_MESSAGE)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}. {self.remedy}" if self.remedy else text


class InputError(DriftscopeError):
    """Unusable input: a file, an option, a plan."""


class CheckpointError(InputError):
    """A drafter or target checkpoint that cannot be read as what it claims to be."""


class RunError(InputError):
    """A run folder that cannot be read or written."""


class SelfCheckError(DriftscopeError):
    """What was measured contradicts itself: the numbers must not be used."""

    exit_code = 3


@contextmanager
def quotes_hidden(is_asked: bool) -> Iterator[None]:
    """Where asked for (--no-text, --redact), errors that pass through lose what they quote of a prompt."""
    try:
        yield
    except DriftscopeError as error:
        if not (is_asked and error.unquoted):
            raise
        raise type(error)(
            f"{error.unquoted} (what it says is left out: it may quote a prompt)",
            code=error.code,
            where=error.where,
            remedy=error.remedy,
        ) from None  # the former one, with the quote, must not be told either


def file_error(error: OSError) -> InputError:
    """What the operating system refused, as one message that names the file and what to do."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return InputError(
        error.strerror or str(error) or type(error).__name__,
        code="file_error",
        where=" -> ".join(names),
        remedy=_FILE_REMEDIES.get(error.errno or 0, ""),
    )


_FILE_REMEDIES = {
    errno.ENOSPC: "Free some space, then go on: what was written before is kept.",
    errno.EDQUOT: "Free some space, then go on: what was written before is kept.",
    errno.EROFS: "Give a folder that can be written.",
    errno.EACCES: "Give a file or folder that you may use.",
    errno.EPERM: "Give a file or folder that you may use.",
    errno.EEXIST: "Something else has this name: remove it, or choose another.",
    errno.ENOTDIR: "A folder is needed where a file stands.",
    errno.EISDIR: "A file is needed where a folder stands.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOENT: "Was it moved or removed meanwhile?",
    errno.ELOOP: "The links go round in a circle: remove one.",
}


def printable(text: str) -> str:
    """Text out of files on one line: control characters and those that turn the reading direction become U+FFFD."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def bounded(text: str, limit: int) -> str:
    """`text` as it can be printed: at most `limit` characters, the middle left out, and no lone surrogates (Python's
    form of file names that are not UTF-8)."""
    if len(text) > limit:
        half = (limit - 30) // 2
        text = f"{text[:half]} [{len(text) - 2 * half:,} characters] {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
