"""`driftscope probe --engine vllm` on the demo pair, as a user runs it: the run folder, its findings, its self-check."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

from driftscope.builtin import resolve_drafter
from driftscope.measure.run import measure
from driftscope.plan import Plan, make_plan
from driftscope.runs import Run, read_run
from driftscope.runs.verify import verify
from driftscope.summary import summarise
from probes.errors import InputError, SelfCheckError
from probes.target.demo import demo_target_path
from probes.vllm import measure_job as vllm_job
from probes.vllm import versions
from probes.vllm.engine import Counters, engine

VLLM = {"enforce_eager": True, "max_model_len": 1024}


def plan(**changes: object) -> Plan:
    options: dict[str, object] = {
        "target": "demo",
        "drafter": {"eagle3": "demo:eagle3", "eagle3.1": "demo:eagle3.1"},
        "engine": "vllm",
        "num_prompts": 4,
        "context_tokens": [0, 200],
        "system_prompt": {"default": None},
        "max_new_tokens": 24,
        "level": "heads",
        "vllm": VLLM,
        **changes,
    }
    return make_plan(options, where="test")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The same plan by replay and inside vLLM."""
    folder = tmp_path_factory.mktemp("runs")
    measure(plan(), folder / "vllm.drift")
    measure(plan(engine="replay", vllm={}, level="default"), folder / "replay.drift")
    return {name: read_run(folder / f"{name}.drift") for name in ("vllm", "replay")}


def test_the_run_is_sound(runs: dict[str, Run]) -> None:
    run = runs["vllm"]
    assert verify(run.path).is_sound
    assert run.info.engine == "vllm"
    assert run.info.level == "heads"
    assert run.info.counts.num_batches == 16
    assert run.info.provenance.packages["vllm"] == "0.32.0"
    assert run.info.provenance.attention_backend == "CPUAttentionBackend"
    assert run.info.provenance.device == "cpu"
    assert any("eager mode" in note for note in run.info.notes)
    settings = json.loads((run.path / "run.json").read_text())["drafters"][1]["engine_settings"]
    assert settings["aux_layer_ids"] == [2, 15, 27]
    assert settings["norm_output"] is True
    assert not any(f["code"].startswith("engine_") for d in run.info.drafters for f in d.findings)


def test_rounds_and_measurements_are_replays_walk(runs: dict[str, Run]) -> None:
    key = ["drafter", "context_tokens", "prompt_id", "start"]
    columns = ["num_drafts", "accepted_drafts"]
    tables = {
        name: run.query(f"select {', '.join(key + columns)} from rounds where on_walk") for name, run in runs.items()
    }
    rows = {name: sorted(zip(*(t[c].to_pylist() for c in key + columns), strict=True)) for name, t in tables.items()}
    assert rows["vllm"] == rows["replay"]
    measured = ["hidden_in_norm", "hidden_out_norm", "hidden_feedback_norm", "branch_norm_attn", "branch_norm_mlp"]
    masses = [f"mass_{r}" for r in ("own", "current", "sink", "template", "system", "context", "user", "response")]
    columns = ["draft_token", *measured, "input_share_embed", *masses]
    order = "drafter, context_tokens, prompt_id, start, depth"
    sql = f"select {', '.join(columns)} from depths where on_walk order by {order}"
    ours, theirs = (runs[name].query(sql) for name in ("replay", "vllm"))
    assert ours["draft_token"].to_pylist() == theirs["draft_token"].to_pylist()
    for name in measured:
        np.testing.assert_allclose(theirs[name].to_numpy(), ours[name].to_numpy(), rtol=1e-3, err_msg=name)
    np.testing.assert_allclose(theirs["input_share_embed"].to_numpy(), ours["input_share_embed"].to_numpy(), atol=1e-3)
    for name in masses:
        a, b = (np.array(t[name].to_pylist()) for t in (ours, theirs))
        np.testing.assert_allclose(b, a, atol=1e-3, err_msg=name)
    print(f"{len(rows['vllm'])} rounds, {ours.num_rows} depths")


def test_show_has_a_walk_and_says_what_is_null(runs: dict[str, Run]) -> None:
    summary = summarise(runs["vllm"])
    for condition in summary.conditions:
        assert condition.dense is None
        assert condition.walk is not None
        assert condition.walk.num_rounds > 0
        assert condition.depth_basis == "walk"
        assert all(v is None for v in condition.own_excess)
        assert condition.mass["response"][0] > 0
    assert any("own_excess, sink_deficit and chain_gap are null" in note for note in runs["vllm"].info.notes)


