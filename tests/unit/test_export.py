"""Exports: flat tables that equal the run, and one condition's acceptance in two other tools' words."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest

from driftscope.cli import main
from driftscope.cli.schema import OUTPUTS, model_of
from driftscope.import_export import ImportOptions, read_acceptance, store_run
from driftscope.import_export.condition import Selection, walk_of
from driftscope.import_export.profile import speculation_profile
from driftscope.import_export.speculators import acceptance_csv
from driftscope.import_export.write import FORMATS, export
from driftscope.runs import read_run
from driftscope.summary import summarise
from probes.errors import InputError, RunError
from tests.synthetic_run import make_batch, make_info, make_prompt, make_records, write_run

FIXTURES = Path(__file__).parents[1] / "fixtures" / "exchange"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "a.drift", make_records(num_loops=1))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two requests whose figures can be counted by hand: (drafts, accepted) 3,0 3,1 3,3 2,0 and 3,2."""
    file = read_acceptance(FIXTURES / "vllm_detailed.jsonl")
    out = tmp_path_factory.mktemp("known") / "k.drift"
    store_run(file, out, ImportOptions(drafter="eagle", temperature=0.5))
    return out


def test_parquet_holds_every_row_flat(run: Path, tmp_path: Path) -> None:
    stored = read_run(run)
    written = export(stored, tmp_path / "out", format="parquet", selection=Selection())
    rounds, depths = (pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("rounds", "depths"))
    assert {path.name: rows for path, rows in written.items()} == {
        "rounds.parquet": stored.rounds().num_rows,
        "depths.parquet": stored.depths().num_rows,
    }
    assert not any("list" in str(field.type) for table in (rounds, depths) for field in table.schema)
    by_id = stored.rounds().sort_by("round_id")
    assert rounds["accepted_drafts"].to_pylist() == by_id["accepted_drafts"].to_pylist()
    shares = np.array(by_id["fusion_share"].to_pylist())
    flat = np.stack([rounds[f"fusion_share_{i}"].to_numpy() for i in (1, 2, 3)], axis=1)
    np.testing.assert_array_equal(flat, shares)
    assert "fusion_share_4" not in rounds.column_names
    source = stored.depths().sort_by([("round_id", "ascending"), ("depth", "ascending"), ("layer", "ascending")])
    means = [np.mean(heads) for heads in source["mass_sink"].to_pylist()]
    np.testing.assert_allclose(depths["mass_sink"].to_numpy(), means, rtol=1e-6)


