"""A process that was started from the app: how far it is, cancel, what it said. Draws; `probe_process` knows."""

from __future__ import annotations

import time

import streamlit as st

from driftscope_app import address, page, probe_process
from driftscope_app.probe_process import ProbeProcess, ProbeState, ProbeStatus, ProcessKind, Unusable
from driftscope_app.text import plain

SECONDS_BETWEEN_LOOKS = 1.5
ICONS = {
    ProbeStatus.running: ":material/progress_activity:",
    ProbeStatus.complete: ":material/check_circle:",
    ProbeStatus.failed: ":material/error:",
    ProbeStatus.cancelled: ":material/cancel:",
}
STARTING = {
    ProcessKind.probe: "Loading the models and writing the responses",
    ProcessKind.interventions: "Loading the models",
}
STOPPED = {
    ProcessKind.probe: "Stopped; what was measured stays as an incomplete run.",
    ProcessKind.interventions: "Stopped; what was counted stays, and the next start goes on from there.",
}

NOT_OURS = (
    "It cannot be cancelled here: this app has no record that it started it. It keeps one in ~/.local/state/driftscope, "
    "or in $XDG_STATE_HOME."
)


def show(process: ProbeProcess) -> None:
    """Looks again by itself while it runs; its end redraws the page."""
    if probe_process.state(process).status is ProbeStatus.running:
        _watched(process)
    else:
        _card(process)


@st.fragment(run_every=SECONDS_BETWEEN_LOOKS)
def _watched(process: ProbeProcess) -> None:
    if probe_process.state(process).status is not ProbeStatus.running:
        st.rerun(scope="app")
    _card(process)


def _card(process: ProbeProcess) -> None:
    state = probe_process.state(process)
    with st.container(border=True, key=f"process_{process.name}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            title = process.name if process.kind is ProcessKind.probe else f"Interventions on {process.out.stem}"
            st.markdown(f"{ICONS[state.status]} **{plain(title)}** · {state.status}", width="stretch")
            if state.status is ProbeStatus.running:
                st.caption(_ago(max(0.0, time.time() - process.started_at)), width="content")
                if state.may_be_cancelled:
                    if st.button("Cancel", key=f"cancel_{process.name}", icon=":material/stop:"):
                        probe_process.cancel(process)
                else:
                    _dismiss(process)
            else:
                _what_next(process)
        if state.status is ProbeStatus.running:
            if state.num_units:
                text = f"{state.num_done} of {state.num_units} · {plain(state.condition)}"
                st.progress(min(state.num_done / state.num_units, 1.0), text=text)
            else:
                st.progress(0.0, text=STARTING[process.kind])
            if not state.may_be_cancelled:
                st.caption(NOT_OURS)
        said = state.error or _left_out(process, state)
        if said is not None:
            st.error(plain(said), icon=":material/error:")
        if state.status is ProbeStatus.cancelled and process.out.is_dir():
            st.caption(STOPPED[process.kind])
        with st.expander("Command and log"):
            st.code(process.command, language="bash", wrap_lines=True)
            if state.log:
                st.code(state.log, language=None)


def _what_next(process: ProbeProcess) -> None:
    if (
        process.kind is ProcessKind.probe
        and process.out.is_dir()
        and st.button("See it beside the others", key=f"open_{process.name}", icon=":material/grid_on:", type="primary")
    ):
        others = [run.ref.name for run in page.scope().runs if run.ref.name != process.name]
        address.put(run=[*others, process.name], drafter=[], system_prompt=[], template=[], context_tokens=[])
        st.switch_page("views/compare.py")
    _dismiss(process)


def _dismiss(process: ProbeProcess) -> None:
    if st.button("Dismiss", key=f"forget_{process.name}", help="Leaves the list; the run stays."):
        try:
            probe_process.forget(process)
        except OSError as error:
            st.error(plain(f"{process.folder}: {error.strerror}"), icon=":material/error:")
            return
        st.rerun(scope="app")


def show_unusable(unusable: Unusable) -> None:
    """What lies among the processes and is none: its reason, in place of a card."""
    st.warning(f"**{plain(unusable.name)}**: {plain(unusable.reason)}", icon=":material/error:")


def _left_out(process: ProbeProcess, state: ProbeState) -> str | None:
    """`diagnose` goes on without interventions where it cannot run them, and says why."""
    if process.kind is not ProcessKind.interventions or state.status is not ProbeStatus.complete:
        return None
    lines = (line for line in state.log.splitlines() if line.startswith(probe_process.NOT_RUN))
    return next(lines, None)


def _ago(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
