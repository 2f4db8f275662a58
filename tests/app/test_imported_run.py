"""An imported run has acceptance columns only: every page opens on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driftscope.import_export import ImportOptions, read_acceptance, store_run
from tests.app.conftest import PAGES, OpenApp, texts

METRICS = Path(__file__).parents[1] / "fixtures" / "exchange" / "vllm_detailed.jsonl"


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, open_app: OpenApp, tmp_path: Path) -> None:
    store_run(read_acceptance(METRICS), tmp_path / "served.drift", ImportOptions())
    at = open_app(page, folder=tmp_path, run="served")
    if page == "rounds":
        assert any("reason not known" in warning.value for warning in at.warning)


def test_tokens_are_laid_out_where_the_source_gives_no_lengths(open_app: OpenApp, tmp_path: Path) -> None:
    store_run(read_acceptance(METRICS), tmp_path / "served.drift", ImportOptions())
    at = open_app("rounds", folder=tmp_path, run="served", prompt="c")  # one round, two drafts accepted
    assert "? prompt tokens, ? of response" in texts(at)
    [element] = at.get("bidi_component")
    assert json.loads(element.proto.json)["kinds"] == ["first", "accepted", "accepted", "corrected"]


def test_rounds_without_an_order_are_not_laid_out_as_text(open_app: OpenApp, tmp_path: Path) -> None:
    store_run(read_acceptance(METRICS.with_name("metrics.prom")), tmp_path / "served.drift", ImportOptions())
    at = open_app("rounds", folder=tmp_path, run="served", round="30")
    assert "does not tell the order of these rounds" in texts(at)
    assert not at.get("bidi_component")
    assert at.subheader[0].value == "Round 30 of 30"
    assert at.selectbox(key="jump").options[0].startswith("0 accepted, round ")


def test_a_temperature_that_is_not_known_is_said_so(open_app: OpenApp, tmp_path: Path) -> None:
    store_run(read_acceptance(METRICS), tmp_path / "served.drift", ImportOptions())
    at = open_app("overview", folder=tmp_path, run="served")
    facts = dict(zip(*(at.table[0].value[column] for column in ("", "value")), strict=True))
    assert facts["temperature"] == "not known"
