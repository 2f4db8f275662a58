"""Offers to run the interventions that a run lacks: verdicts that name a cause need them."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from driftscope.diagnosis.named import Named
from driftscope_app import aggregates, page, probe_process, process_card
from driftscope_app.scope import Scope, SelectedRun
from driftscope_app.text import MAX_CHARACTERS, plain
from probes.errors import InputError, bounded


def show(scope: Scope) -> None:
    """For each chosen run: what is running, what has ended, or a button."""
    for run in scope.runs:
        _of_run(run)


def _of_run(run: SelectedRun) -> None:
    ref, folder = run.ref, page.runs_folder()
    process = probe_process.interventions_of(folder, folder / f"{ref.name}.drift")
    if process is not None:
        process_card.show(process)
        if probe_process.state(process).may_be_cancelled:  # one that is not ours keeps nobody from starting them
            return
    missing = aggregates.missing_interventions(ref.path, ref.version)
    if ref.is_live or not missing.ids:
        return
    name = plain(ref.name)
    if missing.why_not is not None:
        st.caption(f"Interventions cannot be run on {name}: {plain(missing.why_not)}.")
        return
    with st.container(border=True):
        st.markdown(
            f"**{len(missing.ids)} interventions were not tried on {name}.** Each changes one thing, for instance the norm "
            "of the state that is fed back, and measures again on the same texts. This proves a cause, and takes several "
            "times as long as the run itself."
        )
        _what_is_loaded(ref.name, missing.named)
        if st.button("Run the interventions", key=f"intervene_{ref.name}", icon=":material/play_arrow:"):
            try:
                probe_process.start_interventions(folder, folder / f"{ref.name}.drift")
            except (InputError, OSError) as error:
                st.error(plain(str(error)), icon=":material/error:")
            else:
                st.rerun()


def _what_is_loaded(run: str, named: Sequence[Named]) -> None:
    """Before anything is loaded: the run may be somebody else's, and says what its interventions load."""
    if all(thing.is_builtin for thing in named):
        st.markdown("They load what ships with driftscope only:")
    else:
        st.markdown(
            "**They load what this run names.** Start them only if you know these models and files. No code of a model's "
            "repository is run."
        )
    st.dataframe(
        {
            "what": [bounded(thing.what, MAX_CHARACTERS) for thing in named],
            "where": [bounded(thing.value, MAX_CHARACTERS) for thing in named],
            "from": [_origin(thing) for thing in named],
        },
        hide_index=True,
        width="stretch",
        key=f"named_{run}",
        alt=f"Table of the {len(named)} models and files that the interventions on {run} load",
    )


def _origin(thing: Named) -> str:
    if thing.is_builtin:
        return "ships with driftscope"
    return "the Hub, unless it is here already" if thing.is_hub_id else "this machine"
