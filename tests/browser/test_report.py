"""The report in a real Chromium: opened from a file with no network at all, drawn in both themes, small and printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from driftscope.cli import main
from tests.browser.conftest import MODES, describe, violations
from tests.synthetic_run import make_records, write_run

DRAWN = "html[data-drawn]"


class Reader:
    """A window without a network, and everything that it asked for or complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.context.set_offline(True)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, file: Path) -> None:
        """Until every figure is drawn."""
        self.page.goto(file.as_uri())
        self.page.wait_for_selector(DRAWN)

    def figures(self) -> list[tuple[float, float]]:
        """Width of each plot, and of its place."""
        sizes: list[tuple[float, float]] = self.page.evaluate(
            "[...document.querySelectorAll('.plot')].map(p => "
            "[p.querySelector('.main-svg').getBoundingClientRect().width, p.getBoundingClientRect().width])"
        )
        return [(drawn, place) for drawn, place in sizes]


@pytest.fixture(scope="module")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the real run."""
    out = tmp_path_factory.mktemp("report") / "demo.html"
    assert main(["report", str(runs / "demo.drift"), "-o", str(out)]) == 0
    return out


@pytest.fixture
def reader(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Reader]:
    """Parametrize indirectly with a key of MODES for another than light."""
    context = browser.new_context(**MODES[getattr(request, "param", "light")])
    yield Reader(context.new_page())
    context.close()


@pytest.mark.parametrize("reader", list(MODES), indirect=True)
def test_it_is_drawn_without_a_network_and_without_a_complaint(reader: Reader, report: Path) -> None:
    reader.open(report)
    assert reader.requests == [report.as_uri()]
    assert reader.complaints == []
    widths = reader.figures()
    assert len(widths) > 20
    assert all(drawn <= place + 1 for drawn, place in widths)
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = violations(reader.page)
    assert not found, describe(found)


def test_it_is_read_with_the_keyboard(reader: Reader, report: Path) -> None:
    reader.open(report)
    reader.page.keyboard.press("Tab")
    skip = reader.page.get_by_role("link", name="Skip to the verdicts")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    reader.page.keyboard.press("Enter")
    expect(reader.page.locator("#main")).to_be_focused()
    evidence = reader.page.locator("summary", has_text="Evidence of every verdict")
    for _ in range(60):
        if evidence.evaluate("e => e === document.activeElement"):
            break
        reader.page.keyboard.press("Tab")
    reader.page.keyboard.press("Enter")
    expect(reader.page.get_by_role("table", name="Evidence of every verdict")).to_be_visible()


def test_figures_follow_the_theme(reader: Reader, report: Path) -> None:
    reader.open(report)

    def ink() -> str:
        color: str = reader.page.evaluate("getComputedStyle(document.querySelector('#figure-0 .xtitle')).fill")
        return color

    light = ink()
    reader.page.emulate_media(color_scheme="dark")
    reader.page.wait_for_function(
        "light => getComputedStyle(document.querySelector('#figure-0 .xtitle')).fill !== light", arg=light
    )
    dark = ink()
    assert (light, dark) == ("rgb(21, 24, 29)", "rgb(232, 234, 238)")
    reader.page.emulate_media(media="print")  # on paper the ink is black
    reader.page.wait_for_function(
        "() => getComputedStyle(document.querySelector('#figure-0 .xtitle')).fill === 'rgb(0, 0, 0)'"
    )
    assert reader.complaints == []


def test_a_script_that_came_in_would_not_run(reader: Reader, report: Path, tmp_path: Path) -> None:
    """Escaping has its own test; this is what stands behind it: the policy names the only scripts that may run."""
    html = report.read_text(encoding="utf-8")
    injected = '<main id="main" tabindex="-1"><script>window.hacked = 1</script><img src=\'http://127.0.0.1:9/x\'>'
    assert html.count('<main id="main" tabindex="-1">') == 1
    file = tmp_path / "injected.html"
    file.write_text(html.replace('<main id="main" tabindex="-1">', injected), encoding="utf-8")
    reader.open(file)
    assert reader.page.evaluate("window.hacked") is None
    assert sum("Content Security Policy" in complaint for complaint in reader.complaints) == 2


def test_hostile_names_in_figures(reader: Reader, tmp_path: Path) -> None:
    """Plotly has markup of its own in labels: names show as they are."""
    name = "<b>bold</b><a href='http://127.0.0.1:9/'>x</a>"
    out = tmp_path / "r.html"
    run = write_run(tmp_path / "a.drift", make_records(system_prompts=("default", name)))
    assert main(["report", str(run), "-o", str(out)]) == 0
    reader.open(out)
    assert reader.page.locator(".plot a").count() == 0
    labels = reader.page.locator("#figure-0 .ytick").all_text_contents()
    assert any(name in label for label in labels)
    assert reader.requests == [out.as_uri()]
    assert reader.complaints == []
