"""Which region each character and each token of a rendered prompt belongs to: proven, never searched for.

What this module does not know: chat templates, tokenizers, message formats. It is given a function that renders a
conversation to text and the strings (fields) of that conversation whose place is asked for.

Method: the conversation is rendered a second time with private-use characters (marks) set into its strings. When that
text without its marks is the plain text, character by character, the marks show exactly where each string went, even
where it is repeated, equals a piece of the template, or is trimmed. A string that cannot be marked, or is shown only in
part, is replaced by a single such character (a stand-in): what the plain text has in its place, all else being equal,
came from that string. Whatever neither proves is `unknown`.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice, pairwise
from typing import Any

import numpy as np
from jaxtyping import UInt8

from probes.errors import InputError
from probes.record import TEXT_REGIONS

REGION_ID = {name: index for index, name in enumerate(TEXT_REGIONS)}
TEMPLATE = REGION_ID["template"]
UNKNOWN = REGION_ID["unknown"]

Conversation = list[dict[str, Any]]
RenderText = Callable[[Conversation], str]
Offsets = tuple[int, ...]
"""Where marks stand in a field's text: character offsets, ascending."""


class RejectedError(InputError):
    """What rendering raises for a conversation that the template does not take; limits are no such error."""


# Supplementary Private Use Area-B: no template, trim() or regular expression class treats it as anything but a letter.
_MARK_ALPHABET = range(0x100000, 0x10FFFE)

_MAX_PAIRS_OF_LINES = 4_000_000  # the template's own lines between two marks: 2,000 with as many others


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of a field's text that belongs to one region."""

    region: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Field:
    """One string of the conversation: where it stands (message index, keys ...) and what it is made of."""

    path: tuple[str | int, ...]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def message_index(self) -> int:
        return int(self.path[0])


@dataclass(frozen=True)
class Mark:
    """`position` in the plain text is `offset` in the text of field number `field`."""

    position: int
    field: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Located:
    """The plain text with the region of each character.

    `outcome` says for each field: `found` (all but white space at its ends), `changed` (a part of it, or its text in
    another form, which is `unknown`), `left_out` (the template does not show it) or `unproven` (its place could not be
    proven: all literal text between its neighbours is `unknown`).
    `marked` is the conversation with its marks and `meaning` what each mark stands for, for another render of the same.
    """

    text: str
    char_region: UInt8[np.ndarray, " char"]
    marks: tuple[Mark, ...]
    outcome: tuple[str, ...]
    marked: Conversation
    meaning: dict[str, tuple[int, int]]


def locate(conversation: Conversation, fields: Sequence[Field], render: RenderText) -> Located:
    """Render `conversation` and give each character the region of the field it came from, else `template`.

    `fields` are in the order of the conversation. Raises whatever `render` raises for the unmarked conversation,
    and what is no RejectedError for any.
    """
    plain = render(conversation)
    used = set(plain).union(*(field.text for field in fields))

    def attempt(placement: Sequence[Offsets]) -> Located | None:
        alphabet = (chr(code) for code in _MARK_ALPHABET if chr(code) not in used)
        marked, meaning = _set_marks(conversation, fields, placement, alphabet)
        try:
            text, marks = unmark(render(marked), meaning)
        except RejectedError:  # the template looks at this string's content and rejects a changed one
            return None
        if text != plain:
            return None
        char_region, outcome = _attribute(plain, fields, marks)
        return Located(
            text=plain, char_region=char_region, marks=marks, outcome=outcome, marked=marked, meaning=meaning
        )

    located = _best_placement(fields, attempt)
    outcome = [
        found if found == "found" else _replace_by_stand_in(index, conversation, fields, located, render)
        for index, found in enumerate(located.outcome)
    ]
    return replace(located, outcome=tuple(outcome))


def _best_placement(fields: Sequence[Field], attempt: Callable[[Sequence[Offsets]], Located | None]) -> Located:
    """Marks at the very ends of all strings if that changes nothing; else string by string what shows most of it."""
    outer = [_edges(field, keep_left=True, keep_right=True) for field in fields]
    inner = [_edges(field, keep_left=False, keep_right=False) for field in fields]
    nothing: list[Offsets] = [() for _ in fields]
    for placement in (outer, inner, nothing):
        located = attempt(placement)
        if located is not None:
            break
    else:
        raise InputError(
            "the chat template does not render the same conversation twice to the same text",
            code="template_not_repeatable",
            remedy="Give it a fixed date (chat_template_kwargs) or another template",
        )
    for index, field in enumerate(fields):
        for candidate in _candidates(field):
            if located.outcome[index] == "found" and candidate == placement[index]:
                break  # candidates stand in the order of how much white space they show
            found = attempt([*placement[:index], candidate, *placement[index + 1 :]])
            if found is not None and _num_known(found) > _num_known(located):
                placement, located = [*placement[:index], candidate, *placement[index + 1 :]], found
    return located


