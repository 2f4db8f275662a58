"""Interventions on a tiny pair: paths against the fresh pass, repairs that find what was broken, and the whole pass."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probes.chain.replay import replay
from probes.chain.step import prefill
from probes.conditions import Job, PromptInput, SystemPrompt, Template
from probes.drafter.algorithms.eagle3 import Eagle3
from probes.drafter.model import Drafter
from probes.errors import InputError
from probes.interventions.acceptance import ChainChange, Counts, accept
from probes.interventions.base import Intervention
from probes.interventions.changed_drafter import DrafterIntervention
from probes.interventions.finished_text import DrafterVariants, FinishedText
from probes.interventions.loading import for_interventions
from probes.interventions.parts import Parts, TargetFacts
from probes.interventions.path_patches import PATHS
from probes.interventions.paths import patch_paths
from probes.interventions.reference import gram_similarity
from probes.interventions.registry import ALL, BY_ID, documentation, select
from probes.interventions.rewriting import num_suffix_tokens
from probes.interventions.run import Interventions
from probes.job.loaded import Models, load_models
from probes.job.measure_job import measure_conditions
from probes.record import TEXT_REGIONS, InterventionCounts, PromptRecord, RoundBatch, TargetStates
from tests.cpu.test_replay_reference import DEPTH, FLAGS, NUM_PROMPT, NUM_RESPONSE, make_prompt, make_text
from tests.tiny_models import ROPE, matched_drafter, random_tensors, tiny_spec, tiny_target
from training.write_checkpoint import write_checkpoint

LAYERS: dict[str, dict[str, Any]] = {
    **FLAGS,
    "two layers": {"num_layers": 2, "norm_output": True},
    "two layers, windows": {"num_layers": 2, "sliding_window": (9, 3)},
    "a window smaller than K": {"sliding_window": 3},
}


def made_text(flags: dict[str, Any], seed: int = 3) -> tuple[Drafter, Any, dict[str, torch.Tensor]]:
    spec = tiny_spec(**flags)
    tensors = random_tensors(spec, seed)
    trace, _ = make_text(spec, tensors, num_prompt=NUM_PROMPT, num_tokens=NUM_PROMPT + NUM_RESPONSE + DEPTH, seed=seed)
    return Eagle3.load(spec, tensors), trace, tensors


@pytest.mark.parametrize("flags", LAYERS.values(), ids=LAYERS.keys())
def test_the_light_replay_counts_what_the_replay_records(flags: dict[str, Any]) -> None:
    drafter, trace, _ = made_text(flags)
    batch = replay(drafter, trace, make_prompt(trace, 0), name="d", depth=DEPTH)
    counts = accept(drafter, trace, depth=DEPTH)
    kept = batch.has_all_labels
    assert counts.num_starts == kept.sum() > 0
    expected = [(batch.accepted_drafts[kept] >= k).sum() for k in range(1, DEPTH + 1)]
    assert counts.accepted.tolist() == expected
    assert sum(expected) > 0


@pytest.mark.parametrize("flags", LAYERS.values(), ids=LAYERS.keys())
def test_no_patch_is_the_chain_and_all_patches_are_fresh(flags: dict[str, Any]) -> None:
    drafter, trace, _ = made_text(flags)
    batch = replay(drafter, trace, make_prompt(trace, 0), name="d", depth=DEPTH)
    none = type(PATHS[1])("nothing")
    counts = patch_paths(drafter, trace, (*PATHS, none), depth=DEPTH)
    is_alive = batch.accepted >= 0  # [round, depth]: the drafts before equal the text and the target's choice is known
    assert counts.num_starts.tolist() == is_alive.sum(axis=0).tolist()
    assert counts.baseline_accepted.tolist() == (batch.accepted == 1).sum(axis=0).tolist()
    assert counts.accepted["nothing"].tolist() == counts.baseline_accepted.tolist()
    assert counts.accepted["fresh"].tolist() == (is_alive & (batch.fresh_right == 1)).sum(axis=0).tolist()
    assert counts.num_starts[1] > 0


@pytest.mark.parametrize("flags", [{}, {"num_layers": 2}], ids=["one layer", "two layers"])
def test_every_patched_step_equals_the_oracle_of_its_paths(flags: dict[str, Any]) -> None:
    """Depth 2 by hand, float64: which of key, query and residual come from the true state."""
    from probes.chain.step import step
    from probes.interventions.paths import _patched_step

    drafter, trace, _ = made_text({**flags, "norm_output": True})
    drafter = drafter.double()
    trace = replace(trace, aux={i: a.double() for i, a in trace.aux.items()})
    start, ids = NUM_PROMPT + 1, trace.token_ids
    cache = prefill(drafter, ids, trace.aux)
    fused = drafter.true_state(drafter.features(trace.aux, slice(start, start + 2)))
    output = step(drafter, cache, None, ids[start + 1 : start + 2], fused[:1], start=start)
    token, hidden = ids[start + 2 : start + 3], output.feedback
    chain = step(drafter, cache, None, token, hidden, start=start, own=())
    rotation = drafter.rotation(torch.tensor([start + 1]))
    first = drafter.layers[0]
    as_is = first.project(drafter.embed_tokens(token), hidden, rotation)
    fresh = first.project(drafter.embed_tokens(token), fused[1:], rotation)
    for patch in PATHS:
        q = fresh.q if patch.patches_query else as_is.q
        stream = fresh.residual if patch.patches_residual else as_is.residual
        for index, layer in enumerate(drafter.layers):
            if index:
                q, _, _, stream = layer.project(stream, stream, rotation)
            own = chain.own[index]
            k = cache.k[index][start + 1] if patch.patches_keys else own.k[0, 0]
            v = cache.v[index][start + 1] if patch.patches_keys else own.v[0, 0]
            keys = torch.cat([cache.k[index][: start + 1], k[None]]).repeat_interleave(3, dim=1)
            values = torch.cat([cache.v[index][: start + 1], v[None]]).repeat_interleave(3, dim=1)
            weights = (torch.einsum("hd,shd->hs", q[0], keys) * layer.head_dim**-0.5).softmax(dim=-1)
            stream = layer.finish(torch.einsum("hs,shd->hd", weights, values).flatten()[None], stream)
        expected, _ = drafter.predict(stream)
        actual = _patched_step(
            drafter, cache, (token, hidden), (token, fused[1:]), chain.own, patch, start=start, depth=2
        )
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
        if patch.id == "fresh":
            true = step(drafter, cache, None, token, fused[1:], start=start + 1)
            torch.testing.assert_close(actual, true.logits, rtol=1e-10, atol=1e-10)


def test_sensitivity_changes_only_later_depths() -> None:
    drafter, trace, _ = made_text({})
    plain = accept(drafter, trace, depth=DEPTH)
    for change in (ChainChange(rescales_feedback=True), ChainChange(hides_own_keys=True)):
        changed = accept(drafter, trace, depth=DEPTH, change=change)
        assert changed.accepted[0] == plain.accepted[0]
        assert changed.num_starts == plain.num_starts
    with_post_norm, other, _ = made_text({"norm_output": True})
    # nothing to hide at depth 2: the query sees its own slot only, in both chains
    hidden = accept(with_post_norm, other, depth=2, change=ChainChange(hides_own_keys=True))
    assert hidden.accepted.tolist() == accept(with_post_norm, other, depth=2).accepted.tolist()


FACTS = TargetFacts(
    num_layers=8, hidden_size=48, config={"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
)


def test_a_repair_brings_the_broken_drafter_back() -> None:
    """Break one thing in the checkpoint; the intervention that undoes it gives the sound drafter's logits."""
    sound = tiny_spec(has_fc_norm=True, norm_output=True)
    tensors = random_tensors(sound, 5)
    whole = {**tensors}
    weight = {f"layers.0.self_attn.{n}_proj.weight": tensors[f"layers.0.self_attn.{n}_proj.weight"] for n in "qkv"}
    ids = torch.arange(sound.draft_vocab_size) + tensors["d2t"]
    cases: dict[str, tuple[Any, dict[str, torch.Tensor]]] = {
        "aux_ids_plus_1": (replace(sound, aux_layer_ids=(0, 1, 2)), whole),
        "aux_ids_minus_1": (replace(sound, aux_layer_ids=(2, 3, 4)), whole),
        "norm_output_on": (replace(sound, norm_output=False), whole),
        "norm_before_residual_off": (replace(sound, norm_before_residual=True), whole),
        "rope_theta_10000": (replace(sound, rope_parameters=ROPE["default"] | {"rope_theta": 77.0}), whole),
        "window_off": (replace(sound, sliding_window=(2,)), whole),
        "d2t_absolute": (sound, {**whole, "d2t": ids}),
        "d2t_from_t2d": (sound, {**whole, "d2t": torch.zeros_like(ids)}),
        "input_state_first": (sound, {**whole, **{n: w.roll(sound.hidden_size, 1) for n, w in weight.items()}}),
    }
    for name, (spec, broken) in cases.items():
        intervention = BY_ID[name]
        assert isinstance(intervention, DrafterIntervention)
        assert intervention.applies(spec, FACTS), name
        drafter = intervention.build(Parts(spec=spec, tensors=broken), FACTS)
        assert drafter is not None, name
        assert drafter.spec.aux_layer_ids == sound.aux_layer_ids, name
        assert drafter.spec.norm_output
        assert not drafter.spec.norm_before_residual
        assert dict(drafter.spec.rope_parameters) == ROPE["default"], name
        assert drafter.spec.sliding_window == (None,)
        assert torch.equal(drafter.target_ids(), ids), name
        assert torch.equal(
            drafter.layers[0].self_attn.k_proj.weight,
            tensors["layers.0.self_attn.k_proj.weight"].float()
            if drafter.norm.weight.dtype == torch.float32
            else tensors["layers.0.self_attn.k_proj.weight"],
        )


