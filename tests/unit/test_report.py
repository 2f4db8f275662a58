"""The HTML report: what it says of a run, that text never becomes markup, and that nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer, models

from driftscope.cli import main
from driftscope.cli.report import ReportOutput
from driftscope.diagnosis.diagnosis import FileFinding
from driftscope.report import make_report, write_report
from driftscope.report.charts import difference_charts
from driftscope.report.contents import read_contents
from driftscope.report.pairs import compare_series
from driftscope.report.text import clean, label, single
from driftscope.report.verdicts import file_findings, verdict_groups
from driftscope.runs import TargetInfo, read_run
from driftscope.runs.info import RunInfo
from driftscope.runs.listing import names_apart
from driftscope.summary import summarise
from probes.errors import InputError, RunError
from probes.record import PromptRecord, Record
from tests.synthetic_run import DRAFTERS, make_batch, make_info, make_prompt, make_records, write_run

HOSTILE = {
    "html": "<b>bold</b><img src=x onerror=alert(1)><a href='javascript:alert(1)'>click</a>",
    "script": "</script><script>window.hacked = 1</script>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "template": "{{ 7 * 7 }}{% for x in y %}",
    "comment": "<!-- --><![CDATA[ ]]><!doctype html>",
    "control": "\x00\x01\x1b[31mred\x7f\x9b",
    "line": "x" * 1_000_000,
    "emoji": "👩‍👩‍👧 🏳️‍🌈",
    "right to left": "שלום \u202eevil\u202c مرحبا",
    "markup": "`code` **bold** [a](http://example.com) &amp; &lt;b&gt;",
}


class Page(HTMLParser):
    """Elements with their attributes, text by element, and the text of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "script" in self._inside:
            self.scripts.append(data)
        elif "style" not in self._inside:
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Attributes of every element of that name."""
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self) -> str:
        """All text, blanks collapsed."""
        return " ".join(" ".join(self.text).split())

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements and names of attributes, without their values."""
        return [(tag, tuple(attributes)) for tag, attributes in self.elements]


def page_of(*runs: Path, with_text: bool = True) -> Page:
    return Page(make_report(runs, with_text=with_text).html)


def tokenizer_folder(path: Path, tokens: dict[int, str]) -> Path:
    """A tokenizer.json whose token ids are those of the synthetic run; each stands for one text."""
    path.mkdir()
    vocab = {tokens.get(i, f"<{i}>"): i for i in range(40_001)}
    Tokenizer(models.WordLevel(vocab, unk_token="<0>")).save(str(path / "tokenizer.json"))
    return path


