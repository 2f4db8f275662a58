"""Which pages there are, what each begins with, and what it shows instead when there is nothing to show."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from driftscope_app.scope import Scope

TITLES = ("Overview", "Compare", "Depth", "Heads", "Fusion", "Context", "Rounds", "Probe", "Definitions")
"""The pages in the order of the navigation. A new page is a file, views/overview.py for Overview, and its title here."""

_SCOPE = "scope"
_FOLDER = "runs_folder"


def tighten() -> None:
    """Less empty room above the title than Streamlit leaves, and on narrow screens at the sides; chips and primary
    buttons that can be read in dark too (Streamlit writes white on the primary colour)."""
    st.html(
        "<style>[data-testid=stMainBlockContainer]{padding-top:4.5rem;padding-bottom:3rem}"
        "[data-testid=stMultiSelect] [data-tag]{background:rgba(43,123,186,.16);"
        "box-shadow:inset 0 0 0 1px rgba(43,123,186,.65)}"
        "[data-testid=stMultiSelect] [data-tag],[data-testid=stMultiSelect] [data-tag] *{color:inherit}"
        "[data-testid=stBaseButton-primary]:enabled{color:light-dark(#fff,#0B1016)}"
        "@media(max-width:640px){[data-testid=stMainBlockContainer]{padding-left:1rem;padding-right:1rem}}</style>"
    )


def close_menu_on_phones(title: str) -> None:
    """On a narrow screen the menu lies over the page and would stay open after a page was chosen in it."""
    st.html(
        f"<script>/* {title} */ (() => {{ const menu = document.querySelector('[data-testid=stSidebar]');"
        "if (window.innerWidth < 640 && menu && menu.getBoundingClientRect().right > 60)"
        "menu.querySelector('[data-testid=stSidebarCollapseButton] button').click(); })()</script>",
        unsafe_allow_javascript=True,
    )


def set_scope(scope: Scope, folder: Path) -> None:
    """Called by the entry script before it runs a page."""
    st.session_state[_SCOPE], st.session_state[_FOLDER] = scope, folder


def scope() -> Scope:
    """The sidebar's choice."""
    chosen: Scope = st.session_state[_SCOPE]
    return chosen


def runs_folder() -> Path:
    """The folder that the app was started on."""
    folder: Path = st.session_state[_FOLDER]
    return folder


def begin(title: str, lead: str) -> Scope | None:
    """Title and one sentence. None (and a hint instead of content) when no condition is in view."""
    st.title(title, anchor=False)
    st.markdown(lead)
    chosen = scope()
    if chosen.conditions:
        return chosen
    if not chosen.contents.runs:
        st.info("There is no run yet.", icon=":material/folder_open:")
        st.page_link("views/overview.py", label="See how to make one", icon=":material/arrow_forward:")
    elif any(run.ref.is_live for run in chosen.runs):
        st.info("The run has just begun: its first rounds are not on disk yet.", icon=":material/hourglass_top:")
    elif chosen.runs:
        st.info("Nothing matches the choice in the sidebar.", icon=":material/filter_alt_off:")
    else:
        st.warning("The chosen run cannot be read; Overview lists the reason.", icon=":material/error:")
    return None
