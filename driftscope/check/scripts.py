"""The script of a token by the characters it stands for: unicodedata only.

A token's script is its first letter's. Tokens without a letter are digits, symbols or whitespace.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

NAMES = {
    "CJK": "Han",
    "LATIN": "Latin",
    "CYRILLIC": "Cyrillic",
    "GREEK": "Greek",
    "ARABIC": "Arabic",
    "HEBREW": "Hebrew",
    "DEVANAGARI": "Devanagari",
    "BENGALI": "Bengali",
    "TAMIL": "Tamil",
    "TELUGU": "Telugu",
    "THAI": "Thai",
    "HANGUL": "Hangul",
    "HIRAGANA": "Hiragana",
    "KATAKANA": "Katakana",
    "KATAKANA-HIRAGANA": "Katakana",
    "IDEOGRAPHIC": "Han",
    "FULLWIDTH": "Latin",
    "ARMENIAN": "Armenian",
    "GEORGIAN": "Georgian",
    "ETHIOPIC": "Ethiopic",
    "KHMER": "Khmer",
    "MYANMAR": "Myanmar",
}
"""First word of a letter's Unicode name -> the script's usual name; others are named by that word."""

DIGITS, SYMBOLS, WHITESPACE = "digits", "symbols", "whitespace"


def script_of(text: str) -> str:
    """The script of a piece of text; whitespace for the empty one."""
    fallback = WHITESPACE
    for character in text:
        kind = _kind(character)
        if kind not in (DIGITS, SYMBOLS, WHITESPACE):
            return kind
        if fallback == WHITESPACE or (fallback == SYMBOLS and kind == DIGITS):
            fallback = kind
    return fallback


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "N":
        return DIGITS
    if category[0] in "ZC":
        return WHITESPACE
    if category[0] != "L":
        return SYMBOLS
    first = unicodedata.name(character, "UNNAMED").split(" ")[0]
    return NAMES.get(first, first.capitalize())
