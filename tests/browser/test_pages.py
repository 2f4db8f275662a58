"""Every page in light, dark and narrow: drawn, without console errors, without serious accessibility violations."""

from __future__ import annotations

import pytest
from driftscope_app.page import TITLES
from playwright.sync_api import expect

from tests.browser.conftest import Visitor, describe


@pytest.mark.parametrize("visit", ["light", "dark", "narrow"], indirect=True)
def test_every_page(visit: Visitor, request: pytest.FixtureRequest) -> None:
    mode = request.node.callspec.params["visit"]
    visit.open()
    found = {}
    for title in TITLES:
        visit.go(title)
        if title not in ("Probe", "Definitions"):
            expect(visit.page.locator(".js-plotly-plot").first).to_be_visible()
        visit.screenshot(f"{title.lower()}_{mode}")
        if violations := visit.violations():
            found[title] = violations
        overflow = visit.page.evaluate(
            "(() => { const m = document.querySelector('[data-testid=stMain]'); return m.scrollWidth - m.clientWidth })()"
        )
        assert overflow <= 1, f"{title} scrolls sideways by {overflow} px"
    assert not found, describe([v for violations in found.values() for v in violations])
    visit.check()


def test_every_chart_has_a_text_alternative(visit: Visitor) -> None:
    visit.open("/depth")
    charts = visit.page.get_by_test_id("stPlotlyChart")
    expect(charts).to_have_count(11)
    for chart in charts.all():
        label = chart.evaluate(
            "e => [e, ...e.querySelectorAll('*')].map(x => x.getAttribute('aria-label') || '').find(x => x.length > 60)"
        )
        assert label.startswith("Line chart")
        assert "eagle3.1" in label
