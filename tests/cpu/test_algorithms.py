"""A second drafting algorithm takes a class and its rows: one made up here is read, checked, replayed, looped and recorded.

"joined": a drafter on the target's last state alone. fc joins embedding and state before an ordinary Llama layer, and the
state after the final norm is fed back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from driftscope.check.engines.engine import NOT_READ
from driftscope.check.run import check_pair
from probes.checkpoint import algorithms as checkpoint_algorithms
from probes.checkpoint import producers
from probes.checkpoint.algorithms import LAYOUTS, Layout
from probes.checkpoint.collector import Collector
from probes.checkpoint.families import FAMILIES
from probes.checkpoint.producer import Producer
from probes.checkpoint.spec import FINAL_NORMED, DrafterSpec
from probes.conditions import Job, PromptInput
from probes.drafter import algorithms
from probes.drafter.algorithms import ALGORITHMS
from probes.drafter.layers import LAYER_FAMILIES
from probes.drafter.layers.llama import Projected
from probes.drafter.model import Drafter
from probes.errors import CheckpointError
from probes.job.loaded import Models, load_models
from probes.job.measure_job import measure_conditions
from probes.record import PromptRecord, Record, RoundBatch
from tests.tiny_models import VOCAB_SIZE, next_token, tiny_target

HIDDEN, DEPTH = 64, 3


class Joined(Drafter):
    def make_input(self) -> None:
        self.fc = nn.Linear(2 * self.spec.hidden_size, self.spec.hidden_size, bias=False)

    @staticmethod
    def boundary_ids(spec: DrafterSpec) -> tuple[int, ...]:
        return (FINAL_NORMED,)

    @property
    def nulls(self) -> dict[str, str]:
        return {"fusion_share": "one state is read, nothing is fused"}

    def true_state(self, features: Float[Tensor, "*slot hidden"]) -> Float[Tensor, "*slot hidden"]:
        return features

    def enter(self, token_ids: Int[Tensor, "*slot"], state: Float[Tensor, "*slot hidden"]) -> tuple[Tensor, Tensor]:
        embeds = self.embed_tokens(token_ids)
        return embeds, self.fc(torch.cat([embeds, state], dim=-1))

    def predict(self, stream: Float[Tensor, "*slot hidden"]) -> tuple[Tensor, Tensor]:
        normed = self.norm(stream)
        return self.logits(normed), normed

    def feature_columns(self, features: Float[Tensor, "round hidden"]) -> dict[str, Tensor | None]:
        return {"aux_norm": features.float().norm(dim=-1, keepdim=True)}

    def embed_share(self, embeds: Tensor, state: Tensor, x: Tensor, projected: Projected) -> Float[Tensor, "query"]:
        joined = self.fc(torch.cat([embeds, state], dim=-1))
        alone = self.fc(torch.cat([embeds, torch.zeros_like(state)], dim=-1))
        return (alone * joined).sum(dim=-1) / joined.square().sum(dim=-1)


def read_inputs(found: Collector, **_: Any) -> None:
    found.default("target_hidden_size", found.values["hidden_size"], "joined")
    found.default("aux_layer_ids", (FINAL_NORMED,), "joined")
    for field in ("has_fc", "use_aux_hidden_state", "has_hidden_norm"):
        found.default(field, False, "joined")


PRODUCER = Producer(
    name="ours",
    algorithm="joined",
    score=lambda config, names: 99 if config.get("is_joined") is True else 0,
    sections=("",),
    aux_id_keys=(),
    norm_output_default=(True, "ours"),
    norm_before_residual_default=(False, "ours"),
    title="Ours",
    source="this file",
    reads="`is_joined`",
    tested="here",
)
LAYOUT = Layout(
    read_inputs=read_inputs,
    input_shapes=lambda spec: {"fc.weight": (spec.hidden_size, 2 * spec.hidden_size)},
    reads_embedding=False,
)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "joined", Joined)
    monkeypatch.setitem(LAYOUTS, "joined", LAYOUT)
    known = producers.all_producers()
    monkeypatch.setattr(producers, "all_producers", lambda: (*known, PRODUCER))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Target and drafter folders. Like `matched_drafter` the drafter looks up what follows the token that it reads."""
    root = tmp_path_factory.mktemp("joined")
    model = tiny_target(seed=0, folder=root / "target")
    generator = torch.Generator().manual_seed(1)

    def random(num_out: int, num_in: int, gain: float = 0.3) -> Tensor:
        return torch.randn(num_out, num_in, generator=generator) * gain / num_in**0.5

    embedding = model.model.embed_tokens.weight.detach()
    tensors = {
        "embed_tokens.weight": embedding.clone(),
        "fc.weight": torch.cat([torch.eye(HIDDEN), random(HIDDEN, HIDDEN)], dim=1),
        "norm.weight": torch.full((HIDDEN,), 1.5),
        "lm_head.weight": (embedding[torch.argsort(next_token(0))] + random(VOCAB_SIZE, HIDDEN)) / HIDDEN**0.5,
        "layers.0.input_layernorm.weight": torch.ones(HIDDEN),
        "layers.0.post_attention_layernorm.weight": torch.ones(HIDDEN),
        **{f"layers.0.self_attn.{x}_proj.weight": random(n, HIDDEN) for x, n in (("q", 64), ("k", 32), ("v", 32))},
        "layers.0.self_attn.o_proj.weight": random(HIDDEN, 64),
        "layers.0.mlp.gate_proj.weight": random(96, HIDDEN),
        "layers.0.mlp.up_proj.weight": random(96, HIDDEN),
        "layers.0.mlp.down_proj.weight": random(HIDDEN, 96),
    }
    config = {
        "architectures": ["JoinedForCausalLM"],
        "is_joined": True,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
    }
    (root / "drafter").mkdir()
    (root / "drafter" / "config.json").write_text(json.dumps(config))
    save_file(tensors, root / "drafter" / "model.safetensors", metadata={"format": "pt"})
    return str(root / "target"), str(root / "drafter")


