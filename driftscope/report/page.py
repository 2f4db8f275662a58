"""Contents -> one HTML file: the template with everything inlined, under a policy that lets nothing else run or load.

plotly.js and the report's own script stand in the file once; the Content-Security-Policy names them by their hash, so a
script that came in with a text would not run even if escaping failed.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from driftscope import __version__
from driftscope.advise import advise
from driftscope.figures import alt_text
from driftscope.quantities import QUANTITIES, REGION_DEFINITIONS
from driftscope.report import charts, facts, glossary, pairs, rounds, verdicts
from driftscope.report.contents import Contents, read_contents
from driftscope.report.estimates import tokens_of
from driftscope.report.text import clean
from driftscope.runs.files import write_bytes_atomically
from probes.errors import InputError

GENERATOR = "driftscope report"
HERE = Path(__file__).parent
_IN_BACKTICKS = re.compile("`([^`]+)`")
MIN_HEIGHT = 170  # px; below it plotly has no room for an axis and its title
PLOTLY_CONFIG = {
    "displaylogo": False,
    "displayModeBar": False,
    "showSendToCloud": False,
    "scrollZoom": False,
    "doubleClick": False,
    "responsive": True,
}


@dataclass(frozen=True)
class Report:
    """A finished report."""

    html: str
    num_runs: int
    num_figures: int
    has_text: bool


class _Figures:
    """Gives every figure of the page its place in the one block of data."""

    def __init__(self) -> None:
        self.data: list[dict[str, Any]] = []

    def add(self, figure: go.Figure) -> dict[str, Any]:
        """What the template needs of a figure."""
        drawn = json.loads(figure.to_json())
        layout = drawn["layout"]
        layout.pop("template", None)  # the page's own colours and fonts
        layout.pop("meta", None)
        height = max(layout.pop("height"), MIN_HEIGHT)
        self.data.append({"data": drawn["data"], "layout": layout})
        return {"id": f"figure-{len(self.data) - 1}", "alt": alt_text(figure), "height": height}


def write_report(
    paths: Sequence[Path], out: Path, *, with_text: bool = True, overwrite: bool = False
) -> tuple[Report, int]:
    """Write the report of the runs at `paths`; returns it and its size in bytes. A former report is replaced.

    Raises RunError for a run that cannot be read, InputError where `out` cannot be written.
    """
    _check_out(out, overwrite)
    report = make_report(paths, with_text=with_text)
    data = report.html.encode("utf-8", "replace")
    try:
        write_bytes_atomically(out, data)
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", code="cannot_write", where=str(out), remedy="Choose another --out."
        ) from error
    return report, len(data)


def make_report(paths: Sequence[Path], *, with_text: bool = True) -> Report:
    """The report as text. Raises RunError, InputError."""
    contents = read_contents(paths)
    has_text = with_text and any(run.info.has_text for run in contents.runs)
    figures = _Figures()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.globals["place_figure"] = figures.add
    environment.globals["marks"] = {"corrected": "✗", "bonus": "+"}
    environment.filters["commands"] = _commands
    scripts = {"plotly_js": _script(get_plotlyjs()), "own_js": _script(_asset("report.js"))}
    html = environment.get_template("report.html.j2").render(
        generator=GENERATOR,
        version=__version__,
        made_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        policy=_policy(scripts.values()),
        css=Markup(_asset("report.css")),
        config=PLOTLY_CONFIG,
        figures=figures,
        with_text=with_text,
        has_text=has_text,
        **{name: Markup(script) for name, script in scripts.items()},
        **_sections(contents, with_text=with_text),
    )
    return Report(html, len(contents.runs), len(figures.data), has_text)


def _sections(contents: Contents, *, with_text: bool) -> dict[str, Any]:
    comparison = pairs.compare_series(contents)
    with_rounds = [run for run in contents.runs if run.summary.conditions]
    return {
        "contents": contents,
        "cards": [_card(contents, series) for series in contents.series],
        "groups": verdicts.verdict_groups(contents),
        "unjudged": verdicts.unjudged(contents),
        "file_findings": verdicts.file_findings(contents),
        "evidence": verdicts.evidence_table(contents),
        "tokens_charts": charts.tokens_charts(contents),
        "tokens_table": facts.tokens_table(contents),
        "acceptance_table": facts.acceptance_table(contents),
        "comparison": comparison,
        "difference_charts": charts.difference_charts(contents, comparison) if comparison else [],
        "loss_charts": charts.loss_charts(contents),
        "losses_table": verdicts.losses_table(contents),
        "losses_meanings": verdicts.losses_meanings(contents),
        "gain_charts": charts.gain_charts(contents),
        "gains_table": verdicts.gains_table(contents),
        "depth_sections": charts.depth_charts(contents),
        "attention_charts": charts.attention_charts(contents),
        "fusion_charts": charts.fusion_charts(contents),
        "context_charts": charts.context_charts(contents),
        "advice": [(run, advice, facts.advice_tables(advice)) for run in with_rounds for advice in [advise(run.run)]],
        "bad_rounds": rounds.worst_rounds(contents, with_text=with_text),
        "why_no_text": rounds.why_no_text(contents) if with_text else [],
        "run_tables": [
            {
                "run": run,
                "table": facts.run_table(run),
                "hashes": facts.hashes_table(run),
                "check": facts.check_table(run),
                "drafters": [(d, facts.drafter_line(d), facts.settings_table(d)) for d in run.info.drafters],
            }
            for run in contents.runs
        ],
        "quantities": QUANTITIES.values(),
        "regions": REGION_DEFINITIONS,
        "glossary": glossary,
    }


def _card(contents: Contents, series: str) -> dict[str, Any]:
    """A series' tokens per round at its reference place, and where it is highest and lowest."""
    own = [c for c in contents.of_series(series) if c.estimate(contents.basis).value is not None]
    if not own:
        return {"series": series, "at": None}
    at = next((c for c in own if c.place in contents.places[:1]), own[0])
    ranked = sorted(own, key=lambda c: c.estimate(contents.basis).value or 0.0)
    tokens = tokens_of(at.summary, contents.basis)
    return {
        "series": series,
        "at": at,
        "estimate": at.estimate(contents.basis),
        "why_no_interval": tokens.why_no_interval if tokens else None,
        "lowest": ranked[0],
        "highest": ranked[-1],
    }


def _commands(text: str) -> Markup:
    """`text` escaped, and what stands between backticks as code."""
    return Markup(_IN_BACKTICKS.sub(r"<code>\1</code>", str(escape(clean(text)))))


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """As the browser's parser will see it: its hash must be that of what is parsed."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _policy(scripts: Any) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _check_out(out: Path, overwrite: bool) -> None:
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(
            "is a folder" if out.is_dir() else "its folder does not exist",
            code="cannot_write",
            where=str(out),
            remedy="Give the path of a file to write, such as report.html.",
        )
    if not out.exists() or overwrite:
        return
    with out.open("rb") as file:
        if GENERATOR.encode() not in file.read(2_000):
            raise InputError(
                "exists and is no report of driftscope",
                code="exists",
                where=str(out),
                remedy="Choose another --out, or replace it with --overwrite.",
            )
