"""`verify` finds each contradiction that it claims to look for, and only that one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.runs import verify
from tests.synthetic_run import make_records, write_run


def _set(table: pa.Table, column: str, row: int, value: object) -> pa.Table:
    index = table.column_names.index(column)
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(index, table.field(column), pa.array(values, table.field(column).type))


def _scaled(table: pa.Table, column: str, row: int, factor: float) -> pa.Table:
    return _set(table, column, row, [factor * v for v in table[column][row].as_py()])


def _other_start(table: pa.Table) -> pa.Table:
    return _set(table, "start", 1, table["start"][0].as_py())


ROUNDS, DEPTHS = "rounds/part-000000.parquet", "depths/part-000000.parquet"


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        (DEPTHS, lambda t: _scaled(t, "mass_user", 3, 1.1), {"masses_sum_to_1": 1}),
        (DEPTHS, lambda t: _set(t, "mass_user", 3, None), {}),  # partly unmeasured: less than 1 is fine
        (DEPTHS, lambda t: _set(_scaled(t, "mass_sink", 3, 50), "mass_user", 3, None), {"masses_sum_to_1": 1}),
        (DEPTHS, lambda t: _set(t, "mass_user", 3, [0.1]), {"masses_sum_to_1": 1}),  # another number of heads
        (ROUNDS, lambda t: _scaled(t, "fusion_share", 2, 1.001), {"fusion_shares_sum_to_1": 1}),
        (ROUNDS, lambda t: _set(t, "fusion_share", 2, None), {}),
        (ROUNDS, lambda t: _set(t, "num_drafts", 0, 9), {"values_possible": 1}),
        (ROUNDS, _other_start, {"starts_unique": 1, "rounds_equal_depths": 1}),
        (ROUNDS, lambda t: _set(t, "round_id", 0, 1), {"round_ids_unique": 1, "rounds_join_depths": 1}),
        (DEPTHS, lambda t: t.slice(1), {"rounds_join_depths": 1, "counts_match": 1}),
        (ROUNDS, lambda t: t.slice(0, t.num_rows - 1), {"rounds_join_depths": 1, "counts_match": 1}),
        ("prompts.parquet", lambda t: t.slice(1), {"prompts_present": 2, "counts_match": 1}),
        ("prompts.parquet", lambda t: pa.concat_tables([t, t.slice(0, 1)]), {"prompts_unique": 1, "counts_match": 1}),
        (
            "prompts.parquet",
            lambda t: _set(_set(t, "num_response_tokens", 0, 31), "num_continuation_tokens", 0, 6),
            {"walk_identity": 2},
        ),
        (DEPTHS, lambda t: _set(t, "accepted", 0, 1 - t["accepted"][0].as_py()), {"accepted_is_a_prefix": 1}),
    ],
)
def test_each_contradiction(
    tmp_path: Path, file: str, change: Callable[[pa.Table], pa.Table], expected: dict[str, int]
) -> None:
    path = write_run(tmp_path / "a.drift", make_records(num_prompts=2))
    pq.write_table(change(pq.read_table(path / file)), path / file)
    verification = verify(path)
    failed = {check.name: check.num_failed for check in verification.checks if check.num_failed}
    for name, number in expected.items():
        assert failed.get(name, 0) >= number, failed
    # what follows from the same change may fail with it, nothing else
    follows = {"walk_identity", "starts_unique", "prompts_unique", "accepted_is_a_prefix", "rounds_equal_depths"}
    assert set(failed) - set(expected) <= (follows if expected else set())
    assert verification.is_sound == (not expected)
    assert all(check.examples for check in verification.checks if check.num_failed)


def test_doubled_batch(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift", make_records(num_prompts=2))
    for folder in ("rounds", "depths"):
        table = pq.read_table(path / folder / "part-000000.parquet")
        ids = pa.array(table["round_id"].to_numpy() + 10_000)
        pq.write_table(table.set_column(0, table.field(0), ids), path / folder / "part-000001.parquet")
    failed = {check.name: check.num_failed for check in verify(path).checks if check.num_failed}
    assert failed["batches_whole"] == 8
    assert failed["starts_unique"] == 8 * 29


def test_a_check_that_saw_nothing_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift", make_records(num_prompts=2, has_attention=False))
    checks = {check.name: check for check in verify(path).checks}
    assert checks["masses_sum_to_1"].num_checked == 0
    assert checks["fusion_shares_sum_to_1"].num_checked == 8 * 29
    assert checks["walk_identity"].num_checked == 8


def test_tolerance_of_masses(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift", make_records(num_prompts=1))
    table = pq.read_table(path / DEPTHS)
    user = np.array(table["mass_user"][5].as_py())
    for shift, is_sound in ((0.0009, True), (0.0011, False)):
        pq.write_table(_set(table, "mass_user", 5, list(user + shift)), path / DEPTHS)
        assert verify(path).is_sound is is_sound
