"""What `--json` prints when a command fails."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """One mistake: what happened, where, and what to do."""

    code: str  # stable, snake_case
    message: str
    where: str  # file, tensor, option or line; may be empty
    remedy: str  # may be empty


class ErrorOutput(BaseModel):
    """The one object of a command that failed; its exit code is not 0."""

    schema_version: int = 1
    error: ErrorDetail