def test_lost_parts_come_from_the_target() -> None:
    spec = tiny_spec()
    tensors = random_tensors(spec, 6)
    rows = torch.arange(spec.draft_vocab_size) + tensors["d2t"]
    head = torch.randn(spec.vocab_size, spec.hidden_size, dtype=torch.float64)
    facts = replace(FACTS, embedding=2 * tensors["embed_tokens.weight"], lm_head=head)
    lost = Parts(spec=spec, tensors={**tensors, "lm_head.weight": head[rows], "d2t": torch.zeros_like(tensors["d2t"])})

    def built(id: str, parts: Parts) -> Drafter | None:
        intervention = BY_ID[id]
        assert isinstance(intervention, DrafterIntervention)
        assert intervention.applies(parts.spec, facts)
        return intervention.build(parts, facts)

    found = built("d2t_from_lm_head", lost)
    assert found is not None
    assert torch.equal(found.target_ids(), rows)
    assert built("d2t_from_lm_head", Parts(spec=spec, tensors=tensors)) is None  # its map is there
    replaced = built("target_embedding", lost)
    assert replaced is not None
    assert torch.equal(replaced.embed_tokens.weight, facts.embedding)
    learned = torch.randn(spec.hidden_size, spec.hidden_size, dtype=torch.float64)  # what training made of the rows
    full = built("full_draft_vocab", Parts(spec=spec, tensors={**tensors, "lm_head.weight": head[rows] @ learned}))
    assert full is not None
    assert full.lm_head.weight.shape == (spec.vocab_size, spec.hidden_size)
    assert torch.equal(full.lm_head.weight[rows], head[rows] @ learned)
    outside = torch.ones(spec.vocab_size, dtype=torch.bool)
    outside[rows] = False
    torch.testing.assert_close(full.lm_head.weight[outside], head[outside] @ learned, rtol=1e-3, atol=1e-3)
    switched = built("fc_norm_on", Parts(spec=spec, tensors=tensors))
    assert switched is not None
    assert switched.fc_norm is not None
    assert bool((switched.fc_norm[0].weight == 1).all())


