"""Text from files, made harmless to read: escaping is the template's, this is about what escaping leaves.

Control characters, characters that turn the reading direction and halves of surrogate pairs are shown by their code.
"""

from __future__ import annotations

import unicodedata

MAX_CHARACTERS = 4_000  # of one piece of text; nothing in a report needs more
MAX_NAME_CHARACTERS = 80  # of a name in a label
_KEPT = frozenset("\n\t\u200c\u200d")  # joiners of emoji and of Persian are formatting characters too
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def clean(text: str, limit: int = MAX_CHARACTERS) -> str:
    """`text` with hidden characters made visible, at most `limit` characters and how many there were."""
    if len(text) > limit:
        return clean(text[:limit], limit) + f"… ({len(text):,} characters)"
    return "".join(map(_visible, text))


def label(name: str) -> str:
    """A name as it stands in a label: one line, short."""
    return clean(" ".join(name.split()), MAX_NAME_CHARACTERS)


def piece(text: str) -> str:
    """The text of one token, its line breaks marked."""
    return clean(text, MAX_NAME_CHARACTERS).replace("\n", "⏎\n").replace("\t", "⇥\t")


def single(text: str) -> str:
    """One token alone: blanks at its ends are marked as well, and it stays on one line."""
    shown = clean(text, MAX_NAME_CHARACTERS).replace("\n", "⏎").replace("\t", "⇥")
    body = shown.strip(" ")
    if not body:
        return "␣" * len(shown)
    return "␣" * (len(shown) - len(shown.lstrip(" "))) + body + "␣" * (len(shown) - len(shown.rstrip(" ")))


def _visible(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    return f"⟨U+{ord(character):04X}⟩"