def _num_known(located: Located) -> int:
    """Characters proven to come from a field."""
    return int(((located.char_region != TEMPLATE) & (located.char_region != UNKNOWN)).sum())


def _edges(field: Field, *, keep_left: bool, keep_right: bool) -> Offsets:
    """The ends of each part; where white space at an end of the text may be trimmed, inside of it."""
    text = field.text
    low = 0 if keep_left else len(text) - len(text.lstrip())
    high = len(text) if keep_right else len(text.rstrip())
    if low >= high:
        return ()
    ends = np.cumsum([0, *(len(part.text) for part in field.parts)]).tolist()
    return tuple(sorted({min(max(end, low), high) for end in ends}))


def _candidates(field: Field) -> Iterator[Offsets]:
    for keep_left, keep_right in ((True, True), (True, False), (False, True), (False, False)):
        yield _edges(field, keep_left=keep_left, keep_right=keep_right)


def _set_marks(
    conversation: Conversation, fields: Sequence[Field], placement: Sequence[Offsets], alphabet: Iterator[str]
) -> tuple[Conversation, dict[str, tuple[int, int]]]:
    marked = copy.deepcopy(conversation)
    meaning: dict[str, tuple[int, int]] = {}
    for index, (field, offsets) in enumerate(zip(fields, placement, strict=True)):
        pieces = []
        text, last = field.text, 0
        for offset in offsets:
            mark = next(alphabet)
            meaning[mark] = (index, offset)
            pieces += [text[last:offset], mark]
            last = offset
        _set(marked, field.path, "".join([*pieces, text[last:]]))
    return marked, meaning


def _set(conversation: Conversation, path: Sequence[str | int], text: str) -> None:
    holder: Any = conversation
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = text


def unmark(text: str, meaning: dict[str, tuple[int, int]]) -> tuple[str, tuple[Mark, ...]]:
    """Take the marks out of a rendered text: the plain text, and each mark with its position in it."""
    if not meaning:
        return text, ()
    pieces, marks, last, length = [], [], 0, 0
    for match in re.finditer("[" + "".join(meaning) + "]", text):
        pieces.append(text[last : match.start()])
        length += match.start() - last
        last = match.end()
        marks.append(Mark(length, *meaning[match.group()]))
    return "".join([*pieces, text[last:]]), tuple(marks)


def _attribute(
    plain: str, fields: Sequence[Field], marks: tuple[Mark, ...]
) -> tuple[UInt8[np.ndarray, " char"], tuple[str, ...]]:
    """Text between two marks of one field that is what the field has between them has its region."""
    char_region = np.full(len(plain), TEMPLATE, np.uint8)
    field_region = [_region_of(field) for field in fields]
    texts = [field.text for field in fields]
    num_shown = Counter[int]()
    for left, right in pairwise(marks):
        start, stop = left.position, right.position
        if left.field == right.field and left.offset < right.offset:
            if right.offset - left.offset > stop - start:  # shown in part; a template may do so a million times
                continue
            content = texts[left.field][left.offset : right.offset]
            if plain[start:stop] == content:
                char_region[start:stop] = field_region[left.field][left.offset : right.offset]
                num_shown[left.field] += len(content)
            elif plain[start:stop] == json.dumps(content, ensure_ascii=False)[1:-1]:
                char_region[start:stop] = field_region[left.field][left.offset]
                num_shown[left.field] += len(content)
        elif left.field < right.field and fields[left.field].path[:3] == fields[right.field].path[:3]:
            # Two strings of one tool call: the keys and numbers between them are the call's too.
            char_region[start:stop] = field_region[left.field][-1]
    is_found = [num_shown[index] >= len(text.strip()) for index, text in enumerate(texts)]
    return char_region, tuple("found" if found else "unproven" for found in is_found)


def _region_of(field: Field) -> UInt8[np.ndarray, " char"]:
    labels = np.array([REGION_ID[part.region] for part in field.parts], np.uint8)
    return np.repeat(labels, [len(part.text) for part in field.parts])


def _replace_by_stand_in(
    index: int, conversation: Conversation, fields: Sequence[Field], located: Located, render: RenderText
) -> str:
    """Find a string by rendering with a stand-in; writes into `located.char_region`, returns the outcome."""
    field, region, content = fields[index], located.char_region, fields[index].text
    (stand_in,) = stand_ins(located.text, 1)
    replaced = copy.deepcopy(conversation)
    _set(replaced, field.path, stand_in)
    try:
        text = render(replaced)
    except RejectedError:
        text = ""
    if text == located.text:
        return "left_out"
    span = span_in_place_of(stand_in, text, located.text)
    if span is None:
        low = max((mark.position for mark in located.marks if mark.field < index), default=0)
        high = min((mark.position for mark in located.marks if mark.field > index), default=None)
        if high is not None and high < low:  # the template does not keep the order of the messages
            low, high = 0, None
        stretch = region[low:high]
        stretch[stretch == TEMPLATE] = UNKNOWN
        return "unproven"
    shown = located.text[slice(*span)]
    start = content.find(shown)
    labels = _region_of(field)[max(start, 0) : max(start, 0) + len(shown)]
    is_proven = start >= 0 and (content.count(shown) == 1 or len({part.region for part in field.parts}) == 1)
    region[slice(*span)] = labels if is_proven else UNKNOWN
    return "found" if is_proven and len(shown) >= len(content.strip()) else "changed"