def test_interventions_that_change_nothing_do_not_apply() -> None:
    spec = tiny_spec(has_vocab_map=False, draft_vocab_size=160, aux_layer_ids=(2, 4, 5))
    names = {i.id for i in ALL if i.applies(spec, FACTS)}
    assert not names & {"aux_ids_default", "d2t_absolute", "full_draft_vocab", "norm_output_off", "window_off"}
    assert {"aux_ids_plus_1", "norm_output_on", "rope_target", "window_512"} <= names
    assert "rope_target_theta" not in names  # the same as rope_target


def test_a_rotated_target_and_a_noisy_one_are_told_apart() -> None:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(400, 32, generator=generator) * torch.linspace(0.2, 3, 32)
    rotation = torch.linalg.qr(torch.randn(32, 32, generator=generator))[0]
    assert gram_similarity(states, states @ rotation) == pytest.approx(1, abs=1e-5)
    noisy = states + 1.5 * states.std() * torch.randn(states.shape, generator=generator)
    assert gram_similarity(states, noisy) < 0.95


# ---- the whole pass


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    root = tmp_path_factory.mktemp("pair")
    model = tiny_target(seed=0, num_layers=7, folder=root / "target")
    for name, flags in (("eagle3", {}), ("eagle3.1", {"has_fc_norm": True, "norm_output": True})):
        spec, tensors = matched_drafter(model, seed=0, has_own_embedding=False, aux_layer_ids=(2, 3, 4), **flags)
        write_checkpoint(Eagle3.load(spec, tensors, target_embedding=model.model.embed_tokens.weight), root / name)
    write_reference(root)
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}bot:"
    return Job(
        target=str(root / "target"),
        drafters={name: str(root / name) for name in ("eagle3", "eagle3.1")},
        prompts=[
            PromptInput(prompt_id=str(i), messages=({"role": "user", "content": text},))
            for i, text in enumerate(("where is the river", "sum two and three", "name a tree, please"))
        ],
        system_prompts=[SystemPrompt(name="default"), SystemPrompt(name="short", text="Be brief.")],
        templates=[Template(name="default", source="default"), Template(name="plain", source=template)],
        depth=4,
        max_new_tokens=16,
        batch_size=2,
        interventions=("all",),
    )


