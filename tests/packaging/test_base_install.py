"""`pip install driftscope` alone, beside a foreign `app` package: reads, checks and compares; says what else needs what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.packaging.conftest import FOREIGN_APP, Installed

HEAVY = ("torch", "transformers", "vllm", "streamlit", "safetensors")


def test_it_brings_none_of_the_heavy_packages(base: Installed) -> None:
    found = base.python(f"from importlib.util import find_spec; print([n for n in {HEAVY} if find_spec(n)])")
    assert found == "[]"


def test_help_and_version_run_outside_the_checkout(base: Installed) -> None:
    assert "probe" in base.run("driftscope", "--help")
    assert base.run("driftscope", "--version").split() == ["driftscope", "0.1.0"]
    where = base.python("import driftscope, probes; print(driftscope.__file__, probes.__file__)").split()
    assert all(Path(path).is_relative_to(base.site_packages) for path in where)


def test_a_foreign_app_package_stays_what_it_is(base: Installed) -> None:
    assert base.python("import driftscope.cli, app; print(app.OWNER)") == FOREIGN_APP


def test_the_data_is_found_in_the_installation(base: Installed) -> None:
    code = (
        "from driftscope.builtin import resolve_drafter, sample_prompts\n"
        "from driftscope.cli.app import app_folder\n"
        "print(sample_prompts(), app_folder(), resolve_drafter('demo:eagle3'), resolve_drafter('demo:eagle3.1'))"
    )
    package = base.site_packages / "driftscope"
    assert [Path(path) for path in base.python(code).split()] == [
        package / "_sample_prompts",
        package / "_app",
        package / "_demo_drafters" / "eagle3",
        package / "_demo_drafters" / "eagle3.1",
    ]


def test_show_and_runs(base: Installed, run_folder: Path) -> None:
    run = run_folder / "made-up.drift"
    shown = json.loads(base.run("driftscope", "show", run, "--json"))
    assert {c["drafter"] for c in shown["conditions"]} == {"eagle3", "eagle3.1"}
    assert all(c["walk"]["tokens_per_round"] >= 1 for c in shown["conditions"])
    assert "tokens per round" in base.run("driftscope", "show", run).replace("_", " ")
    assert "made-up" in base.run("driftscope", "runs", "list", run_folder)
    base.run("driftscope", "runs", "verify", run)


def test_check_finds_what_is_wrong_with_a_pair(base: Installed, helpers: Path) -> None:
    pair = base.work / "pair"
    base.python(
        f"import sys; sys.path.append({str(helpers)!r})\n"
        "import json\n"
        "from pathlib import Path\n"
        "from tests.checkpoint_writers import Tiny, config, weights, write_checkpoint\n"
        f"tiny, pair = Tiny(), Path({str(pair)!r})\n"
        "write_checkpoint(pair / 'drafter', 'specforge', weights(tiny), config('specforge', tiny))\n"
        "(pair / 'target').mkdir()\n"
        "target = {'model_type': 'llama', 'rope_theta': 10000.0, **tiny.target_config}\n"
        "(pair / 'target' / 'config.json').write_text(json.dumps(target))"
    )
    report = json.loads(base.run("driftscope", "check", pair / "target", pair / "drafter", "--json", num_code=1))
    assert "DS401" in {finding["id"] for finding in report["findings"]}  # the drafter's rope base is another
    missing = json.loads(base.run("driftscope", "check", pair / "no", pair / "drafter", "--json", num_code=2))
    assert str(pair / "no") in json.dumps(missing["error"])
    assert len(json.loads(base.run("driftscope", "check", "--list", "--json"))) >= 1


def test_compare_and_report(base: Installed, run_folder: Path) -> None:
    run = run_folder / "made-up.drift"
    commands = {line.split()[0] for line in base.run("driftscope", "--help").partition("Commands:")[2].splitlines()[1:]}
    assert {"check", "show", "runs", "schema", "export", "import", "diagnose", "compare", "report"} <= commands
    compared = json.loads(base.run("driftscope", "compare", run, "--by", "drafter", "--json"))
    assert compared["schema_version"] == 1
    base.run("driftscope", "report", run, "-o", base.work / "report.html")
    assert "<html" in (base.work / "report.html").read_text()


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("probe", "--target", "demo", "--drafter", "d=demo:eagle3"), "probe"),
        (("demo",), "probe"),
        (("app", "."), "app"),
    ],
    ids=["probe", "demo", "app"],
)
def test_what_needs_an_extra_names_it(base: Installed, command: tuple[str, ...], extra: str) -> None:
    result = base.run_for_error("driftscope", *command)
    assert f"driftscope[{extra}]" in result
    assert not (base.work / "runs").exists()