def stand_ins(text: str, count: int) -> list[str]:
    """Private-use characters that do not occur in `text`: as words they survive trimming, case changes and slicing."""
    return list(islice((chr(code) for code in _MARK_ALPHABET if chr(code) not in text), count))


def span_in_place_of(stand_in: str, text_with_it: str, text: str) -> tuple[int, int] | None:
    """What `text` has where `text_with_it` has the stand-in; None unless all the rest of the two is equal."""
    before, found, after = text_with_it.partition(stand_in)
    is_aligned = text.startswith(before) and text.endswith(after) and len(before) + len(after) <= len(text)
    return (len(before), len(text) - len(after)) if found and stand_in not in after and is_aligned else None


def inserted_spans(
    text: str, marks: Sequence[Mark], other: str, other_marks: Sequence[Mark]
) -> list[tuple[int, int]] | None:
    """What `text` has more than `other`, between marks.

    None when the two do not hold the same marks in one order, or differ in too many lines to compare each with each.
    """
    if [(mark.field, mark.offset) for mark in marks] != [(mark.field, mark.offset) for mark in other_marks]:
        return None
    spans: list[tuple[int, int]] = []
    ends = [0, *(mark.position for mark in marks), len(text)]
    other_ends = [0, *(mark.position for mark in other_marks), len(other)]
    for (start, stop), (other_start, other_stop) in zip(pairwise(ends), pairwise(other_ends), strict=True):
        piece, other_piece = text[start:stop], other[other_start:other_stop]
        if piece != other_piece and piece.count("\n") * other_piece.count("\n") > _MAX_PAIRS_OF_LINES:
            return None
        for low, high in _inserted(piece, other_piece):
            if spans and not text[spans[-1][1] : start + low].strip():  # a blank line is equal to any other
                spans[-1] = (spans[-1][0], start + high)
            else:
                spans.append((start + low, start + high))
    return spans


def _inserted(piece: str, other: str) -> Iterator[tuple[int, int]]:
    """Line by line, and within lines that differ what stands between their common ends."""
    if piece == other:
        return
    lines, other_lines = piece.splitlines(keepends=True), other.splitlines(keepends=True)
    starts = np.cumsum([0, *map(len, lines)]).tolist()
    for kind, low, high, other_low, other_high in SequenceMatcher(
        None, lines, other_lines, autojunk=False
    ).get_opcodes():
        if kind in ("insert", "equal"):  # `other` has more, or the same
            continue
        new, old = "".join(lines[low:high]), "".join(other_lines[other_low:other_high])
        prefix = num_common(new, old)
        suffix = num_common(new[prefix:][::-1], old[prefix:][::-1])
        if prefix + suffix < len(new):
            yield starts[low] + prefix, starts[high] - suffix


def num_common(left: str, right: str) -> int:
    """Length of the common prefix, in characters."""
    limit = min(len(left), len(right))
    return next((index for index in range(limit) if left[index] != right[index]), limit)


def token_regions(
    char_region: UInt8[np.ndarray, " char"], spans: Sequence[tuple[int, int] | None], is_special: Sequence[bool]
) -> UInt8[np.ndarray, " token"]:
    """The region that most of a token's characters have; a tie goes to the first in precedence. Special: `template`.

    `spans` are character offsets; None is `unknown`. Several byte-level tokens of one character all have its span. An
    empty span (a token that is only a trimmed space) reaches from the token before to the next one; where there is
    nothing between them it takes the character that follows (the last one, at the end).
    """
    num_chars = len(char_region)
    bounds = np.zeros((len(spans), 2), np.int64)
    for index, span in enumerate(spans):
        if span is None:
            continue
        start, stop = span
        if start == stop:
            before = spans[index - 1] if index else (0, 0)
            after = spans[index + 1] if index + 1 < len(spans) else (num_chars, num_chars)
            if before is not None and after is not None:
                start, stop = before[1], max(before[1], after[0])
            if start == stop:
                start = min(span[0], num_chars - 1)
                stop = start + 1
        bounds[index] = start, stop
    counts = np.zeros((num_chars + 1, len(TEXT_REGIONS)), np.int32)
    np.cumsum(char_region[:, None] == np.arange(len(TEXT_REGIONS)), axis=0, dtype=np.int32, out=counts[1:])
    regions: np.ndarray = np.argmax(counts[bounds[:, 1]] - counts[bounds[:, 0]], axis=1).astype(np.uint8)
    regions[bounds[:, 0] == bounds[:, 1]] = UNKNOWN
    regions[np.asarray(is_special, bool)] = TEMPLATE
    return regions
