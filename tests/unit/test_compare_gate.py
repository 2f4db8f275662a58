"""The gate of compare: expressions, the rule, Holm's correction, exit codes, and the three outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from driftscope.cli import main
from driftscope.compare import Comparison, compare, parse_gate
from driftscope.compare.comparison import Outcome
from driftscope.compare.gate import judge
from driftscope.stats.paired import Difference, paired_difference
from probes.errors import InputError
from tests.unit.compare_runs import Cell, equal, noise, worse_in, write

REGRESSION = "tokens_per_round < -0.1"


def found(estimate: float, low: float | None, high: float | None, p_value: float | None) -> Difference:
    return Difference(estimate, low, high, None if low is None else "bca", p_value, 30)


@pytest.mark.parametrize(
    ("text", "metric", "op", "number", "is_relative"),
    [
        ("tokens_per_round < -0.1", "tokens_per_round", "<", -0.1, False),
        ("tokens_per_round<=-.05 relative", "tokens_per_round", "<=", -0.05, True),
        ("  out_of_draft_vocab_share >  2e-2   absolute ", "out_of_draft_vocab_share", ">", 0.02, False),
        ("acceptance_conditional@2 >= 0", "acceptance_conditional@2", ">=", 0, False),
        ("mass.sink@1 > +1.", "mass.sink@1", ">", 1, False),
    ],
)
def test_expressions(text: str, metric: str, op: str, number: float, is_relative: bool) -> None:
    gate = parse_gate(text)
    assert (gate.metric.name, gate.operator, gate.number, gate.is_relative) == (metric, op, number, is_relative)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tokens_per_round",
        "tokens_per_round < ",
        "tokens_per_round < nan",
        "tokens_per_round < -inf",
        "tokens_per_round == 0",
        "tokens_per_round => 0",
        "tokens_per_round < -0.1 relatively",
        "tokens_per_round < -0.1relative",
        "-0.1 > tokens_per_round",
        "tokens_per_round < -0.1 and walk.tokens_per_round > 1",
        "tokens per round < -0.1",
        "tokens_per_round < 1e9999",
    ],
)
def test_malformed_expressions_say_the_form(text: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_gate(text)
    assert raised.value.code == "bad_gate"
    assert "METRIC OP NUMBER" in raised.value.message
    assert '"tokens_per_round < -0.1"' in raised.value.remedy


def test_a_percentage_says_how_to_write_it() -> None:
    with pytest.raises(InputError, match=re.escape("write 0.05 relative for 5 %")):
        parse_gate("tokens_per_round < -5%")


def test_an_unknown_metric_names_the_metrics() -> None:
    with pytest.raises(InputError, match="'acceptance' cannot be compared") as raised:
        parse_gate("acceptance < -0.1")
    assert raised.value.code == "unknown_metric"


# the rule


def test_a_cell_fails_when_its_whole_interval_does() -> None:
    gate = parse_gate(REGRESSION)
    cells = [found(-0.3, -0.4, -0.2, 0.001), found(-0.3, -0.55, -0.05, 0.04), found(0.3, 0.2, 0.4, 0.001)]
    assert [judge(gate, [one], "interval").is_failed for one in cells] == [True, False, False]
    assert [judge(gate, [one], "point").is_failed for one in cells] == [True, True, False]


def test_holm_changes_the_outcome() -> None:
    """p = 0.03 fails alone and beside one cell; beside two more its limit is 0.05 / 3."""
    gate, regression, fine = parse_gate(REGRESSION), found(-0.3, -0.5, -0.11, 0.03), found(0.0, -0.1, 0.1, 0.2)
    assert judge(gate, [regression], "interval").is_failed
    among = judge(gate, [regression, fine, fine], "interval")
    assert not among.is_failed
    assert among.cells[0].outcome is Outcome.passes
    assert among.cells[0].is_satisfied_alone
    assert [cell.p_value for cell in among.cells] == [0.03, 1.0, 1.0]
    # not where another cell regresses more surely: the next limit is 0.05 / 2
    assert judge(gate, [regression, found(-1, -1.1, -0.9, 1e-6)], "interval").is_failed
    # the point has no correction
    assert judge(gate, [regression, fine, fine], "point").is_failed


def test_cells_without_an_interval_are_not_decided() -> None:
    gate = judge(parse_gate(REGRESSION), [found(-2, None, None, None)], "interval")
    assert gate.cells[0].outcome is Outcome.not_decided
    assert not gate.is_failed
    assert not gate.is_decided
    assert judge(parse_gate(REGRESSION), [found(-2, None, None, None)], "point").is_failed


def test_a_difference_without_spread_is_certain() -> None:
    same = found(0.0, 0.0, 0.0, 1.0)
    assert judge(parse_gate("tokens_per_round <= 0"), [same], "interval").is_failed
    assert not judge(parse_gate("tokens_per_round < 0"), [same], "interval").is_failed


def test_the_p_value_is_against_the_gates_own_number() -> None:
    """Shifting every prompt by the number is the same test against 0."""
    rng = np.random.default_rng(0)
    new, rounds, old = rng.integers(20, 40, 15), rng.integers(10, 20, 15), rng.integers(20, 40, 15)
    at = paired_difference(new, rounds, old, rounds, null=-0.1)
    shifted = paired_difference(new + 0.1 * rounds, rounds, old, rounds)
    assert at.p_value == pytest.approx(shifted.p_value)
    assert at.p_value != pytest.approx(paired_difference(new, rounds, old, rounds).p_value)
    assert at.estimate == pytest.approx(shifted.estimate - 0.1)


def test_relative_is_over_the_baseline() -> None:
    rng = np.random.default_rng(1)
    new, rounds, old = rng.integers(20, 40, 15), rng.integers(10, 20, 15), rng.integers(20, 40, 15)
    relative = paired_difference(new, rounds, old, rounds, is_relative=True)
    assert relative.estimate == pytest.approx((new.sum() / rounds.sum()) / (old.sum() / rounds.sum()) - 1)
    scaled = paired_difference(3 * new, rounds, 3 * old, rounds, is_relative=True)
    assert scaled[:3] == pytest.approx(relative[:3])  # in which unit makes no difference
    assert scaled.p_value == pytest.approx(relative.p_value)
    nothing = np.zeros(15)
    assert paired_difference(new, rounds, nothing, rounds, is_relative=True).estimate is None
    once = np.eye(15)[0]  # without the one prompt that has any, the base is 0
    assert paired_difference(new, rounds, once, rounds, is_relative=True).low is None


# on runs

CELLS = dict(drafters=("eagle3", "eagle3.1"), system_prompts=("v7", "none"), contexts=(0, 512))
BROKEN: Cell = ("eagle3.1", "none", 512)


def test_one_regression_among_many_cells_fails_there_only(tmp_path: Path) -> None:
    old = write(tmp_path / "old.drift", **CELLS)  # type: ignore[arg-type]
    new = write(tmp_path / "new.drift", worse_in({BROKEN: 0.7}), **CELLS)  # type: ignore[arg-type]
    comparison = compare([old, new], gates=[parse_gate(REGRESSION)])
    [gate] = comparison.gates
    failed = [comparison.cells[c.cell].candidate for c in gate.cells if c.outcome is Outcome.fails]
    assert [(c.drafter, c.system_prompt, c.context_tokens) for c in failed] == [BROKEN]
    assert len(gate.cells) == 8
    assert comparison.exit_code == 1
    [one] = next(cell.differences for cell in comparison.cells if cell.candidate == failed[0])
    assert one.is_sure
    assert one.high is not None
    assert one.high < -0.1
    assert compare([old, new], gates=[parse_gate("tokens_per_round > 0.1")]).exit_code == 0
    assert compare([old, new], gates=[parse_gate("tokens_per_round < -0.05 relative")]).exit_code == 1
    assert compare([old, new], gates=[parse_gate("tokens_per_round < -0.9 relative")]).exit_code == 0


def _uncertain(cell: Cell, prompt: int) -> np.ndarray:
    """One draft less in 5 of 12 prompts of one cell, p = 0.011: sure alone, not among sixteen."""
    return noise(prompt) - (cell == BROKEN and prompt < 5)


def test_holm_spares_a_lone_uncertain_regression_on_runs(tmp_path: Path) -> None:
    gate = [parse_gate("tokens_per_round < 0")]
    alone: Any = dict(drafters=("eagle3.1",), system_prompts=("none",), contexts=(512,))
    among: Any = dict(drafters=("eagle3", "eagle3.1"), system_prompts=("v7", "none"), contexts=(0, 256, 512, 1024))
    runs = [write(tmp_path / f"{n}.drift", f, **alone) for n, f in (("a", _uncertain), ("b", equal))]
    assert compare([runs[1], runs[0]], gates=gate).exit_code == 1
    runs = [write(tmp_path / f"{n}.drift", f, **among) for n, f in (("c", _uncertain), ("d", equal))]
    comparison = compare([runs[1], runs[0]], gates=gate)
    assert comparison.exit_code == 0
    assert sum(c.is_satisfied_alone for c in comparison.gates[0].cells) == 1


def test_an_improvement_gate_is_pointed_out(tmp_path: Path) -> None:
    runs = [write(tmp_path / name) for name in ("a.drift", "b.drift")]
    comparison = compare(runs, gates=[parse_gate("tokens_per_round < 0.1")])
    assert comparison.exit_code == 1  # equal runs have not improved by 0.1
    assert any("equal sides satisfy it" in note for note in comparison.notes)


# the command


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["compare", *map(str, arguments)])
    return code, capsys.readouterr().out


def test_exit_codes_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.drift", **CELLS).path  # type: ignore[arg-type]
    new = write(tmp_path / "new.drift", worse_in({BROKEN: 0.7}), **CELLS).path  # type: ignore[arg-type]
    assert printed(capsys, old, new)[0] == 0
    assert printed(capsys, old, new, "--fail-if", "tokens_per_round < -2")[0] == 0
    code, out = printed(capsys, old, new, "--fail-if", "tokens_per_round < -2", "--fail-if", REGRESSION, "--json")
    assert code == 1
    output = json.loads(out)
    assert main(["schema", "compare"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.validate(output, schema)
    assert set(output) == set(schema["properties"])
    assert output["schema_version"] == 1
    assert [gate["is_failed"] for gate in output["gates"]] == [False, True]
    assert Comparison.model_validate(output).exit_code == 1


def test_too_few_prompts_are_not_decided_and_not_green(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.drift", prompts=range(4)).path
    new = write(tmp_path / "new.drift", worse_in({("eagle3", "default", 0): 1.0}), prompts=range(4)).path
    code, out = printed(capsys, old, new)
    assert code == 0  # without a gate there is nothing to decide
    assert "no interval" in out
    code, out = printed(capsys, old, new, "--fail-if", REGRESSION)
    assert code == 2
    assert "NOT DECIDED in any cell: fewer than 5 prompts" in " ".join(out.split())
    assert "gate not decided" in out
    assert printed(capsys, old, new, "--fail-if", REGRESSION, "--fail-on", "point")[0] == 1


def test_nothing_comparable_is_an_error_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "old.drift").path, write(tmp_path / "new.drift", ids="q{}", messages=lambda *_: ()).path
    code, out = printed(capsys, old, new, "--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert (error["code"], error["message"]) == (
        "nothing_to_compare",
        "nothing could be compared: no prompt id is on both sides",
    )
    assert printed(capsys, old, tmp_path / "no.drift")[0] == 2
    assert printed(capsys, old, new, "--json", "--markdown")[0] == 2


def test_the_text_names_what_fails_and_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: Any = dict(drafters=("eagle3",), contexts=(0, 512), loops=[3])
    old = write(tmp_path / "old.drift", system_prompts=("v7", "gone"), **options).path
    broken = worse_in({("eagle3", "v7", 512): 0.7})
    new = write(tmp_path / "new.drift", broken, system_prompts=("v7", "added"), **options).path
    code, out = printed(capsys, old, new, "--fail-if", REGRESSION)
    assert code == 1
    said = " ".join(out.split())
    assert "runs against old: gate failed" in said
    assert "gate 'tokens_per_round < -0.1': FAILS in 1 of 2 cells" in said
    assert out.count("FAILS\n") + out.count("FAILS ") >= 2  # the row, and the gate's sentence
    assert "Prompts left out, over all cells: 2 with a degenerate response on either side." in said
    assert "Not compared (4):" in said
    assert "new: eagle3, added, context 0: old has no system_prompt added, but v7, gone" in said


HOSTILE = "v8 | **bold** `code` <script>alert(1)</script> @everyone [x](http://e.x) \\| $a$ \u202eevil\nnext"


def cells_of(row: str) -> list[str]:
    """As GitHub splits a row of a table: at bars that no backslash precedes."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def test_hostile_names_are_inert_in_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = (HOSTILE, HOSTILE.replace("v8", "v9``"))
    run = write(tmp_path / "a.drift", system_prompts=("v7", *hostile)).path
    code, out = printed(capsys, run, "--by", "system_prompt", "--markdown", "--fail-if", REGRESSION)
    assert code == 0
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert len(rows) == 4
    assert len({len(cells_of(row)) for row in rows}) == 1
    assert "\u202e" not in out
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", out)  # what is left of code spans is read as Markdown
    for part in ("<script", "@everyone", "**bold", "http:", "$a$"):
        assert part in out
        assert part not in outside
    code, out = printed(capsys, run, "--by", "system_prompt")  # the console too: no markup, one line
    assert code == 0
    assert "\u202e" not in out


