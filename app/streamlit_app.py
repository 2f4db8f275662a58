"""The driftscope app: `streamlit run app -- --runs DIR`, or `driftscope app DIR`.

Streamlit imports this file once, for the server, and runs it as `__main__` at each look of a visitor: then it draws the
navigation and the sidebar, and the page. What pages share is in `driftscope_app`; each page is a file in views/.
"""

import secrets
from pathlib import Path

import streamlit as st
from driftscope_app import address, arguments, folder, live, page, scope, start
from driftscope_app.text import plain

from probes.errors import DriftscopeError

IMAGES = Path(__file__).parent / "images"


def draw() -> None:
    """One look at the app."""
    st.set_page_config(page_title="driftscope", page_icon=str(IMAGES / "icon.svg"), layout="wide")
    pages = [st.Page(f"views/{t.lower()}.py", title=t, default=t == page.TITLES[0]) for t in page.TITLES]
    st.logo(str(IMAGES / "logo.svg"), size="large", icon_image=str(IMAGES / "icon.svg"))
    page.tighten()
    address.load()
    runs_folder = arguments.runs_folder()
    current = st.navigation(pages, position="top")
    page.close_menu_on_phones(current.title)
    contents = folder.list_folder(runs_folder)
    page.set_scope(scope.choose(contents), runs_folder)
    live.watch(contents)
    try:
        current.run()
    except (DriftscopeError, OSError) as error:  # a chosen run that cannot be read to its end: another can be chosen
        st.error(plain(str(error)), icon=":material/error:")
    address.store()


if __name__ == "__main__":
    draw()
else:
    token = secrets.token_urlsafe(32)
    app = st.App(
        __file__,
        middleware=[start.guarded(token, arguments.allowed_hosts())],
        lifespan=start.announced(token),
    )