def test_csv_equals_parquet(run: Path, tmp_path: Path) -> None:
    stored = read_run(run)
    for format in ("parquet", "csv"):
        export(stored, tmp_path / format, format=format, selection=Selection(drafter="eagle3"))
    table = pq.read_table(tmp_path / "parquet" / "rounds.parquet")
    with (tmp_path / "csv" / "rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == table.column_names
    assert [int(row["accepted_drafts"]) for row in rows] == table["accepted_drafts"].to_pylist()
    assert {row["drafter"] for row in rows} == {"eagle3"}


def test_profile_of_rounds_counted_by_hand(known: Path) -> None:
    stored = read_run(known)
    profile = speculation_profile(walk_of(stored, Selection()), stored.info)
    assert profile["schema_version"] == "1.0"
    assert profile["num_speculative_tokens"] == 3
    assert profile["marginal_accept_rates"] == [0.6, 0.4, 0.2]  # over all five rounds, the one with two drafts too
    assert profile["conditional_accept_rates"] == [0.6, 0.666667, 0.5]
    assert profile["mean_accept_length"] == 2.2
    assert profile["mean_accept_length_per_request"] == 2.5  # (8/4 + 3/1) / 2
    assert profile["acceptance_length_histogram"] == {"1": 2, "2": 1, "3": 1, "4": 1}
    assert profile["accept_length_by_k"] == {"3": 2.2}
    assert profile["validation"]["mean_consistency"]["passed"] is True
    assert profile["validation"]["marginal_monotonicity"] == {"passed": True, "violations": []}
    assert profile["measurement_conditions"]["temperature"] == 0.5
    assert profile["measurement_conditions"]["num_steps"] == 5
    assert profile["draft_checkpoint"]["id"] == "eagle"
    assert profile["target_model"] == {"id": "org/target"}


def test_profile_agrees_with_the_summary_and_publishes_no_paths(run: Path) -> None:
    stored = read_run(run)
    [condition] = [c for c in summarise(stored).conditions if (c.drafter, c.system_prompt) == ("eagle3", "default")][:1]
    selection = Selection(
        drafter="eagle3", system_prompt="default", template=condition.template, context_tokens=condition.context_tokens
    )
    walk = walk_of(stored, selection)
    info = stored.info.model_copy(deep=True)
    info.drafters[0].path = "/home/someone/secret/org/head"
    info.drafters[0].kind = "eagle3"
    info.target.name = "/lustre/private/team/target"
    profile = speculation_profile(walk, info)
    assert condition.walk is not None
    assert profile["mean_accept_length"] == pytest.approx(condition.walk.tokens_per_round, abs=1e-6)
    assert profile["mean_accept_length_per_request"] == pytest.approx(
        condition.walk.tokens_per_round_prompt_mean, abs=1e-6
    )
    assert profile["measurement_conditions"]["num_degenerate_left_out"] == condition.num_degenerate
    assert profile["draft_checkpoint"]["id"] == "org/head"
    assert profile["target_model"]["id"] == "team/target"
    assert (profile["method"], profile["accept_length_model"]) == ("eagle3", "chain_analytic")
    assert profile["per_category"]["chat"]["num_steps"] == profile["measurement_conditions"]["num_steps"]


def test_speculators_csv(known: Path) -> None:
    rows = list(csv.DictReader(acceptance_csv(walk_of(read_run(known), Selection())).splitlines()))
    [row] = rows
    assert list(row) == [
        "subset", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_length",
        "acceptance_at_pos_0", "acceptance_at_pos_1", "acceptance_at_pos_2",
    ]  # fmt: skip
    assert row["subset"] == "all"
    assert [int(row[name]) for name in list(row)[1:4]] == [5, 14, 6]
    assert [float(value) for value in list(row.values())[4:]] == pytest.approx([2.2, 0.6, 0.4, 0.2])


def test_speculators_csv_has_a_row_for_each_category(tmp_path: Path) -> None:
    from dataclasses import replace

    from driftscope.runs import RunWriter

    records = []
    for index, category in enumerate(["math", "code", "math", None, "=cmd|' /C calc'!A0"]):
        prompt = replace(make_prompt(f"p{index}", seed=index), category=category)
        records += [prompt, make_batch(prompt, seed=index)]
    with RunWriter(tmp_path / "c.drift", make_info()) as writer:
        for record in records:
            writer.write_batch(record)
    walk = walk_of(read_run(tmp_path / "c.drift"), Selection())
    rows = list(csv.DictReader(acceptance_csv(walk).splitlines()))
    assert [row["subset"] for row in rows] == ["math", "code", "=cmd|' /C calc'!A0", "uncategorised"]
    assert sum(int(row["num_drafts"]) for row in rows) == walk.num_rounds.sum()


def test_one_condition_is_asked_for(run: Path, tmp_path: Path) -> None:
    stored = read_run(run)
    for selection, code in (
        (Selection(), "several_conditions"),
        (Selection(drafter="nobody's"), "no_such_condition"),
        (Selection(system_prompt="x' or '1'='1"), "no_such_condition"),
    ):
        with pytest.raises(InputError) as caught:
            walk_of(stored, selection)
        assert caught.value.code == code
    with pytest.raises(InputError) as caught:
        export(stored, tmp_path / "x", format="csv", selection=Selection(drafter="nobody"))
    assert caught.value.code == "no_such_condition"
    assert list(tmp_path.iterdir()) == []


def test_forced_text_has_no_walk_to_export(tmp_path: Path) -> None:
    from driftscope.runs import RunWriter

    prompt = make_prompt(is_forced=True, text_agreement=0.9)
    with RunWriter(tmp_path / "f.drift", make_info()) as writer:
        writer.write_batch(prompt)
        writer.write_batch(make_batch(prompt))
    with pytest.raises(InputError) as caught:
        walk_of(read_run(tmp_path / "f.drift"), Selection())
    assert caught.value.code == "no_walk"


@pytest.mark.parametrize("format", FORMATS)
def test_command(known: Path, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    arguments = ["export", str(known), "--to", format, "-o", str(out), "--json"]
    assert main(arguments) == 0
    output = json.loads(capsys.readouterr().out)
    jsonschema.validate(output, model_of(OUTPUTS["export"]).model_json_schema())
    assert output["format"] == format
    assert all(Path(file["path"]).is_file() for file in output["files"])
    first = {file["path"]: Path(file["path"]).read_bytes() for file in output["files"]}
    assert main(arguments) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "output_exists"
    assert main([*arguments, "--overwrite"]) == 0
    assert {path: Path(path).read_bytes() for path in first} == first


def test_mistakes_of_the_command(known: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["-o", str(tmp_path / "x")]
    for arguments, code in (
        ([str(known), "--to", "xlsx"], "unknown_export_format"),
        ([str(run), "--to", "speculation-profile"], "several_conditions"),
        (["/no/such.drift", "--to", "csv"], "run_not_found"),
    ):
        assert main(["export", *arguments, *out, "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    (tmp_path / "file").write_text("")
    assert main(["export", str(known), "--to", "csv", "-o", str(tmp_path / "file" / "x"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "not_writable"


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift", make_records())
    part = next((path / "rounds").glob("*.parquet"))
    data = bytearray(part.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 200] = bytes(200)
    part.write_bytes(data)
    with pytest.raises(RunError) as caught:
        export(read_run(path), tmp_path / "out", format="parquet", selection=Selection())
    assert part.name in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_hostile_text_passes_through_tables(tmp_path: Path) -> None:
    from dataclasses import replace

    from driftscope.runs import RunWriter

    names = [
        "<script>alert(1)</script>",
        'a,"b"\nc',
        "\u202eevil",
        "👩‍👩‍👧‍👦",
        "x" * 100_000,
        "a'; drop table rounds; --",
    ]
    with RunWriter(tmp_path / "h.drift", make_info()) as writer:
        for index, name in enumerate(names):
            prompt = replace(make_prompt(f"p{index}", system_prompt=name), prompt_id=name)
            writer.write_batch(prompt)
            writer.write_batch(make_batch(prompt))
    stored = read_run(tmp_path / "h.drift")
    export(stored, tmp_path / "csv", format="csv", selection=Selection())
    csv.field_size_limit(1 << 20)
    with (tmp_path / "csv" / "rounds.csv").open(newline="", encoding="utf-8") as file:
        assert list(dict.fromkeys(row["prompt_id"] for row in csv.DictReader(file))) == names
    for name in names:
        assert walk_of(stored, Selection(system_prompt=name)).system_prompt == name


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_exported_is_for_its_owner_alone(format: str, known: Path, tmp_path: Path) -> None:
    """Also in a folder that others look into."""
    out = tmp_path / "out"
    is_folder = format in ("parquet", "csv")
    if is_folder:
        out.mkdir(mode=0o755)
        out.chmod(0o755)
        (out / f"rounds.{format}").write_text("an earlier one")
        (out / f"rounds.{format}").chmod(0o644)
    written = export(read_run(known), out, format=format, selection=Selection(), overwrite=is_folder)
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}
    assert len(written) == (2 if is_folder else 1)
