"""Faults of three kinds, each with the causes that count as a right answer.

Static: a checkpoint folder with one thing wrong. Dynamic: a sound checkpoint run wrongly, or on a text that it does not
know. Reference: a target that was changed after the drafter was trained.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from probes.chain import live
from probes.chain.draft_loop import DraftInputs, DraftLoop, Drafts
from probes.drafter.algorithms.eagle3 import Eagle3

Tensors = dict[str, Tensor]
Config = dict[str, Any]


@dataclass(frozen=True)
class StaticFault:
    name: str
    right: tuple[str, ...]  # verdicts that name the cause
    checks: tuple[str, ...]  # ids of `driftscope check` that name it; none where files cannot show it
    change: Callable[[Config, Tensors], None]
    kind: str  # which sound drafter: eagle3 | eagle3.1 | tiny


def _ids(ids: list[int]) -> Callable[[Config, Tensors], None]:
    def change(config: Config, tensors: Tensors) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = ids

    return change


def _permuted(config: Config, tensors: Tensors) -> None:
    low, mid, high = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat([high, low, mid], dim=1).contiguous()


def _zeroed_map(config: Config, tensors: Tensors) -> None:
    tensors["d2t"] = torch.zeros_like(tensors["d2t"])


def _missing_map(config: Config, tensors: Tensors) -> None:
    del tensors["d2t"], tensors["t2d"]


def _flag(name: str, value: bool) -> Callable[[Config, Tensors], None]:
    def change(config: Config, tensors: Tensors) -> None:
        config[name] = value

    return change


def _lost_fc_norm(config: Config, tensors: Tensors) -> None:
    config["fc_norm"] = False
    for name in [n for n in tensors if n.startswith("fc_norm.")]:
        del tensors[name]


def _lost_fc_norm_flag(config: Config, tensors: Tensors) -> None:
    config["fc_norm"] = False


def _nested_ids(config: Config, tensors: Tensors) -> None:
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": config.pop("eagle_aux_hidden_state_layer_ids")}


def _absolute_map(config: Config, tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def _random_embedding(config: Config, tensors: Tensors) -> None:
    generator = torch.Generator().manual_seed(0)
    size = (config["vocab_size"], config["hidden_size"])
    tensors["embed_tokens.weight"] = (0.1 * torch.randn(size, generator=generator)).bfloat16()


def _missing_lm_head(config: Config, tensors: Tensors) -> None:
    del tensors["lm_head.weight"]


def _rope(**changes: object) -> Callable[[Config, Tensors], None]:
    def change(config: Config, tensors: Tensors) -> None:
        config["rope_parameters"] = {**config["rope_parameters"], **changes}
        config["rope_theta"] = config["rope_parameters"]["rope_theta"]

    return change


def _lost_scaling(config: Config, tensors: Tensors) -> None:
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_theta"]}


def _few_positions(config: Config, tensors: Tensors) -> None:
    config["max_position_embeddings"] = 256


def _dropped_window(config: Config, tensors: Tensors) -> None:
    del config["layer_types"]  # the window stays stated, as in configs written for another engine


def _swapped_input(config: Config, tensors: Tensors) -> None:
    for name in "qkv":
        key = f"midlayer.self_attn.{name}_proj.weight"
        tensors[key] = tensors[key].roll(config["hidden_size"], dims=1).contiguous()


def _cut_vocabulary(config: Config, tensors: Tensors) -> None:
    """Keeps the rows of the smallest target ids, one in four: byte and short tokens, hardly a word."""
    kept = config["draft_vocab_size"] // 4
    ids = (tensors["d2t"] + torch.arange(len(tensors["d2t"])))[:kept]
    tensors["d2t"] = (ids - torch.arange(kept)).contiguous()
    tensors["t2d"] = torch.zeros_like(tensors["t2d"])
    tensors["t2d"][ids] = True
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:kept].contiguous()
    config["draft_vocab_size"] = kept


WIRING, FEEDBACK = ("wiring_fault",), ("feedback_fault", "wiring_fault")
STATIC = (
    StaticFault("ids_shifted", WIRING, ("DS105",), _ids([3, 16, 28]), "eagle3"),
    StaticFault("ids_other", WIRING, (), _ids([4, 10, 20]), "eagle3.1"),
    StaticFault("fc_permuted", WIRING, (), _permuted, "eagle3"),
    StaticFault("d2t_zeroed", WIRING, ("DS302",), _zeroed_map, "eagle3.1"),
    StaticFault("d2t_absolute", WIRING, ("DS303", "DS304", "DS306"), _absolute_map, "eagle3"),
    StaticFault("d2t_missing", WIRING, ("DS301",), _missing_map, "eagle3"),
    StaticFault("norm_output_lost", FEEDBACK, ("DS204",), _flag("norm_output", False), "eagle3.1"),
    StaticFault("norm_output_added", FEEDBACK, ("DS204",), _flag("norm_output", True), "eagle3"),
    StaticFault("norm_before_residual_added", FEEDBACK, ("DS209",), _flag("norm_before_residual", True), "eagle3"),
    StaticFault("fc_norm_flag_lost", WIRING, ("DS201",), _lost_fc_norm_flag, "eagle3.1"),
    StaticFault("fc_norm_lost", WIRING, ("DS204",), _lost_fc_norm, "eagle3.1"),
    StaticFault("embedding_random", WIRING, (), _random_embedding, "eagle3"),
    StaticFault("lm_head_missing", WIRING, ("DS504",), _missing_lm_head, "eagle3.1"),
    StaticFault("rope_theta_wrong", WIRING, ("DS401",), _rope(rope_theta=500.0), "eagle3.1"),
    StaticFault("max_positions_small", WIRING, ("DS409",), _few_positions, "eagle3"),
    StaticFault("input_swapped", WIRING, (), _swapped_input, "eagle3.1"),
    StaticFault("tiny ids_shifted", WIRING, (), _ids([0, 1, 2]), "tiny"),
    StaticFault("tiny ids_nested", WIRING, ("DS101",), _nested_ids, "tiny"),
    StaticFault("tiny fc_permuted", WIRING, (), _permuted, "tiny"),
    StaticFault("tiny d2t_zeroed", WIRING, ("DS302",), _zeroed_map, "tiny"),
    StaticFault("tiny d2t_absolute", WIRING, ("DS303", "DS304", "DS306"), _absolute_map, "tiny"),
    StaticFault("tiny d2t_missing", WIRING, ("DS301",), _missing_map, "tiny"),
    StaticFault("tiny norm_output_lost", FEEDBACK, ("DS204",), _flag("norm_output", False), "tiny"),
    StaticFault("tiny norm_before_residual_added", FEEDBACK, ("DS209",), _flag("norm_before_residual", True), "tiny"),
    StaticFault("tiny fc_norm_lost", WIRING, ("DS204",), _lost_fc_norm, "tiny"),
    StaticFault("tiny embedding_random", WIRING, (), _random_embedding, "tiny"),
    StaticFault("tiny rope_theta_wrong", WIRING, ("DS401",), _rope(rope_theta=100.0), "tiny"),
    StaticFault("tiny rope_scaling_lost", WIRING, ("DS402",), _lost_scaling, "tiny"),
    StaticFault("tiny max_positions_small", WIRING, ("DS409",), _few_positions, "tiny"),
    StaticFault("tiny window_dropped", WIRING, ("DS411",), _dropped_window, "tiny"),
    StaticFault("tiny input_swapped", WIRING, (), _swapped_input, "tiny"),
)
CUT_VOCABULARY = StaticFault("vocabulary_cut", ("vocabulary_gap",), (), _cut_vocabulary, "eagle3")
"""Counted as dynamic: the checkpoint is sound, the text is not what its vocabulary was made for."""


def break_checkpoint(sound: Path, folder: Path, fault: StaticFault) -> Path:
    """A copy of the checkpoint `sound` with this one fault."""
    shutil.copytree(sound, folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    fault.change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@contextmanager
def zeroed_feedback() -> Iterator[None]:
    """Every drafter feeds back zeros while this lasts."""
    predict = Eagle3.predict

    def broken(self: Eagle3, stream: Tensor) -> tuple[Tensor, Tensor]:
        logits, feedback = predict(self, stream)
        return logits, torch.zeros_like(feedback)

    Eagle3.predict = broken  # type: ignore[method-assign]
    try:
        yield
    finally:
        Eagle3.predict = predict  # type: ignore[method-assign]


@contextmanager
def stale_keys() -> Iterator[None]:
    """The live loop leaves the chain's own keys and values in the slots of accepted drafts, true features or not.

    Its self-check finds that at once; an engine that is not ours has none, so it is off while this lasts.
    """
    draft, check = DraftLoop._draft, live._check_drafts

    def stale(self: DraftLoop, inputs: DraftInputs, num_slots: int) -> Drafts:
        # only the start is written; where all K drafts were accepted also the last one's slot, which the chain never was in
        num_written = torch.where(inputs.num_new > self.depth, 2, 1)
        skipped = inputs.num_new - num_written
        columns = skipped[:, None] + torch.arange(2, device=skipped.device)
        columns = columns.clamp_max(inputs.token_ids.shape[1] - 1)
        kept = DraftInputs(
            inputs.token_ids.gather(1, columns),
            inputs.features[self._rows, columns],
            inputs.first + skipped,
            num_written,
            inputs.noise,
        )
        return draft(self, kept, num_slots)

    DraftLoop._draft = stale  # type: ignore[method-assign]
    live._check_drafts = lambda least_gap, where: None
    try:
        yield
    finally:
        DraftLoop._draft = draft  # type: ignore[method-assign]
        live._check_drafts = check


def quantised_target(target: Path, folder: Path, *, group: int = 64) -> Path:
    """Every layer's matrices rounded to 4 bits, symmetric, one scale for each `group` inputs; stored dequantised."""
    shutil.copytree(target, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, weight in tensors.items():
        if ".layers." in name and weight.dim() == 2:
            parts = weight.float().unflatten(1, (-1, group))
            scale = parts.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 7
            tensors[name] = ((parts / scale).round().clamp(-8, 7) * scale).flatten(1).to(weight.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def noisy_target(target: Path, folder: Path, *, scale: float = 0.1, seed: int = 0) -> Path:
    """Gaussian noise of `scale` times each matrix's own standard deviation on every layer's weights."""
    shutil.copytree(target, folder)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name, weight in tensors.items():
        if ".layers." in name and weight.dim() == 2:
            noise = torch.randn(weight.shape, generator=generator) * scale * weight.float().std()
            tensors[name] = (weight.float() + noise).to(weight.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def rotated_target(target: Path, folder: Path, *, seed: int = 0) -> Path:
    """The same function in another basis of the residual stream, as QuaRot does it: norm gains are folded into the
    matrices that read the stream, then every reader and writer is rotated. Stored in float32, lm_head untied."""
    shutil.copytree(target, folder)
    config = json.loads((folder / "config.json").read_text())
    tensors = {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}
    size = config["hidden_size"]
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0].float()
    embedding = tensors["model.embed_tokens.weight"]
    head = tensors.get("lm_head.weight", embedding)
    tensors["lm_head.weight"] = (head * tensors["model.norm.weight"]) @ rotation
    tensors["model.norm.weight"] = torch.ones(size)
    tensors["model.embed_tokens.weight"] = embedding @ rotation
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for norm, readers in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            gain = tensors[f"{at}{norm}.weight"]
            for reader in readers:
                tensors[f"{at}{reader}.weight"] = (tensors[f"{at}{reader}.weight"] * gain) @ rotation
            tensors[f"{at}{norm}.weight"] = torch.ones(size)
        for writer in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"{at}{writer}.weight"] = rotation.T @ tensors[f"{at}{writer}.weight"]
    config |= {"tie_word_embeddings": False, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
