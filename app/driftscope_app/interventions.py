"""Offers to run the interventions that a run lacks: verdicts that name a cause need them."""

from __future__ import annotations

import streamlit as st

from driftscope_app import aggregates, page, probe_process, process_card
from driftscope_app.scope import Scope, SelectedRun
from driftscope_app.text import plain


def show(scope: Scope) -> None:
    """For each chosen run: what is running, what has ended, or a button."""
    for run in scope.runs:
        _of_run(run)


def _of_run(run: SelectedRun) -> None:
    ref, folder = run.ref, page.runs_folder()
    process = probe_process.interventions_of(folder, folder / f"{ref.name}.drift")
    if process is not None:
        process_card.show(process)
        if probe_process.state(process).status is probe_process.ProbeStatus.running:
            return
    missing = aggregates.missing_interventions(ref.path, ref.version)
    if ref.is_live or not missing.ids:
        return
    name = plain(ref.name)
    if missing.why_not is not None:
        st.caption(f"Interventions cannot be run on {name}: {plain(missing.why_not)}.")
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**{len(missing.ids)} interventions were not tried on {name}.** Each changes one thing, for instance the norm "
            "of the state that is fed back, and measures again on the same texts. This proves a cause, and takes several "
            "times as long as the run itself.",
            width="stretch",
        )
        if st.button("Run the interventions", key=f"intervene_{ref.name}", icon=":material/play_arrow:"):
            probe_process.start_interventions(folder, folder / f"{ref.name}.drift")
            st.rerun()
