"""Keeps the page up to date while a chosen run is being written. Knows no numbers."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from driftscope_app import page
from driftscope_app.folder import FolderContents, run_version

SECONDS_BETWEEN_LOOKS = 3


def watch(contents: FolderContents) -> None:
    """Reruns the app when a chosen run that is being written has new rounds, or has ended."""
    chosen = {run.ref.name: run.ref for run in page.scope().runs}
    for run in contents.runs:
        if run.is_live and run.name in chosen:
            _look(run.path, run.version)


@st.fragment(run_every=SECONDS_BETWEEN_LOOKS)
def _look(path: str, version: str) -> None:
    if run_version(Path(path)) != version:
        st.rerun(scope="app")