def write_reference(root: Path) -> None:
    """The target with noise on every weight."""
    model = tiny_target(seed=0, num_layers=7)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            if parameter.dim() == 2:
                parameter += 0.05 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(root / "noisy")
    import shutil

    for file in (root / "target").glob("*token*"):
        shutil.copy(file, root / "noisy")


@pytest.fixture(scope="module")
def models(job: Job) -> Models:
    return for_interventions(job, load_models(job))


@pytest.fixture(scope="module")
def measured(job: Job, models: Models) -> tuple[dict[Any, list[PromptRecord]], list[RoundBatch]]:
    records: list[Any] = []
    measure_conditions(job, models, records.append)
    texts = defaultdict(list)
    for r in records:
        if isinstance(r, PromptRecord):
            texts[r.condition].append(r)
    return texts, [r for r in records if isinstance(r, RoundBatch)]


@pytest.fixture(scope="module")
def counts(job: Job, models: Models, measured: Any) -> list[InterventionCounts]:
    found: list[InterventionCounts] = []
    pass_ = Interventions(job, models, measured[0], found.append)
    pass_.run()
    assert pass_.notes == []
    return found


def key(c: Any) -> tuple[str, str, str, int, str]:
    return c.drafter, c.system_prompt, c.template, c.context_tokens, c.prompt_id


def test_the_baseline_is_the_measured_run(counts: list[InterventionCounts], measured: Any) -> None:
    baseline = {key(c): c for c in counts if c.id == "baseline"}
    assert len(baseline) == 2 * 2 * 2 * 3
    for batch in measured[1]:
        kept = batch.accepted_drafts[batch.has_all_labels]
        found = baseline[key(batch)]
        assert found.num_starts.tolist() == [len(kept)] * 4
        assert found.accepted.tolist() == [(kept >= k).sum() for k in range(1, 5)]


def test_every_row_stands_once_and_is_against_the_baseline(counts: list[InterventionCounts]) -> None:
    keys = [(c.id, *key(c)) for c in counts]
    assert len(keys) == len(set(keys))
    baseline = {key(c): c for c in counts if c.id == "baseline"}
    for c in counts:
        assert (c.accepted <= c.num_starts).all()
        if c.kind != "path":
            assert c.baseline_accepted.tolist() == baseline[key(c)].accepted.tolist()
        else:
            assert c.baseline_accepted[0] == c.accepted[0]
    ids = {c.id for c in counts}
    assert {"fresh", "patch_state", "aux_ids_minus_1", "norm_output_off", "fc_norm_on", "full_draft_vocab"} <= ids
    assert {"reference_system_prompt", "reference_template", "reference_suffix", "rescale_state"} <= ids
    assert "reference_target" not in ids
    assert {c.drafter for c in counts if c.id == "norm_output_off"} == {"eagle3.1"}


def test_shifting_the_layers_costs_this_pair_its_acceptance(counts: list[InterventionCounts]) -> None:
    """The pair's aux layers carry the embedding through, so a shift costs little and the wrong input order all of it."""
    total = defaultdict(int)
    for c in counts:
        total[c.id] += int(c.accepted.sum() - c.baseline_accepted.sum())
    assert total["input_state_first"] < -20
    assert total["aux_ids_minus_1"] != 0


def test_rewritten_texts_are_the_reference_conditions(counts: list[InterventionCounts]) -> None:
    rows = {(c.id, *key(c)): c for c in counts}
    for c in counts:
        if c.id == "reference_system_prompt":
            assert c.system_prompt == "short"
            there = rows["baseline", c.drafter, "default", c.template, 0, c.prompt_id]
            assert c.accepted.tolist() == there.accepted.tolist()
            assert c.response_token_ids is not None
        if c.id == "reference_template":
            assert c.template == "plain"
            there = rows["baseline", c.drafter, c.system_prompt, "default", 0, c.prompt_id]
            assert c.accepted.tolist() == there.accepted.tolist()
        if c.id == "reference_suffix":
            assert c.template == "plain"
            assert c.response_token_ids is not None


