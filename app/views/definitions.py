"""Definitions: every word and quantity of the app, in one place."""

from __future__ import annotations

import streamlit as st

from driftscope.quantities import QUANTITIES, REGION_DEFINITIONS
from driftscope.report.glossary import INTERVALS, LOOPING, REASONS, WORDS


def main() -> None:
    """The page."""
    st.title("Definitions", anchor=False)
    st.markdown("Ratios are 0..1. Depth 1 is the first draft. A number that was not measured is empty, never 0.")
    st.header("Words", anchor=False)
    _list(WORDS)
    st.header("Quantities", anchor=False)
    for quantity in QUANTITIES.values():
        st.markdown(f"**{quantity.title}** · `{quantity.name}`  \n{_escaped(quantity.explanation)}")
    st.header("Regions of attention", anchor=False)
    _list(REGION_DEFINITIONS)
    st.header("Why a draft was not accepted", anchor=False)
    _list(REASONS)
    st.header("Intervals", anchor=False)
    st.markdown(_escaped(INTERVALS))
    st.header("Looping responses", anchor=False)
    st.markdown(_escaped(LOOPING))


def _list(meanings: dict[str, str]) -> None:
    st.markdown("\n".join(f"- **{_escaped(word)}**: {_escaped(meaning)}" for word, meaning in meanings.items()))


def _escaped(text: str) -> str:
    """Our own text; only what Markdown would eat."""
    for character in "*_|<>$~":
        text = text.replace(character, "\\" + character)
    return text


main()
