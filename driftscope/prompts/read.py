"""Finds out which format a prompt file has and reads it; every line left out is counted with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from driftscope.prompts import plain_text
from driftscope.prompts.assistant_turns import NOTHING_TO_REPLAY, every_assistant_turn
from driftscope.prompts.formats import FORMATS, TEXT, TEXT_SUFFIXES, Format
from driftscope.prompts.line import Line
from driftscope.prompts.rows import check_file, read_lines, read_text
from probes.conditions import PromptInput
from probes.errors import InputError

LANGUAGE_KEYS = ("language", "lang", "locale")


@dataclass(frozen=True, kw_only=True)
class PromptFile:
    """`notes`: what was changed or not used, `left_out`: why lines gave no prompt; each sentence with its count."""

    path: Path
    format: str
    prompts: tuple[PromptInput, ...]
    notes: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def report(self) -> list[str]:
        """Sentences on what was read, what was left out and why."""
        num_forced = sum(prompt.is_forced for prompt in self.prompts)
        head = f"{self.path.name}: {len(self.prompts)} prompts read as {self.format}"
        return [
            f"{head}, {num_forced} with an answer that is replayed" if num_forced else head,
            *(f"{self.path.name}: left out: {reason} ({count} lines)" for reason, count in self.left_out.items()),
            *(f"{self.path.name}: {note} ({count} lines)" for note, count in self.notes.items()),
        ]


def read_prompts(path: Path, *, format: str | None = None, every_turn: bool = False) -> PromptFile:
    """Every prompt of a file. `format` (a name of `FORMATS`, or "text") overrides the detection.

    `every_turn`: every assistant turn that can be replayed is a prompt, and nothing else is.

    Raises InputError naming file and line for anything that cannot be read: nothing is skipped in silence.
    """
    check_file(path, what="prompt file", option="--prompts")
    if format == TEXT or (format is None and path.suffix.lower() in TEXT_SUFFIXES):
        prompt = plain_text.read(path, read_text(path))
        if every_turn:
            raise _no_prompts(path, NOTHING_TO_REPLAY, every_turn)
        return PromptFile(path=path, format=TEXT, prompts=(prompt,))
    if format is not None and format not in FORMATS:
        raise InputError(
            f"there is no prompt format {format!r}",
            code="unknown_prompt_format",
            where=str(path),
            remedy=f"Use one of {', '.join([*FORMATS, TEXT])}, or leave it out to have it detected.",
        )
    chosen = FORMATS[format] if format is not None else None
    prompts: list[PromptInput] = []
    notes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for line in read_lines(path):
        chosen = chosen or _detected(line)
        reading = every_assistant_turn(chosen.read(line)) if every_turn else chosen.read(line)
        prompts += _with_language(line, reading.prompts)
        notes.update(reading.notes)
        if reading.left_out:
            reasons[reading.left_out] += 1
    if not prompts or chosen is None:
        why = "; ".join(f"{reason} ({count} lines)" for reason, count in reasons.items())
        raise _no_prompts(path, why, every_turn)
    _check_ids(path, prompts)
    return PromptFile(path=path, format=chosen.name, prompts=tuple(prompts), notes=dict(notes), left_out=dict(reasons))


def _no_prompts(path: Path, why: str, every_turn: bool) -> InputError:
    return InputError(
        f"every line was left out: {why}" if why else "the file holds no prompt",
        code="no_prompts",
        where=str(path),
        remedy="Give a file with at least one prompt that can be measured"
        + (", or leave out --turns all." if every_turn else "."),
    )


def _with_language(line: Line, prompts: tuple[PromptInput, ...]) -> list[PromptInput]:
    """Any format may carry it; no format names it otherwise."""
    language = next((found for key in LANGUAGE_KEYS if (found := line.label_of(key)) is not None), None)
    return [replace(prompt, language=language) for prompt in prompts]


def _detected(first: Line) -> Format:
    for candidate in FORMATS.values():
        if candidate.matches(first.item):
            return candidate
    raise first.bad(
        "has keys that no known format has",
        quote=first.keys(),
        remedy=f"Known formats: {', '.join(FORMATS)} (JSON Lines, a JSON array, CSV or Parquet), and text files.",
    )


def _check_ids(path: Path, prompts: list[PromptInput]) -> None:
    [(prompt_id, count)] = Counter(prompt.prompt_id for prompt in prompts).most_common(1)
    if count > 1:
        raise InputError(
            f"a prompt id occurs {count} times",
            quote=repr(prompt_id),
            code="duplicate_prompt_id",
            where=str(path),
            remedy="Give every prompt its own id.",
        )