def test_what_is_done_is_not_done_again(
    job: Job, models: Models, measured: Any, counts: list[InterventionCounts]
) -> None:
    done = {(c.id, c.drafter, (c.system_prompt, c.template, c.context_tokens), c.prompt_id): c for c in counts}
    assert run_pass(job, models, measured[0], lambda *k: k in done) == []
    left = set(list(done)[:: len(done) // 7])
    again = run_pass(job, models, measured[0], lambda *k: k in done and k not in left)
    assert {(c.id, c.drafter, (c.system_prompt, c.template, c.context_tokens), c.prompt_id) for c in again} == left
    for c in again:
        first = done[c.id, c.drafter, (c.system_prompt, c.template, c.context_tokens), c.prompt_id]
        assert c.accepted.tolist() == first.accepted.tolist()


def test_a_new_kind_needs_no_other_file(
    job: Job, models: Models, measured: Any, counts: list[InterventionCounts], monkeypatch: pytest.MonkeyPatch
) -> None:
    class WalkOnly(Intervention):
        id, kind, changes = "walk_only", "fake", "counts the rounds of the walk, of one drafter and two prompts"

        def has_effect(self, on: DrafterVariants) -> bool:
            return on.name != "eagle3"

        def count(self, on: FinishedText) -> Counts | None:
            return None if on.record.prompt_id == "1" else on.baseline.walk().beside(on.baseline)

    monkeypatch.setattr("probes.interventions.run.select", lambda names: (WalkOnly(),))
    found = [c for c in run_pass(job, models, measured[0], lambda *k: False) if c.id != "baseline"]
    assert {(c.id, c.kind, c.drafter, c.prompt_id) for c in found} == {
        ("walk_only", "fake", "eagle3.1", i) for i in "02"
    }
    walks = {key(b): b for b in measured[1]}
    for c in found:
        batch = walks[key(c)]
        is_counted = batch.on_walk & batch.has_all_labels
        assert c.accepted[0] == (batch.accepted_drafts[is_counted] >= 1).sum()


def run_pass(job: Job, models: Models, texts: Any, is_done: Any) -> list[InterventionCounts]:
    found: list[InterventionCounts] = []
    Interventions(job, models, texts, found.append, is_done=is_done).run()
    return found


def test_a_changed_target_is_found_by_its_states(job: Job, measured: Any) -> None:
    """The run's target beside a noisy copy of itself as reference, and beside itself."""
    texts = {k: v for k, v in measured[0].items() if k == ("default", "default", 0)}
    root = Path(job.target).parent
    for name, is_same in (("target", True), ("noisy", False)):
        asked = replace(job, reference_target=str(root / name), interventions=("reference_target",))
        states: list[TargetStates] = []
        found: list[InterventionCounts] = []
        Interventions(asked, for_interventions(asked, load_models(asked)), texts, found.append, states.append).run()
        assert {s.aux_layer_id for s in states} == {2, 3, 4}
        swapped = [c for c in found if c.id == "reference_target"]
        assert len(swapped) == 2 * 3
        if is_same:
            assert min(s.cosine for s in states) > 0.9999
            assert all(c.accepted.tolist() == c.baseline_accepted.tolist() for c in swapped)
        else:
            assert max(s.cosine for s in states) < 0.9999
            assert min(s.cosine for s in states) > 0.5


def test_a_reference_of_another_shape_is_refused(job: Job, tmp_path: Path) -> None:
    tiny_target(seed=0, num_layers=6, folder=tmp_path / "other")
    asked = replace(job, reference_target=str(tmp_path / "other"))
    with pytest.raises(InputError, match="num_hidden_layers 6"):
        for_interventions(asked, load_models(asked))


def test_suffix_tokens() -> None:
    template, user = TEXT_REGIONS.index("template"), TEXT_REGIONS.index("user")
    assert num_suffix_tokens(np.array([template, user, template, template])) == 2
    assert num_suffix_tokens(np.array([template, user])) == 0
    assert num_suffix_tokens(np.array([template, template])) == 2


def test_ids_are_selected_or_refused() -> None:
    assert select(("all",)) == ALL
    assert select(("none",)) == ()
    assert [i.id for i in select(("patch_keys", "fresh"))] == ["fresh", "patch_keys"]
    with pytest.raises(InputError, match="'nonsense'"):
        select(("nonsense",))


def test_the_documentation_is_the_registry() -> None:
    file = Path(__file__).parents[2] / "docs" / "interventions.md"
    assert file.read_text(encoding="utf-8") == documentation()
