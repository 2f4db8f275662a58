"""One page of a conversation on screen, each round a button. Knows no run: token_view.js draws what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import streamlit as st

_FOLDER = Path(__file__).parent
_COMPONENT = "driftscope_token_view"


def token_view(
    *,
    pieces: Sequence[str],
    kinds: Sequence[str],
    rounds: Sequence[int],
    titles: Mapping[int, str],
    chosen: int | None,
    found: Sequence[int],
    key: str,
) -> int | None:
    """`pieces`, `kinds` (`tokens.KINDS`) and `rounds` (-1: none) [token]; `titles` by round; `found`: indices into them.

    Returns the round that was just clicked, else None.
    """
    view = st.components.v2.component(
        _COMPONENT,
        html='<div class="text" role="group" aria-label="The conversation; arrow keys move between rounds"></div>',
        css=(_FOLDER / "token_view.css").read_text(encoding="utf-8"),
        js=(_FOLDER / "token_view.js").read_text(encoding="utf-8"),
    )
    data = {
        "pieces": list(pieces),
        "kinds": list(kinds),
        "rounds": list(rounds),
        "titles": {str(k): v for k, v in titles.items()},
        "chosen": -1 if chosen is None else chosen,
        "found": list(found),
        "scroll": chosen is not None,
    }
    result = view(data=data, key=key, on_round_change=lambda: None)
    clicked = result.round
    return int(clicked) if clicked is not None else None
