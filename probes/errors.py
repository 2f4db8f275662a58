"""The one error hierarchy. A message says what happened, where, and what to do about it."""

from __future__ import annotations


class DriftscopeError(Exception):
    """Base of every error that a user can cause or mend.

    `code` is stable and machine readable (`snake_case`), `where` names the file, tensor, option or line,
    `remedy` says what to do. `exit_code` is what the command line returns.
    """

    exit_code = 2

    def __init__(self, message: str, *, code: str, where: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = where
        self.remedy = remedy

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
