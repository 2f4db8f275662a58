"""What is shown when a folder holds no run: how to make one. And the folders that cannot be read, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from driftscope_app import probe_process
from driftscope_app.folder import Unreadable
from driftscope_app.scope import folder_label
from driftscope_app.text import code, plain
from probes.errors import InputError


def show(runs: Path, unreadable: Sequence[Unreadable]) -> None:
    """The start page of an empty folder."""
    st.title("Why are my drafter's tokens not accepted?", anchor=False)
    st.markdown(
        "driftscope runs an EAGLE-3 or EAGLE-3.1 drafter against its target, records what happens at every depth, "
        "and shows "
        f"where acceptance is lost. There is no run in {code(folder_label(runs))} yet."
    )
    with st.container(border=True):
        st.subheader("Try it on the built-in pair")
        st.markdown("A small target and two drafters, eight system prompts, three context lengths: minutes on a CPU.")
        st.code(probe_process.command_line(runs, "demo", ["demo"]), language="bash", wrap_lines=True)
        if any(probe.name == "demo" for probe in probe_process.list_processes(runs)):
            st.page_link("views/probe.py", label="It was started: see how far it is", icon=":material/science:")
        elif st.button("Make the demo run", type="primary", icon=":material/play_arrow:"):
            try:
                probe_process.start(runs, "demo", ["demo"], {})
            except (InputError, OSError) as error:
                st.error(plain(str(error)), icon=":material/error:")
            else:
                st.switch_page("views/probe.py")
    left, right = st.columns(2)
    with left.container(border=True, height="stretch"):
        st.subheader("Your own drafter")
        st.code(
            "driftscope probe --target TARGET \\\n  --drafter mine=DRAFTER --prompts chats.jsonl \\\n  --out "
            "runs/mine.drift",
            language="bash",
        )
        st.page_link("views/probe.py", label="Or fill in a form", icon=":material/science:")
    with right.container(border=True, height="stretch"):
        st.subheader("Only see what a run says")
        st.code("driftscope show runs/mine.drift", language="bash")
        st.page_link("views/definitions.py", label="What is measured", icon=":material/menu_book:")
    list_unreadable(unreadable)


def list_unreadable(unreadable: Sequence[Unreadable]) -> None:
    """Folders that are no runs, each with its reason."""
    if not unreadable:
        return
    st.subheader("Cannot be read")
    for item in unreadable:
        st.warning(f"**{plain(item.name)}**: {plain(item.reason)}", icon=":material/folder_off:")