def hostile_run(path: Path, text: str, folder: Path) -> Path:
    """`text` wherever text can be: messages, tokens, names of prompts and conditions, notes, settings, argv."""
    short = text[:2_000]
    info = make_info()
    info.target = TargetInfo(name=short, path=str(folder))
    info.notes = [short]
    info.drafters[0].settings = {short: short}
    info.drafters[0].origins = {short: {"source": short, "detail": short}}
    info.drafters[0].findings = [{"severity": "warning", "message": short}]
    info.drafters[0].files_sha256 = {short: "0" * 64}
    info.provenance.argv = ["driftscope", short]
    info.provenance.packages = {short: short}
    records: list[Record] = []
    for number in range(5):
        made = make_prompt(f"p{number}", seed=number)  # what is drawn depends on the names: they come afterwards
        names = {"prompt_id": f"{number}{short[:300]}", "system_prompt": short[:300]}
        batches = [make_batch(made, drafter=drafter, seed=number) for drafter in DRAFTERS]
        records.append(dataclasses.replace(made, messages=({"role": "user", "content": text},), **names))
        records += [dataclasses.replace(batch, **names) for batch in batches]
    return write_run(path, records, info)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two drafters, two system prompts, two context lengths, six prompts."""
    path = tmp_path_factory.mktemp("runs") / "made-up.drift"
    return write_run(path, make_records(contexts=(0, 512), num_loops=1))


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return page_of(run)


def test_it_opens_with_the_verdicts_and_every_section_has_a_heading(page: Page) -> None:
    headings = [tag for tag, _ in page.elements if tag in ("h1", "h2", "h3", "h4")]
    assert headings[:2] == ["h1", "h2"]
    assert headings.count("h1") == 1
    assert "h4" not in headings[: headings.index("h3")]
    assert page.words.index("What could not be judged") < page.words.index("1 means that speculation gains nothing")
    ids = {a["id"] for _, a in page.elements if a.get("id")}
    links = [a["href"] for a in page.all("a")]
    assert links
    assert all(link is not None and link.startswith("#") and link[1:] in ids for link in links)
    assert {a["aria-labelledby"] for a in page.all("section")} <= ids
    for landmark in ("header", "nav", "main", "footer"):
        assert len(page.all(landmark)) == 1


def test_numbers_are_those_of_the_summary(run: Path, page: Page) -> None:
    for condition in summarise(read_run(run)).conditions:
        for tokens in (condition.walk, condition.dense):
            assert tokens is not None
            assert f"{tokens.tokens_per_round:.3f}" in page.words
            assert f"{tokens.low:.2f} to {tokens.high:.2f}" in page.words
    assert "5 of 6" in page.words  # n: the loop is left out


def test_every_figure_has_its_words_and_a_place(page: Page) -> None:
    plots = [a for a in page.all("div") if a.get("class") == "plot"]
    [data] = [json.loads(s) for s in page.scripts if s.startswith("{")]
    assert len(plots) == len(data["figures"]) > 20
    assert [a["id"] for a in plots] == [f"figure-{i}" for i in range(len(plots))]
    for place in plots:
        assert place["role"] == "img"
        assert len(place["aria-label"] or "") > 40
    assert data["config"]["showSendToCloud"] is False
    hovers = json.dumps(data["figures"])
    assert "n = 5 prompts" in hovers
    assert "template" not in {key for figure in data["figures"] for key in figure["layout"]}


def test_every_table_names_its_columns_and_rows(page: Page) -> None:
    assert len(page.all("table")) == len(page.all("caption")) > 8
    assert {a.get("scope") for a in page.all("th")} == {"col", "row"}


def test_only_its_own_scripts_may_run_and_nothing_is_loaded(page: Page) -> None:
    [policy] = [a["content"] or "" for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    run_scripts = [s for s, a in zip(page.scripts, page.all("script"), strict=True) if a.get("type") is None]
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in run_scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == digests
    assert len(digests) == 2
    assert sum("plotly.js v" in s[:200] for s in run_scripts) == 1
    for tag, attributes in page.elements:
        assert not {"src", "srcset", "action", "formaction", "background", "poster"} & attributes.keys(), tag
    assert not page.all("link")
    assert not page.all("iframe")


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_hostile_text_makes_no_element_and_no_attribute(kind: str, tmp_path: Path) -> None:
    text = HOSTILE[kind]
    folder = tokenizer_folder(tmp_path / "target", {i: f"{i % 7}{text[:200]}{i}" for i in range(0, 40_000, 3)})
    hostile = make_report([hostile_run(tmp_path / "h.drift", text, folder)])
    harmless = page_of(hostile_run(tmp_path / "g.drift", "harmless", tokenizer_folder(tmp_path / "other", {})))
    found = Page(hostile.html)
    assert found.shape == harmless.shape
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", hostile.html.split("<script>")[0])
    assert len(found.words) < 400_000
    if kind in ("html", "script", "attribute", "template", "emoji", "markup"):
        assert " ".join(text.split()) in found.words
    if kind == "control":
        assert "⟨U+0000⟩⟨U+0001⟩⟨U+001B⟩[31mred" in found.words
    if kind == "right to left":
        assert "⟨U+202E⟩evil" in found.words
    if kind == "line":
        assert "(1,000,000 characters)" in found.words


def secret_run(path: Path, target: Path, *, has_text: bool = True) -> Path:
    info = make_info(has_text=has_text)
    info.target = TargetInfo(name="t", path=str(target))
    return write_run(path, make_records(), info)


def test_text_is_shown_and_left_out_when_asked(tmp_path: Path) -> None:
    target = tokenizer_folder(tmp_path / "t", {i: f"confidential{i}" for i in range(40_000)})
    path = secret_run(tmp_path / "a.drift", target)
    shown = make_report([path])
    assert shown.has_text
    assert "a secret question of" in shown.html
    assert "confidential" in shown.html
    hidden = make_report([path], with_text=False)
    assert not hidden.has_text
    assert "secret" not in hidden.html
    assert "confidential" not in hidden.html
    assert "Made without text" in hidden.html
    assert "Worst rounds" in hidden.html  # their numbers stay
    kept_none = make_report([secret_run(tmp_path / "b.drift", target, has_text=False)])
    assert not kept_none.has_text
    assert "confidential" not in kept_none.html
    assert "keeps no text" in kept_none.html


def test_the_worst_round_and_its_tokens(tmp_path: Path) -> None:
    """One round of nothing accepted in a conversation of full acceptance: it is shown, with what it wrote."""
    target = tokenizer_folder(tmp_path / "t", {i: f" w{i}" for i in range(40_000)})
    prompt = make_prompt(num_response_tokens=22)
    accepted = np.array([4, 4, 4, 4, 4, 0, *[4] * 15])
    info = make_info()
    info.target = TargetInfo(name="t", path=str(target))
    path = write_run(tmp_path / "a.drift", [prompt, make_batch(prompt, accepted_drafts=accepted)], info)
    found = page_of(path)
    assert "slot 16; 0 of 4 drafts accepted" in found.words
    tokens = [a["class"] for a in found.all("span") if (a.get("class") or "").startswith("token") and a["class"]]
    excerpt = tokens[5:]  # after the legend
    assert excerpt[:12] == ["token prompt"] * 12
    assert excerpt[12:19] == ["token first", *["token accepted"] * 4, "token bonus", "token corrected mine"]
    corrected = int(prompt.token_ids[18])
    assert f"✗ w{corrected}" in found.words


def test_several_runs_are_compared_on_the_same_prompts(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a.drift", make_records(drafters=("eagle3",), accept_share=0.4))
    second = write_run(tmp_path / "b.drift", make_records(drafters=("eagle3",), accept_share=0.9))
    contents = read_contents([first, second])
    assert contents.series == ["eagle3 · a", "eagle3 · b"]
    comparison = compare_series(contents)
    assert comparison is not None
    summaries = [summarise(read_run(path)).conditions for path in (first, second)]
    for pair, a, b in zip(comparison.pairs, *summaries, strict=True):
        assert a.walk is not None
        assert b.walk is not None
        difference = b.walk.tokens_per_round - a.walk.tokens_per_round
        assert pair.difference.difference == pytest.approx(difference, abs=1e-12)
        assert pair.difference.num_prompts == 6
        assert pair.baseline.series == "eagle3 · a"
    words = page_of(first, second).words
    assert "Against eagle3 · a, over 2 conditions and the same 6 prompts, eagle3 · b yields" in words


def test_drafters_of_one_run_are_compared_over_all_conditions(tmp_path: Path) -> None:
    contents = read_contents([write_run(tmp_path / "a.drift", make_records(num_loops=1))])
    comparison = compare_series(contents)
    assert comparison is not None
    assert {(p.condition.series, p.baseline.series) for p in comparison.pairs} == {("eagle3.1", "eagle3")}
    [sentence] = comparison.sentences
    total = dict.fromkeys(("eagle3", "eagle3.1"), np.zeros(2))
    sums = contents.runs[0].sums
    for i, key in enumerate(sums.keys):
        if not sums.is_degenerate[i]:
            total[key.drafter] = total[key.drafter] + [sums.num_walk_tokens[i], sums.num_walk_rounds[i]]
    expected = total["eagle3.1"][0] / total["eagle3.1"][1] - total["eagle3"][0] / total["eagle3"][1]
    means = [total[name][0] / total[name][1] for name in ("eagle3.1", "eagle3")]
    assert f"{abs(expected):.2f}" in sentence
    assert f"walk tokens per round ({means[0]:.2f} against {means[1]:.2f}, 95 % interval" in sentence or (
        f"{expected:+.2f} walk tokens per round ({means[0]:.2f} against {means[1]:.2f}, 95 % interval" in sentence
    )
    table = comparison.table()
    assert table.columns[3:6] == ["n", "walk, baseline", "walk, this one"]
    for pair, row in zip(comparison.pairs, table.rows, strict=True):
        d = pair.difference
        assert row[3:6] == [str(d.num_prompts), f"{d.baseline:.3f}", f"{d.candidate:.3f}"]
    [chart] = difference_charts(contents, comparison)
    texts = chart.figure.data[0].text
    for pair in comparison.pairs:
        assert any(f"from {pair.difference.baseline:.2f}, n = 5" in text for text in texts)
    assert "over 2 conditions and the same 5 prompts" in sentence


def test_other_depths_are_not_compared_and_other_prompts_neither(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a.drift", make_records(drafters=("eagle3",)))
    second = write_run(tmp_path / "b.drift", make_records(drafters=("eagle3",), depth=3), make_info(depth=3))
    words = page_of(first, second).words
    assert "not compared: b and a: K differs: 3 against 4" in words
    assert "Nothing could be compared." in words
    records: Iterator[Record] = (
        dataclasses.replace(r, messages=({"role": "user", "content": "another"},)) if isinstance(r, PromptRecord) else r
        for r in make_records(drafters=("eagle3",))
    )
    comparison = compare_series(read_contents([first, write_run(tmp_path / "c.drift", records)]))
    assert comparison is not None
    assert {p.difference.difference for p in comparison.pairs} == {None}
    assert "have no prompt in common" in comparison.sentences[0]


def test_alike_verdicts_stand_together_and_causes_first(tmp_path: Path) -> None:
    records: list[Record] = []
    for number in range(8):
        for system_prompt in ("default", "v2"):
            prompt = make_prompt(f"p{number}", system_prompt=system_prompt, num_response_tokens=40, seed=number)
            good = [make_batch(prompt, drafter=d, accept_share=0.9, seed=number) for d in ("a", "b")]
            records += [prompt, make_batch(prompt, accepted_drafts=np.zeros(39, int), seed=number), *good]
    groups = verdict_groups(read_contents([write_run(tmp_path / "a.drift", records)]))
    first, *_, last = groups
    assert (first.kind, first.series, first.name) == ("cause", "eagle3", "wiring fault")
    assert first.where == "in every condition"
    assert first.evidence[0].startswith("default · 0: 0.000 of the first drafts are accepted")
    assert first.remedy
    assert (last.kind, last.series, last.where) == ("good", "a, b", "in every condition")
    contents = read_contents([write_run(tmp_path / "b.drift", make_records(num_prompts=3))])
    [note] = {(g.kind, g.name, g.where) for g in verdict_groups(contents)}
    assert note == ("note", "not enough data", "in every condition")


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.drift"
    with pytest.raises(KeyboardInterrupt):
        write_run(path, make_records(), error=KeyboardInterrupt())
    words = page_of(path).words
    assert "a is incomplete: the numbers are those of what was stored so far" in words


def test_a_run_without_rounds_has_no_verdict(tmp_path: Path) -> None:
    words = page_of(write_run(tmp_path / "a.drift", [])).words
    assert "a has no verdict: there are no rounds to judge" in words
    assert "No rounds were stored." in words


def test_forced_text_has_no_walk(tmp_path: Path) -> None:
    records: list[Record] = []
    for number in range(5):
        prompt = make_prompt(f"p{number}", is_forced=True, text_agreement=0.75, seed=number)
        records += [prompt, make_batch(prompt, seed=number)]
    words = page_of(write_run(tmp_path / "a.drift", records)).words
    assert "No walk: the text was not written by this target." in words
    assert "mean over the dense rounds" in words
    assert "which K is best cannot be told" in words


def test_an_imported_run(tmp_path: Path) -> None:
    line = {
        "id": "r1",
        "usage": {"completion_tokens": 9},
        "metrics": {
            "speculative_decoding": {
                "num_spec_tokens": 3,
                "num_spec_steps": 4,
                "num_draft_tokens": 12,
                "num_accepted_draft_tokens": 5,
                "acceptance_histogram": [1, 1, 2, 0],
                "per_step_accepted": [2, 2, 1, 0],
                "per_step_drafted": [3, 3, 3, 3],
            }
        },
    }
    source = tmp_path / "metrics.jsonl"
    source.write_text("".join(json.dumps({**line, "id": f"r{i}"}) + "\n" for i in range(6)), encoding="utf-8")
    assert main(["import", str(source), "-o", str(tmp_path / "i.drift")]) == 0
    found = page_of(tmp_path / "i.drift")
    assert "engine import" in found.words
    assert "2.250" in found.words  # (5 accepted + 4 rounds) / 4
    assert "It holds no text of the prompts" in found.words
    assert "Where attention goes" not in found.words


def test_drafters_of_several_layers_and_other_settings(tmp_path: Path) -> None:
    records = make_records(num_layers=2, has_fusion_bias=True, drafters=("eagle3",))
    words = page_of(write_run(tmp_path / "a.drift", records)).words
    assert "own excess by head, layer 0" in words
    assert "own excess by head, layer 1" in words


def test_the_file_is_private_and_replaced_only_when_it_is_a_report(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    assert main(["report", str(run), "-o", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, ReportOutput.model_json_schema(mode="serialization"))
    assert printed["num_bytes"] == out.stat().st_size < 8_000_000
    assert (printed["num_runs"], printed["has_text"]) == (1, True)
    assert main(["report", str(run), "-o", str(out), "--no-text"]) == 0
    assert "without text" in capsys.readouterr().out
    other = tmp_path / "notes.html"
    other.write_text("mine", encoding="utf-8")
    assert main(["report", str(run), "-o", str(other)]) == 2
    assert "is no report of driftscope" in capsys.readouterr().err
    assert other.read_text(encoding="utf-8") == "mine"
    assert main(["report", str(run), "-o", str(other), "--overwrite"]) == 0


def test_what_cannot_be_written_or_read(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        write_report([run], tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        write_report([run], tmp_path / "no" / "r.html")
    with pytest.raises(InputError, match="given twice"):
        write_report([run, run], tmp_path / "r.html")
    with pytest.raises(RunError, match="no such run"):
        write_report([tmp_path / "no.drift"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    paths = [write_run(tmp_path / folder / "a.drift") for folder in ("one", "two")]
    assert [r.name for r in read_contents(paths).runs] == ["one/a", "two/a"]


def test_a_run_is_named_by_as_many_folders_as_it_takes() -> None:
    paths = [Path("/x/one/a.drift"), Path("/y/one/a.drift"), Path("/x/b.drift"), Path("/x/b.drift"), Path("/a.drift")]
    assert names_apart(paths) == ["x/one/a", "y/one/a", "b", "b (2)", "/a"]


def test_text_made_visible() -> None:
    assert clean("a\u202eb\u2066c\x1b\ud800") == "a⟨U+202E⟩b⟨U+2066⟩c⟨U+001B⟩⟨U+D800⟩"
    assert clean("line\nand\ttab é 日本 👩‍👧") == "line\nand\ttab é 日本 👩‍👧"
    assert clean("x" * 10, 4) == "xxxx… (10 characters)"
    assert label("a\n b\t c") == "a b c"
    assert single(" a ") == "␣a␣"
    assert single("  ") == "␣␣"
    assert single("\n") == "⏎"


def test_info_without_drafters(tmp_path: Path) -> None:
    """run.json of another maker may describe nothing."""
    path = write_run(tmp_path / "a.drift", make_records(), RunInfo(engine="replay", depth=4))
    assert "not recorded" in page_of(path).words


def test_what_the_files_show_stands_once_with_the_verdicts(run: Path) -> None:
    contents = read_contents([run])
    finding = FileFinding(
        id="DS999", severity="error", what="a made-up head", statement="the made-up head is <upside down>"
    )
    for condition in contents.of_series("eagle3"):
        assert condition.diagnosis is not None
        condition.diagnosis.file_findings.append(finding)
    assert file_findings(contents) == [
        {"series": "eagle3", "id": "DS999", "severity": "error", "statement": "the made-up head is <upside down>"}
    ]


def test_n_leaves_out_prompts_without_a_round_and_empty_conditions_are_named(tmp_path: Path) -> None:
    records: list[Record] = []
    for number in range(8):
        prompt = make_prompt(f"p{number}", num_response_tokens=1 if number < 4 else 30, is_loop=number == 4)
        records += [prompt] if number < 4 else [prompt, make_batch(prompt)]
    records += [make_prompt(f"p{number}", system_prompt="short", num_response_tokens=0) for number in range(3)]
    words = page_of(write_run(tmp_path / "a.drift", iter(records))).words
    why = "3 prompts have a round (of 8: 4 without a round, 1 looping); an interval needs 5"
    assert f"n = 3 prompts, 75 walk rounds; no interval: {why}" in re.sub(r"\d+ walk", "75 walk", words)
    assert "3 of 8" in words
    assert "a: short, template default, context 0 is not shown: none of its 3 prompts has a round." in words
