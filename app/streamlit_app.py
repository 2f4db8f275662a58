"""The driftscope app: `streamlit run app -- --runs DIR`, or `driftscope app DIR`.

Draws the navigation and the sidebar, then the page. What pages share is in `driftscope_app`; each page is a file in views/.
"""

from pathlib import Path

import streamlit as st
from driftscope_app import address, arguments, folder, live, page, scope

IMAGES = Path(__file__).parent / "images"

st.set_page_config(page_title="driftscope", page_icon=str(IMAGES / "icon.svg"), layout="wide")

PAGES = [
    st.Page("views/overview.py", title="Overview", default=True),
    st.Page("views/compare.py", title="Compare"),
    st.Page("views/depth.py", title="Depth"),
    st.Page("views/heads.py", title="Heads"),
    st.Page("views/fusion.py", title="Fusion"),
    st.Page("views/context.py", title="Context"),
    st.Page("views/rounds.py", title="Rounds"),
    st.Page("views/probe.py", title="Probe"),
    st.Page("views/definitions.py", title="Definitions"),
]

st.logo(str(IMAGES / "logo.svg"), size="large", icon_image=str(IMAGES / "icon.svg"))
page.tighten()
address.load()
runs_folder = arguments.runs_folder()
current = st.navigation(PAGES, position="top")
page.close_menu_on_phones(current.title)
contents = folder.list_folder(runs_folder)
page.set_scope(scope.choose(contents), runs_folder)
live.watch(contents)
current.run()
address.store()
