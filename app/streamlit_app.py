"""The driftscope app: `streamlit run app -- --runs DIR`, or `driftscope app DIR`.

Draws the navigation and the sidebar, then the page. What pages share is in `driftscope_app`; each page is a file in views/.
"""

import streamlit as st
from driftscope_app import address, arguments, folder, live, page, scope

st.set_page_config(page_title="driftscope", page_icon=":material/troubleshoot:", layout="wide")

PAGES = [
    st.Page("views/overview.py", title="Overview", icon=":material/dashboard:", default=True),
    st.Page("views/compare.py", title="Compare", icon=":material/grid_on:"),
    st.Page("views/depth.py", title="Depth", icon=":material/stairs:"),
    st.Page("views/heads.py", title="Heads", icon=":material/hub:"),
    st.Page("views/fusion.py", title="Fusion", icon=":material/merge:"),
    st.Page("views/context.py", title="Context", icon=":material/straighten:"),
    st.Page("views/rounds.py", title="Rounds", icon=":material/forum:"),
    st.Page("views/probe.py", title="Probe", icon=":material/science:"),
    st.Page("views/definitions.py", title="Definitions", icon=":material/menu_book:"),
]

address.load()
runs_folder = arguments.runs_folder()
current = st.navigation(PAGES, position="top")
contents = folder.list_folder(runs_folder)
page.set_scope(scope.choose(contents), runs_folder)
live.watch(contents)
current.run()
address.store()
