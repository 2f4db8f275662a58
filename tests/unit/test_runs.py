"""A run on disk: what goes in comes out, nulls where nothing was measured, refusals, resuming."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driftscope.runs import RunInfo, RunStatus, RunWriter, list_runs, read_run, verify
from driftscope.runs.info import DrafterInfo
from driftscope.runs.interventions import (
    add_interventions,
    intervention_keys,
    mark_interventions,
    remove_interventions,
)
from driftscope.runs.schema import DEPTH_SCHEMA, INTERVENTION_SCHEMA, PROMPT_SCHEMA, ROUND_SCHEMA
from driftscope.summary import summarise
from probes.checkpoint.spec import DrafterSpec, Finding, Origin, Source
from probes.errors import RunError
from probes.record import COLUMNS, REGIONS, InterventionCounts, PromptRecord, RejectionReason, RoundBatch, TargetStates
from tests.synthetic_run import make_batch, make_info, make_prompt, make_records, write_run

STORED_RUNS = Path(__file__).parent.parent / "fixtures" / "runs"
STARTS = 29  # of a synthetic response of 30 tokens: P-1 .. L-3


def test_every_field_of_a_record_has_a_column() -> None:
    """A quantity added to the record must be stored, or this fails."""
    batch = {f.name for f in dataclasses.fields(RoundBatch)} - {"depth", "mass"}  # K is num_depths; mass: by region
    stored = set(ROUND_SCHEMA.names) | set(DEPTH_SCHEMA.names)
    assert batch - stored == set()
    assert {f"mass_{region}" for region in REGIONS} <= set(DEPTH_SCHEMA.names)
    assert {f.name for f in dataclasses.fields(PromptRecord)} - set(PROMPT_SCHEMA.names) == set()


def _list(values: np.ndarray) -> list[float]:
    return [float(v) for v in values]


@pytest.mark.parametrize("num_layers", [1, 2])
def test_what_is_written_is_read(tmp_path: Path, num_layers: int) -> None:
    prompt = make_prompt(num_response_tokens=5)
    batch = make_batch(prompt, depth=3, num_layers=num_layers, num_heads=2, has_fusion_bias=True)
    run = read_run(write_run(tmp_path / "a.drift", iter([prompt, batch])))
    assert run.status is RunStatus.complete
    rounds, depths = run.rounds().to_pylist(), run.depths().to_pylist()
    assert len(rounds) == len(batch.start) == 4
    assert len(depths) == 4 * 3 * num_layers
    for r, row in enumerate(rounds):
        assert row["round_id"] == r
        assert row["num_depths"] == 3
        assert row["num_trimmed_tokens"] == batch.num_trimmed_tokens
        assert row["fusion_share"] == _list(batch.fusion_share[r])
        assert row["aux_norm"] == _list(batch.aux_norm[r])
        assert row["fusion_share_bias"] == batch.fusion_share_bias[r]
        assert row["draft_us"] is None
        for name in ("start", "num_drafts", "accepted_drafts", "on_walk", "has_all_labels"):
            assert row[name] == getattr(batch, name)[r]
    for i, row in enumerate(depths):
        r, k, layer = np.unravel_index(i, (4, 3, num_layers))
        assert (row["round_id"], row["depth"], row["layer"]) == (r, k + 1, layer)
        assert row["prompt_id"] == "p0"
        assert row["start"] == batch.start[r]
        assert row["rejection_reason"] == RejectionReason(batch.rejection_reason[r, k]).name
        assert row["hidden_in_norm"] == batch.hidden_in_norm[r, k, layer]
        assert row["hidden_feedback_norm"] == batch.hidden_feedback_norm[r, k]
        for region in REGIONS:
            assert row[f"mass_{region}"] == _list(batch.mass[region][r, k, layer])
        assert row["own_excess"] == _list(batch.own_excess[r, k, layer])
        for name in (n for n, c in COLUMNS.items() if c.missing == -1 and c.axes == "round depth"):
            value = getattr(batch, name)[r, k]
            assert row[name] == (None if value == -1 else value)
        assert row["draft_top_token"] == batch.draft_top_token[r, k].tolist()
        assert row["draft_top_prob"] == _list(batch.draft_top_prob[r, k])
        is_seen = batch.accepted[r, k] != -1
        assert row["target_top_token"] == (batch.target_top_token[r, k].tolist() if is_seen else None)
        assert row["target_top_prob"] == (_list(batch.target_top_prob[r, k]) if is_seen else None)
    [stored] = run.prompts().to_pylist()
    assert stored["token_ids"] == prompt.token_ids.tolist()
    assert stored["region"] == prompt.region.tolist()
    assert json.loads(stored["messages"]) == [{"role": "user", "content": "a secret question of p0"}]
    assert stored["text_agreement"] is None
    assert stored["is_degenerate"] is False


def test_unmeasured_is_null(tmp_path: Path) -> None:
    prompt = make_prompt(num_response_tokens=4)
    whole = make_batch(prompt, depth=2)
    out_norm = whole.hidden_out_norm.copy()
    out_norm[1, 0, 0] = np.nan
    mass = {region: values.copy() for region, values in whole.mass.items() if region != "tools"}
    mass["user"][0, 0, 0, 1] = np.nan
    mass["user"][2, 1, 0, :] = np.nan
    batch = dataclasses.replace(
        whole, hidden_out_norm=out_norm, mass=mass, own_excess=None, fresh_token=None, overlap=None, aux_norm=None
    )
    run = read_run(write_run(tmp_path / "a.drift", iter([prompt, batch])))
    depths = run.depths().to_pylist()
    assert [row["hidden_out_norm"] is None for row in depths] == [False, False, True, False, False, False]
    assert all(row["mass_tools"] is row["own_excess"] is row["fresh_token"] is row["overlap"] is None for row in depths)
    first, last = depths[0]["mass_user"], depths[5]["mass_user"]
    assert first[1] is None
    assert first[0] == whole.mass["user"][0, 0, 0, 0]
    assert last is None
    assert set(run.rounds().column("aux_norm").to_pylist()) == {None}
    floats = [f.name for f in DEPTH_SCHEMA if pa.types.is_floating(f.type)]
    assert not any(pc.any(pc.is_nan(run.depths()[name])).as_py() for name in floats)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_token": np.zeros((4, 9), np.int32)}, "draft_token has shape"),
        ({"fusion_share": np.zeros((9, 3), np.float32)}, "fusion_share has shape"),
        ({"mass": {"somewhere": np.zeros((4, 3, 1, 2), np.float32)}}, "unknown regions"),
        ({"accepted_drafts": np.array([-1, 0, 0, 0], np.int32)}, "accepted_drafts holds a negative number"),
    ],
)
def test_records_that_contradict_themselves_are_bugs(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    prompt = make_prompt(num_response_tokens=5)
    batch = dataclasses.replace(make_batch(prompt, depth=3), **change)
    with pytest.raises(ValueError, match=message):
        write_run(tmp_path / "a.drift", [prompt, batch])
    run = read_run(tmp_path / "a.drift")
    assert run.status is RunStatus.failed
    assert message in (run.info.error or "")
    assert run.prompts().num_rows == 1
    assert run.rounds().num_rows == run.depths().num_rows == 0


def test_without_text_nothing_can_be_rebuilt(tmp_path: Path) -> None:
    info = make_info(has_text=False)
    path = write_run(tmp_path / "a.drift", make_records(num_prompts=3, num_loops=1), info)
    run = read_run(path)
    prompts = run.prompts()
    assert prompts["messages"].null_count == prompts["token_ids"].null_count == prompts.num_rows
    assert all(len(digest) == 64 for digest in prompts["messages_sha256"].to_pylist())
    assert prompts["is_degenerate"].to_pylist() == [True, False, False] * 2  # decided before the tokens were dropped
    for name in ("draft_token", "target_token", "fresh_token", "draft_top_token", "target_top_token"):
        assert run.depths([name])[name].null_count == run.depths([name]).num_rows
    assert b"secret question" not in b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert verify(path).is_sound


def test_folders_and_files_are_private(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    modes = {oct(entry.stat().st_mode & 0o777) for entry in path.rglob("*") if entry.is_file()}
    folders = {oct(entry.stat().st_mode & 0o777) for entry in (path, path / "rounds", path / "depths")}
    assert modes == {"0o600"}
    assert folders == {"0o700"}


def test_files_are_zstd_without_dictionaries_on_numbers(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    for file in (path / "depths" / "part-000000.parquet", path / "rounds" / "part-000000.parquet"):
        group = pq.ParquetFile(file).metadata.row_group(0)
        for i in range(group.num_columns):
            column = group.column(i)
            assert column.compression == "ZSTD"
            has_dictionary = "RLE_DICTIONARY" in column.encodings
            assert has_dictionary == (column.physical_type == "BYTE_ARRAY"), column.path_in_schema


def test_other_tools_read_the_files(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    [[num_rows, accepted]] = duckdb.sql(
        f"select count(*), avg(accepted) filter (depth = 1) from '{path}/depths/*.parquet'"
    ).fetchall()
    depths = read_run(path).depths()
    first = depths.filter(pc.equal(depths["depth"], 1))
    assert num_rows == depths.num_rows
    assert accepted == pytest.approx(pc.mean(first["accepted"]).as_py())


def test_columns_and_filter(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a.drift"))
    table = run.depths(["depth", "hidden_in_norm"], (pc.field("drafter") == "eagle3.1") & (pc.field("depth") == 2))
    assert table.column_names == ["depth", "hidden_in_norm"]
    assert set(table["depth"].to_pylist()) == {2}
    assert table.num_rows == 6 * 2 * STARTS
    assert run.rounds(filter=pc.field("on_walk")).num_rows < run.rounds().num_rows


def test_old_and_sparse_run_json_loads(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    (path / "run.json").write_text('{"schema_version": 1, "status": "complete", "engine": "live", "from_later": [1]}')
    info = read_run(path).info
    assert (info.engine, info.drafters, info.counts.num_rounds) == ("live", [], 0)
    assert json.loads(info.model_dump_json())["from_later"] == [1]  # kept when it is written again


def test_columns_that_an_older_version_did_not_write_are_null(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    for folder, column in (("depths", "sink_deficit"), ("rounds", "aux_norm")):
        file = path / folder / "part-000000.parquet"
        pq.write_table(pq.read_table(file).drop_columns([column]), file)
    run = read_run(path)
    assert run.depths(["sink_deficit"])["sink_deficit"].null_count == run.depths(["depth"]).num_rows
    assert run.query("select count(sink_deficit) as n, count(*) as m from depths").to_pylist() == [
        {"n": 0, "m": 24 * STARTS * 4}
    ]


def test_a_stored_run_of_an_older_version_is_read() -> None:
    """Written before candidates were recorded."""
    path = STORED_RUNS / "schema_1_before_candidates.drift"
    run = read_run(path)
    assert run.status is RunStatus.complete
    assert run.depths().num_rows == 2 * 2 * 5 * 4  # prompts, drafters, starts, depths
    assert run.depths(["draft_token"])["draft_token"].null_count == 0
    for name in (n for n, c in COLUMNS.items() if "candidate" in c.axes):
        assert run.depths([name])[name].null_count == run.depths([name]).num_rows
    [row] = run.query("select count(draft_top_token) as n, sum(accepted) as accepted from depths").to_pylist()
    assert row == {"n": 0, "accepted": 26}
    assert verify(path).is_sound
    assert [c.drafter for c in summarise(run).conditions] == ["eagle3", "eagle3.1"]


def test_a_stored_import_of_an_older_version_is_read() -> None:
    """Written when temperature 0 stood for one that the source did not say."""
    path = STORED_RUNS / "schema_1_import.drift"
    run = read_run(path)
    [prompt] = run.prompts().to_pylist()
    assert (run.info.engine, run.info.temperature, prompt["num_prompt_tokens"]) == ("import", 0.0, 900)
    assert verify(path).is_sound
    [condition] = summarise(run).conditions
    assert condition.walk is not None
    assert condition.walk.tokens_per_round == pytest.approx(2.3)


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda path: None, "run_not_found"),
        (lambda path: path.mkdir(), "not_a_run"),
        (lambda path: (path.mkdir(), (path / "run.json").write_text("{")), "bad_run_json"),
        (lambda path: (path.mkdir(), (path / "run.json").write_text('{"status": "odd"}')), "bad_run_json"),
        (lambda path: (path.mkdir(), (path / "run.json").write_text('{"schema_version": 99}')), "newer_schema"),
    ],
)
def test_what_is_no_run(tmp_path: Path, prepare: Any, code: str) -> None:
    path = tmp_path / "a.drift"
    prepare(path)
    with pytest.raises(RunError) as caught:
        read_run(path)
    assert caught.value.code == code
    assert str(path) in caught.value.where
    assert caught.value.remedy


def test_list_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "good.drift")
    (tmp_path / "broken.drift").mkdir()
    (tmp_path / "other").mkdir()
    entries = {entry.name: entry for entry in list_runs(tmp_path).runs}
    assert set(entries) == {"good", "broken"}
    assert entries["good"].status is RunStatus.complete
    assert entries["good"].num_rounds == 24 * STARTS
    assert entries["good"].drafters == ["eagle3", "eagle3.1"]
    assert "run.json" in (entries["broken"].error or "")
    assert [entry.name for entry in list_runs(tmp_path / "good.drift").runs] == ["good"]
    with pytest.raises(RunError) as caught:
        list_runs(tmp_path / "nowhere")
    assert caught.value.code == "folder_not_found"


def test_interventions(tmp_path: Path) -> None:
    prompt = make_prompt()
    counts = InterventionCounts(
        id="norm_output_on",
        kind="wiring",
        drafter="eagle3",
        system_prompt="default",
        template="default",
        context_tokens=0,
        prompt_id=prompt.prompt_id,
        num_starts=np.array([28, 28]),
        accepted=np.array([20, 11]),
        baseline_accepted=np.array([9, 2]),
    )
    states = TargetStates(
        system_prompt="default",
        template="default",
        context_tokens=0,
        prompt_id=prompt.prompt_id,
        aux_layer_id=2,
        num_positions=9,
        cosine=0.5,
        norm_ratio=1.0,
        gram_similarity=1.0,
    )
    path = write_run(tmp_path / "a.drift")
    assert read_run(path).interventions().num_rows == 0
    add_interventions(path, [counts], [states])
    add_interventions(
        path, [dataclasses.replace(counts, id="reference_target", response_token_ids=np.resize([5, 6], 40))], []
    )
    run = read_run(path)
    table = run.interventions()
    assert table.schema.equals(INTERVENTION_SCHEMA)
    assert [(r["id"], r["depth"], r["accepted"]) for r in table.to_pylist()] == [
        ("norm_output_on", 1, 20),
        ("norm_output_on", 2, 11),
        ("reference_target", 1, 20),
        ("reference_target", 2, 11),
    ]
    assert table["is_degenerate"].to_pylist() == [None, None, True, True]
    assert {key.id for key in intervention_keys(run)} == {"norm_output_on", "reference_target"}
    assert run.target_states()["cosine"].to_pylist() == [0.5]
    mark_interventions(path, ["norm_output_on"], "other")
    assert (read_run(path).info.interventions, read_run(path).info.reference_target) == (["norm_output_on"], "other")
    remove_interventions(path, ["reference_target"])
    assert read_run(path).interventions().num_rows == 2
    assert read_run(path).target_states().num_rows == 0


def test_drafter_info_keeps_where_each_setting_came_from() -> None:
    spec = DrafterSpec(
        producer="specforge",
        hidden_size=64,
        target_hidden_size=64,
        intermediate_size=128,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=100,
        draft_vocab_size=50,
        rms_norm_eps=1e-5,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        aux_layer_ids=(2, 15, 27),
        has_own_embedding=False,
        has_own_lm_head=True,
        has_vocab_map=True,
        norm_output=True,
        has_fc_norm=True,
        origins={"norm_output": Origin(source=Source.file_key, detail="norm_output", is_certain=False)},
        findings=(Finding(code="x", severity="info", message="m", where="w"),),
    )
    info = RunInfo(drafters=[DrafterInfo.from_spec("mine", "/models/d", spec, files_sha256={"a": "b"})])
    drafter = RunInfo.model_validate_json(info.model_dump_json()).drafter("mine")
    assert drafter is not None
    assert (drafter.kind, drafter.num_heads, drafter.aux_layer_ids) == ("eagle3.1", 4, [2, 15, 27])
    assert drafter.settings["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4}
    assert drafter.origins == {"norm_output": {"source": "file_key", "detail": "norm_output", "is_certain": False}}
    assert drafter.findings[0]["severity"] == "info"
    assert info.drafter("other") is None


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    depth=st.integers(1, 6),
    num_layers=st.integers(1, 3),
    num_heads=st.integers(1, 5),
    num_response_tokens=st.integers(0, 40),
    accept_share=st.floats(0, 1),
    engine=st.sampled_from(["replay", "live", "vllm"]),
    seed=st.integers(0, 1000),
)
def test_any_run_verifies(tmp_path: Path, **shape: Any) -> None:
    """Masses and fusion shares sum to 1, walks give the completion's length, rounds and depths join, for any shape."""
    prompt = make_prompt(num_response_tokens=shape.pop("num_response_tokens"), seed=shape["seed"])
    path = tmp_path / "a.drift"
    info = make_info(engine=shape["engine"], depth=shape["depth"], num_heads=shape["num_heads"])
    with RunWriter(path, info, overwrite=path.exists()) as writer:
        writer.write_batch(prompt)
        writer.write_batch(make_batch(prompt, drafter="eagle3", **shape))
        writer.write_batch(make_batch(prompt, drafter="eagle3.1", **shape))
    verification = verify(path)
    assert [check for check in verification.checks if check.num_failed] == []


def test_a_long_query_writes_nothing_to_stdout(tmp_path: Path) -> None:
    """duckdb shows a bar of its own after two seconds, in the middle of what `--json` prints."""
    run = read_run(write_run(tmp_path / "a.drift"))
    with run.database() as connection:
        found = connection.sql("select current_setting('enable_progress_bar')").fetchall()
    assert found == [(False,)]
    assert run.query("select 1 as one").to_pylist() == [{"one": 1}]