def test_sampled_texts_of_two_drafters_and_chunks_are_told(tmp_path: Path) -> None:
    """Each drafter's engine samples its own text: the first is stored, what was counted stays each drafter's own."""
    out = tmp_path / "sampled.drift"
    asked = plan(
        temperature=1.0,
        context_tokens=[0],
        num_prompts=3,
        level="default",
        vllm={**VLLM, "max_num_batched_tokens": 64},
    )
    check = measure(asked, out)
    run = read_run(out)
    assert verify(run.path).is_sound
    assert any("texts of later drafters" in note for note in check.notes)
    assert any("chunks of at most 64 tokens" in note for note in run.info.notes)
    assert any("temperature > 0" in note for note in run.info.notes)
    rows = run.query("select drafter, count(num_trimmed_tokens) as n from rounds group by drafter order by drafter")
    assert rows["n"].to_pylist()[0] > 0


def test_a_lost_norm_flag_and_another_layer_are_findings(tmp_path: Path) -> None:
    """The checkpoint's flags and ids under keys that vLLM does not read: it says nothing, we do."""
    drafter = Path(resolve_drafter("demo:eagle3.1"))
    shutil.copytree(drafter, tmp_path / "nested")
    file = tmp_path / "nested" / "config.json"
    config = json.loads(file.read_text())
    config["eagle_config"] = {"norm_output": config.pop("norm_output")}
    config["eagle_aux_hidden_state_layer_ids"] = [2, 14, 27]
    file.write_text(json.dumps(config))
    out = tmp_path / "nested.drift"
    asked = plan(drafter={"nested": str(tmp_path / "nested")}, context_tokens=[0], num_prompts=2, level="counts")
    measure(asked, out)
    run = read_run(out)
    codes = {f["code"] for f in run.info.drafters[0].findings}
    settings = run.info.drafters[0].model_extra["engine_settings"]
    assert settings["norm_output"] is False
    assert settings["aux_layer_ids"] == [2, 14, 27]
    assert ("engine_norm_output" in codes) == run.info.drafters[0].settings["norm_output"]
    assert run.query("select count(*) as n from depths where mass_own is not null")["n"].to_pylist() == [0]


def test_an_engine_that_cannot_be_recorded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a prompt is answered, and an unknown version before the engine is built."""
    monkeypatch.setattr(versions, "KNOWN", {"V1": {}, "V2": {"0.32.0": "run"}})
    drafter = resolve_drafter("demo:eagle3")
    built = engine(str(demo_target_path()), drafter, depth=2, dtype="float32", options=VLLM, in_process=True)
    with pytest.raises(InputError, match=r"V1 model runner of vLLM 0\.32\.0 is unknown") as raised, built:
        raise AssertionError
    assert raised.value.code == "not_recordable"
    monkeypatch.setattr(versions, "KNOWN", {"V1": {"0.1.0": "run"}, "V2": {}})
    with pytest.raises(InputError) as raised:
        measure(plan(), tmp_path / "y.drift")
    assert raised.value.code == "vllm_version"
    assert not (tmp_path / "y.drift").exists()


def test_counts_that_differ_from_vllms_fail_the_self_check() -> None:
    class Running:
        def status(self) -> None:
            return None

    with pytest.raises(SelfCheckError) as raised:
        vllm_job.cross_check([], Counters(num_drafts=3, num_accepted=1, accepted_by_depth=[1]), Running(), "d")
    assert raised.value.code == "counts_differ"
    with pytest.raises(SelfCheckError) as raised:
        vllm_job.cross_check([], Counters(num_drafts=0, num_accepted=0, accepted_by_depth=[]), Running(), "d")
    assert raised.value.code == "no_rounds"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"interventions": ["all"]}, "not_with_vllm"),
        ({"target_attention": True}, "not_with_vllm"),
        ({"vllm": {"no_such_option": 1}}, "vllm_refuses"),
    ],
)
def test_what_cannot_be_done_is_said(changes: dict[str, object], code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        measure(plan(**changes), tmp_path / "x.drift")
    assert raised.value.code == code
