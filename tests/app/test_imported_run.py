"""An imported run has acceptance columns only: every page opens on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftscope.exchange import ImportOptions, read_acceptance, store_run
from tests.app.conftest import PAGES, OpenApp

METRICS = Path(__file__).parents[1] / "fixtures" / "exchange" / "vllm_detailed.jsonl"


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, open_app: OpenApp, tmp_path: Path) -> None:
    store_run(read_acceptance(METRICS), tmp_path / "served.drift", ImportOptions())
    at = open_app(page, folder=tmp_path, run="served")
    if page == "rounds":
        assert any("reason not known" in warning.value for warning in at.warning)
