"""The way of a first visit: compare, pin a baseline, open a cell's rounds, read a round, probe a prompt of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import expect

from tests.browser.conftest import SECONDS, Visitor


def query(visit: Visitor) -> dict[str, list[str]]:
    return parse_qs(urlsplit(visit.page.url).query)


def test_compare_pin_click_read(visit: Visitor) -> None:
    page = visit.page
    visit.open()
    visit.go("Compare")
    page.get_by_role("radio", name="Drafter").or_(page.get_by_role("button", name="Drafter", exact=True)).first.click()
    visit.settle()
    expect(page.get_by_text("Against drafter")).to_be_visible()
    assert query(visit)["by"] == ["drafter"]
    assert query(visit)["baseline"] == ["eagle3"]
    visit.screenshot("journey_baseline")

    # a cell of the second map: row policy, first column
    chart = page.get_by_test_id("stPlotlyChart").nth(1)
    chart.scroll_into_view_if_needed()
    row = chart.locator(".yaxislayer-below .ytick, .yaxislayer-above .ytick", has_text="policy").first.bounding_box()
    column = chart.locator(".xaxislayer-below .xtick, .xaxislayer-above .xtick").first.bounding_box()
    assert row is not None
    assert column is not None
    page.mouse.click(column["x"] + column["width"] / 2, row["y"] + row["height"] / 2)
    expect(page.get_by_role("heading", level=1)).to_have_text("Rounds")
    visit.settle()
    assert query(visit)["at"] == ['["demo", "eagle3.1", "policy", "default", 0]']

    # the conversation is text, its rounds are buttons; a click opens the round
    rounds = page.locator(".round")
    assert rounds.count() > 3
    rounds.nth(2).click()
    expect(page.get_by_role("heading", name=re.compile(r"^Round 3 of"))).to_be_visible()
    visit.settle()
    assert query(visit)["round"] == ["3"]
    candidates = page.get_by_role("table").filter(has_text="drafter")
    expect(candidates.get_by_role("row")).to_have_count(8)  # the head and seven depths
    expect(candidates.get_by_role("row").nth(1)).to_contain_text("●")
    visit.screenshot("journey_round")

    # the keyboard does the same
    chosen = page.locator(".round.chosen")
    chosen.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=re.compile(r"^Round 4 of"))).to_be_visible()
    visit.settle()

    # the back button leads to where one was, and a copied address shows the same
    address = page.url
    page.go_back()
    visit.settle()
    expect(page.get_by_role("heading", name=re.compile(r"^Round 3 of"))).to_be_visible()
    visit.open(address.removeprefix(visit.url))
    expect(page.get_by_role("heading", name=re.compile(r"^Round 4 of"))).to_be_visible()
    visit.check()


def test_a_probe_with_a_typed_system_prompt_appears_beside_the_others(visit: Visitor, runs: Path) -> None:
    page = visit.page
    visit.open()
    visit.go("Probe")
    page.get_by_label("Name of the run").fill("rhyme")
    page.get_by_label("Name of the run").press("Tab")
    visit.settle()
    page.get_by_role("button", name="Write one").click()
    visit.settle()
    page.get_by_label("System prompt", exact=True).fill("You answer in rhyme, whatever is asked.")
    page.get_by_label("System prompt", exact=True).press("Tab")
    visit.settle()
    prompts = page.get_by_label("How many prompts at most", exact=True)
    prompts.fill("2")
    prompts.press("Tab")
    visit.settle()
    longest = page.get_by_label("Longest response (tokens)", exact=True)
    longest.fill("8")
    longest.press("Tab")
    visit.settle()
    command = page.get_by_test_id("stCode").last
    expect(command).to_contain_text("--num-prompts 2")
    expect(command).to_contain_text("--max-new-tokens 8")
    expect(command).to_contain_text("mine-1=")
    page.get_by_role("button", name="Start the probe").click()
    process = page.locator(".st-key-process_rhyme")
    expect(process).to_contain_text("running")
    visit.screenshot("journey_probe")
    page.reload()  # it goes on without the page
    expect(page.locator(".st-key-process_rhyme")).to_be_visible()
    see = page.get_by_role("button", name="See it beside the others")
    expect(see).to_be_visible(timeout=300 * SECONDS)
    assert (runs / "rhyme.drift" / "run.json").is_file()
    see.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    visit.settle()
    assert query(visit)["run"] == ["demo", "rhyme"]
    expect(page.get_by_role("heading", name="eagle3.1 · rhyme")).to_be_visible()
    visit.screenshot("journey_beside")
    visit.check()


def test_interventions_are_started_from_overview_and_cancelled(visit: Visitor) -> None:
    page = visit.page
    visit.open()
    page.get_by_role("button", name="Run the interventions").click()
    process = page.locator(".st-key-process_demo-interventions")
    expect(process).to_contain_text("running")
    page.reload()
    expect(process).to_contain_text("running")
    process.get_by_role("button", name="Cancel").click()
    # counted, as the card of the run before stands beside it for a moment while the page is drawn again
    expect(process.filter(has_text="cancelled")).to_have_count(1, timeout=120 * SECONDS)
    expect(process).to_have_count(1)
    expect(page.get_by_role("button", name="Run the interventions")).to_be_visible()
    process.get_by_role("button", name="Dismiss").click()
    expect(process).to_be_hidden()
    visit.check()


def test_a_cancelled_probe_says_so(visit: Visitor) -> None:
    page = visit.page
    visit.open()
    visit.go("Probe")
    page.get_by_label("Name of the run").fill("stopped")
    page.get_by_label("Name of the run").press("Tab")
    visit.settle()
    page.get_by_role("button", name="Start the probe").click()
    process = page.locator(".st-key-process_stopped")
    process.get_by_role("button", name="Cancel").click()
    # counted, as the card of the run before stands beside it for a moment while the page is drawn again
    expect(process.filter(has_text="cancelled")).to_have_count(1, timeout=120 * SECONDS)
    expect(process).to_have_count(1)
    visit.check()