@pytest.fixture
def job(pair: tuple[str, str], rows: None) -> Job:
    return Job(
        target=pair[0],
        drafters={"joined": pair[1]},
        prompts=[
            PromptInput(prompt_id=str(i), messages=({"role": "user", "content": text},))
            for i, text in enumerate(("where is the river", "name a tree, please, and a bird"))
        ],
        depth=DEPTH,
        max_new_tokens=24,
        batch_size=2,
    )


def measured(job: Job, models: Models) -> tuple[Mapping[str, PromptRecord], Mapping[str, RoundBatch], list[str]]:
    """Prompts and rounds by prompt id, and the notes."""
    records: list[Record] = []
    check = measure_conditions(job, models, records.append)
    return (
        {r.prompt_id: r for r in records if isinstance(r, PromptRecord)},
        {r.prompt_id: r for r in records if isinstance(r, RoundBatch)},
        check.notes,
    )


def test_every_algorithm_and_family_has_both_rows() -> None:
    assert algorithms.ALGORITHMS.keys() == checkpoint_algorithms.LAYOUTS.keys()
    assert LAYER_FAMILIES.keys() == FAMILIES.keys()


def test_replay_is_the_loop_and_the_loop_is_lossless(job: Job) -> None:
    models = load_models(job)
    assert isinstance(models.drafters[0].model, Joined)
    assert models.target.hooked_ids == (FINAL_NORMED,)
    _, replayed, _ = measured(job, models)
    _, looped, _ = measured(replace(job, engine="live"), models)  # raises where the text is not plain decoding's
    assert {b.accepted_drafts.max() for b in looped.values()} == {DEPTH}
    assert any(b.accepted_drafts.min() == 0 for b in looped.values())
    for prompt_id, batch in replayed.items():
        walk, rounds = batch.on_walk, looped[prompt_id]
        assert batch.start[walk].tolist() == rounds.start.tolist()
        assert batch.accepted_drafts[walk].tolist() == rounds.accepted_drafts.tolist()
        np.testing.assert_array_equal(batch.draft_token[walk], rounds.draft_token)
        np.testing.assert_allclose(batch.own_excess[walk], rounds.own_excess, atol=1e-5)  # type: ignore[index]


def test_what_is_recorded_is_what_the_formulas_say(job: Job) -> None:
    models = load_models(job)
    target, drafter = models.target, models.drafters[0].model
    prompts, replayed, notes = measured(job, models)
    assert notes == ["joined: fusion_share is null: one state is read, nothing is fused"]
    for prompt_id, batch in replayed.items():
        ids = torch.as_tensor(prompts[prompt_id].token_ids, dtype=torch.int64)
        with torch.no_grad():
            hidden = target.model.model(ids[None]).last_hidden_state[0]
            state = hidden[torch.as_tensor(batch.start).long()]
            embeds = drafter.embed_tokens(ids[torch.as_tensor(batch.start).long() + 1])
            joined = embeds + state @ drafter.fc.weight[:, HIDDEN:].T
        assert batch.fusion_share is None
        assert batch.fusion_energy is None
        np.testing.assert_allclose(batch.aux_norm[:, 0], state.norm(dim=-1), rtol=1e-4)  # type: ignore[index]
        np.testing.assert_allclose(batch.hidden_in_norm[:, 0, 0], joined.norm(dim=-1), rtol=1e-4)  # type: ignore[index]
        share = (embeds * joined).sum(dim=-1) / joined.square().sum(dim=-1)
        np.testing.assert_allclose(batch.input_share_embed[:, 0], share, rtol=1e-3)  # type: ignore[index]
        # the normed state is fed back: its size is the final norm's gain
        np.testing.assert_allclose(batch.hidden_feedback_norm, 1.5 * HIDDEN**0.5, rtol=1e-3)


@pytest.mark.usefixtures("rows")
def test_check_takes_it_by_its_row(pair: tuple[str, str]) -> None:
    report = check_pair(*pair)
    assert (report.drafter.producer, report.drafter.kind, report.drafter.family) == ("ours", "joined", "llama")
    assert {finding.severity for finding in report.findings} <= {"info"}  # no rule of EAGLE-3's speaks
    (weights,) = (row for row in report.settings if row.setting == "weights")
    assert {cell.source for cell in weights.engines} == {NOT_READ}


def test_without_its_row_it_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_pair(*pair)
    assert caught.value.code == "unsupported_family"


@pytest.mark.usefixtures("rows")
def test_a_tensor_of_the_algorithm_is_missed(pair: tuple[str, str], tmp_path: Path) -> None:
    tensors = load_file(Path(pair[1]) / "model.safetensors")
    del tensors["fc.weight"]
    (tmp_path / "config.json").write_text((Path(pair[1]) / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    report = check_pair(pair[0], str(tmp_path))
    assert any("fc.weight" in finding.evidence for finding in report.findings if finding.severity == "error")