def test_hostile_names_in_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.drift", drafters=("[link](https://e.x)<img>",)).path
    new = write(tmp_path / "new.drift", drafters=("@everyone `x`",)).path
    _, out = printed(capsys, old, new, "--markdown")
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", out.replace("\\`", ""))
    assert "@everyone" not in outside
    assert "<img>" not in outside.replace("\\<img\\>", "")
    assert "](" not in outside.replace("\\](", "")
    assert "https://" not in outside


def test_markdown_is_a_table_that_names_the_failing_cell_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old.drift", **CELLS).path  # type: ignore[arg-type]
    new = write(tmp_path / "new.drift", worse_in({BROKEN: 0.7}), **CELLS).path  # type: ignore[arg-type]
    _, out = printed(capsys, old, new, "--markdown", "--fail-if", REGRESSION)
    lines = out.splitlines()
    assert lines[0] == "### driftscope compare: gate failed"
    assert "- `tokens_per_round < -0.1` FAILS in 1 of 8 cells (whole interval, Holm-corrected over the cells)" in lines
    header = next(i for i, line in enumerate(lines) if line.startswith("|"))
    assert cells_of(lines[header])[:4] == ["drafter", "system_prompt", "context", "n"]
    first, *others = lines[header + 2 : header + 10]
    assert cells_of(first)[:4] == ["`eagle3.1`", "`none`", "`512`", "12"]
    assert cells_of(first)[-1] == "lower **fails**"
    assert all(cells_of(row)[-1] == "equal" for row in others)
