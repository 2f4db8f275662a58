"""What holds for every page: text alternatives, no heavy imports, definitions, links."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.figures.style import COLORS, REGION_COLORS, contrast
from driftscope.quantities import QUANTITIES, REGION_DEFINITIONS
from probes.record import REGIONS, RejectionReason
from tests.app.conftest import APP, PAGES, OpenApp, charts, texts


def test_every_page_is_in_the_navigation() -> None:
    assert sorted(PAGES) == sorted(file.stem for file in (APP / "views").glob("*.py"))


@pytest.mark.parametrize("page", PAGES)
def test_every_chart_has_its_numbers_in_words(open_app: OpenApp, page: str) -> None:
    at = open_app(page)
    assert at.title[0].value
    for element in at.get("plotly_chart"):
        assert len(element.proto.alt) > 60
        assert any(character.isdigit() for character in element.proto.alt)
    if page not in ("probe", "definitions"):
        assert charts(at)


@pytest.mark.parametrize("page", PAGES)
def test_the_url_names_the_run(open_app: OpenApp, page: str) -> None:
    assert open_app(page).query_params["run"] == "demo"


def test_the_app_imports_no_torch_transformers_or_vllm(runs: Path) -> None:
    code = (
        "import sys; from streamlit.testing.v1 import AppTest; "
        f"sys.argv = ['app', '--runs', {str(runs)!r}]; sys.path.insert(0, {str(APP)!r}); "
        f"at = AppTest.from_file({str(APP / 'streamlit_app.py')!r}, default_timeout=60)\n"
        f"for page in {PAGES!r}:\n"
        "    at.switch_page(f'views/{page}.py').run()\n"
        "    assert not at.exception, at.exception\n"
        "heavy = {'torch', 'transformers', 'vllm', 'pandas.plotting'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy - {'pandas.plotting'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heavy: []" in result.stdout


def test_definitions_cover_every_region_reason_and_quantity(open_app: OpenApp) -> None:
    words = texts(open_app("definitions")).replace("\\", "")
    for region in REGIONS:
        assert f"**{region}**" in words
    for reason in RejectionReason:
        assert reason.name == "none" or f"**{reason.name}**" in words
    for quantity in QUANTITIES.values():
        assert quantity.title in words
        assert f"`{quantity.name}`" in words


def test_the_palette_stands_out_on_light_and_dark() -> None:
    for color in COLORS:
        assert contrast(color, "#FFFFFF") >= 3
        assert contrast(color, "#11151C") >= 3


def test_every_region_has_a_meaning_and_a_colour_of_its_own() -> None:
    assert set(REGION_COLORS) == set(REGIONS) == set(REGION_DEFINITIONS)
    assert len(set(REGION_COLORS.values())) == len(REGIONS)


def test_it_listens_on_this_machine_only_and_sends_nothing() -> None:
    import tomllib

    config = tomllib.loads((APP / ".streamlit" / "config.toml").read_text())
    assert config["server"]["address"] == "127.0.0.1"
    assert config["server"]["showEmailPrompt"] is False
    assert config["browser"]["gatherUsageStats"] is False
    assert config["server"]["maxUploadSize"] <= 16
