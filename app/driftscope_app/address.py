"""The state of the app in its URL: a link opens the same view, and moving between pages keeps what was chosen.

Knows no run. What was chosen lives in the session by name; widgets show it (`pick_one`, `pick_many`), and what a script
run showed is written to the URL at its end. A URL that this session did not write itself (a deep link, the back button)
replaces the state. Values are looked up among the options: anything else in a URL is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

_CHOSEN, _SHOWN, _WRITTEN, _IS_CHANGED = "address_chosen", "address_shown", "address_written", "address_is_changed"
_WIDGET = "pick_"


def load() -> None:
    """First thing in a script run."""
    session = st.session_state
    session.setdefault(_CHOSEN, {})
    session[_SHOWN] = {}
    url = {name: st.query_params.get_all(name) for name in st.query_params}
    # A choice made just now is newer than the URL, which the browser may not have updated yet.
    if url and url != session.get(_WRITTEN) and not session.get(_IS_CHANGED):
        session[_CHOSEN] = url
    session[_IS_CHANGED] = False


def store() -> None:
    """Last thing in a script run: the URL now says what the page shows."""
    params = {name: values for name, values in st.session_state[_SHOWN].items() if values}
    if params != {name: st.query_params.get_all(name) for name in st.query_params}:
        st.query_params.from_dict(params)
    st.session_state[_WRITTEN] = params
    st.session_state[_IS_CHANGED] = False


def put(**values: str | Sequence[str] | None) -> None:
    """Choose from code, for instance before `st.switch_page`."""
    for name, value in values.items():
        st.session_state[_CHOSEN][name] = [value] if isinstance(value, str) else list(value or [])
    st.session_state[_IS_CHANGED] = True


def get(name: str) -> str | None:
    """A value without a widget of its own, which the page shows in its own way."""
    values = st.session_state[_CHOSEN].get(name) or []
    st.session_state[_SHOWN][name] = values[:1]
    return values[0] if values else None


def pick_many(
    widget: Callable[..., Any],
    name: str,
    label: str,
    options: Sequence[str],
    *,
    default: Sequence[str] = (),
    **keywords: Any,
) -> list[str]:
    """Several of `options`, through `widget` (st.pills, st.multiselect, ...). Nothing chosen is an answer too."""
    wanted = st.session_state[_CHOSEN].get(name, default)
    return list(_widget(widget, name, label, options, [v for v in wanted if v in options], keywords))


MAX_FEW = 4  # dashes that the eye can distinguish in one chart


def pick_a_few(name: str, label: str, options: Sequence[str], **keywords: Any) -> list[str]:
    """Up to MAX_FEW of `options` for one chart; the first where nothing is chosen."""
    first = list(options[:1])
    keywords |= {"max_selections": MAX_FEW, "placeholder": "Choose up to four"}
    return pick_many(st.multiselect, name, label, options, default=first, **keywords) or first


def pick_one(
    widget: Callable[..., Any],
    name: str,
    label: str,
    options: Sequence[str],
    *,
    default: str | None = None,
    **keywords: Any,
) -> str | None:
    """One of `options`; the default (else the first) where none or an unknown one was chosen. None without options."""
    if not options:
        return None
    wanted = next(iter(st.session_state[_CHOSEN].get(name) or []), default)
    value = _widget(widget, name, label, options, wanted if wanted in options else options[0], keywords)
    return str(value) if value is not None else options[0]


def pick_text(name: str, label: str, **keywords: Any) -> str:
    """A text that stands in the URL."""
    key = _WIDGET + name
    value = next(iter(st.session_state[_CHOSEN].get(name) or []), "")
    if st.session_state.get(key) != value:
        st.session_state[key] = value
    text = st.text_input(label, key=key, on_change=_choose, args=(name,), max_chars=200, **keywords)
    st.session_state[_SHOWN][name] = [text] if text else []
    return text or ""


def _widget(
    widget: Callable[..., Any], name: str, label: str, options: Sequence[str], value: Any, keywords: dict[str, Any]
) -> Any:
    key = _WIDGET + name
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value
    shown = widget(label, options, key=key, on_change=_choose, args=(name,), **keywords)
    st.session_state[_SHOWN][name] = list(shown) if isinstance(shown, list) else [shown] if shown is not None else []
    return shown


def _choose(name: str) -> None:
    put(**{name: st.session_state[_WIDGET + name]})
