"""Opens the app on a folder of synthetic runs, without a browser (Streamlit's AppTest)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driftscope_app.page import TITLES
from streamlit.testing.v1 import AppTest

from driftscope.runs import read_run
from driftscope.summary import ConditionSummary, Summary, summarise
from tests.app.varied_run import write_varied_run

APP = Path(__file__).parents[2] / "app"
PAGES = tuple(title.lower() for title in TITLES)

OpenApp = Callable[..., AppTest]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`demo` (6 prompts, one of them looping) and an older, smaller run; never written to."""
    folder = tmp_path_factory.mktemp("runs")
    write_varied_run(folder / "older.drift", contexts=(0, 512), system_prompts=("default", "none"), seed=5)
    write_varied_run(folder / "demo.drift")
    return folder


@pytest.fixture(scope="session")
def summary(runs: Path) -> Summary:
    """What `driftscope show` says of `demo`."""
    return summarise(read_run(runs / "demo.drift"))


@pytest.fixture(autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the app keeps which processes it started: not the tester's own."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def open_app(runs: Path, monkeypatch: pytest.MonkeyPatch) -> OpenApp:
    """open_app(page, folder=runs, **query parameters) -> the page as it stands after its first run."""

    def open_page(page: str, *, folder: Path = runs, **parameters: str | list[str]) -> AppTest:
        monkeypatch.setattr(sys, "argv", ["streamlit_app.py", "--runs", str(folder)])
        at = AppTest.from_file(str(APP / "streamlit_app.py"), default_timeout=60)
        for name, value in parameters.items():
            at.query_params[name] = value
        at.switch_page(f"views/{page}.py")
        return checked(at.run())

    return open_page


def checked(at: AppTest) -> AppTest:
    """No exception reached the page."""
    assert not at.exception, [(e.value, e.stack_trace[-5:]) for e in at.exception]
    return at


def charts(at: AppTest) -> dict[str, dict[str, Any]]:
    """Figure specs of the page by their text alternative."""
    return {element.proto.alt: json.loads(element.proto.spec) for element in at.get("plotly_chart")}


def chart(at: AppTest, alt_start: str) -> dict[str, Any]:
    """The one chart whose text alternative begins so."""
    found = {alt: spec for alt, spec in charts(at).items() if alt.startswith(alt_start)}
    assert len(found) == 1, (alt_start, list(charts(at)))
    return next(iter(found.values()))


def condition(
    summary: Summary, drafter: str, system_prompt: str = "default", context_tokens: int = 0
) -> ConditionSummary:
    """One condition of a summary."""
    return next(
        c
        for c in summary.conditions
        if (c.drafter, c.system_prompt, c.context_tokens) == (drafter, system_prompt, context_tokens)
    )


def lines(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Traces with markers by name: bands left out."""
    return {trace["name"]: trace for trace in spec["data"] if not trace["name"].endswith("(interval)")}


def texts(at: AppTest) -> str:
    """All words of the page that are no chart or table."""
    kinds = (at.title, at.header, at.subheader, at.markdown, at.caption, at.info, at.warning, at.error, at.success)
    html = [element.proto.body for element in at.get("html")]
    return "\n".join([str(element.value) for kind in kinds for element in kind] + html)
