"""What the drafter reads of the target: fc, the norms before it, the state's own norm, and which layers are captured.

Knows the tensors' shapes and the settings, not the rest of the layer.
"""

from __future__ import annotations

from probes.checkpoint.aux_ids import resolve_aux_ids
from probes.checkpoint.collector import Collector
from probes.checkpoint.producer import Config, Producer
from probes.checkpoint.spec import FINAL_NORMED
from probes.checkpoint.values import Settings

HIDDEN_NORM = "layers.0.hidden_norm.weight"


def read_inputs(
    found: Collector, *, config: Config, producer: Producer, target: Settings, override: object, folder: str
) -> None:
    """Puts `target_hidden_size`, `has_fc` ... `aux_layer_ids` into `found`, which has the layer's sizes already.

    `override`: boundary ids in place of the files'. Raises CheckpointError when files and target cannot go together.
    """
    stated, given = found.settings.integer("target_hidden_size"), target.integer("hidden_size")
    if stated is not None and given is not None and stated.value != given.value:
        raise found.error(
            "target_mismatch",
            f"the drafter is made for a target of hidden size {stated.value}, this one has {given.value}",
            "Give the target that the drafter was trained on",
        )
    hidden = found.values["hidden_size"]
    found.put_or_default("target_hidden_size", stated or given, hidden, "= hidden_size when the key is absent (vLLM)")
    has_fc = "fc.weight" in found.tensors
    found.from_tensor("has_fc", has_fc, "fc.weight")
    found.from_tensor("has_fc_bias", has_fc and "fc.bias" in found.tensors, "fc.bias")
    _use_aux(found, has_fc, folder)
    # Every fused drafter has one: where it is missing, the check of tensors says so.
    found.from_tensor("has_hidden_norm", has_fc or HIDDEN_NORM in found.tensors, HIDDEN_NORM)
    found.tensor_flag("norm_before_fc", "norm_before_fc", "input_norm.weight")
    found.tensor_flag("has_fc_norm", "fc_norm", "fc_norm.0.weight")
    if found.values["norm_before_fc"] and found.values["has_fc_norm"]:
        found.report(
            "two_fusion_norms",
            "warning",
            "both input_norm and fc_norm are there; applied one after the other, as in vLLM (speculators refuses this, "
            "TRT-LLM lets fc_norm win)",
        )
    if has_fc:
        _aux_ids(found, config, producer, target, override)
    else:
        _last_state(found, folder)


def _use_aux(found: Collector, has_fc: bool, folder: str) -> None:
    stated = found.settings.flag("use_aux_hidden_state")
    if not has_fc and HIDDEN_NORM in found.tensors and (stated is None or stated.value):
        raise found.error(
            "tensor_missing",
            "missing: `fc.weight`",
            "Save the drafter again with all its weights; a drafter on the target's last state alone must say "
            "use_aux_hidden_state: false",
            where=folder,
        )
    if stated is not None and stated.value != has_fc:
        found.report(
            "flag_disagrees",
            "error",
            f"`{stated.origin.detail}` is {str(stated.value).lower()}, but fc.weight is "
            f"{'there' if has_fc else 'not'}; the tensors count",
            "Correct the flag: engines go by it",
        )
    found.from_tensor("use_aux_hidden_state", has_fc, "fc.weight")


def _aux_ids(found: Collector, config: Config, producer: Producer, target: Settings, override: object) -> None:
    fc = found.tensors["fc.weight"]
    width, target_hidden = found.size("fc.weight", 1), found.values["target_hidden_size"]
    if width % target_hidden:
        raise found.error(
            "fc_width",
            f"`{fc.name}` reads {width} features, which is no multiple of the target's hidden size {target_hidden}",
            "Give the target that the drafter was trained on, or correct target_hidden_size",
            where=str(fc.path),
        )
    num_target_layers = target.integer("num_hidden_layers")
    ids, findings = resolve_aux_ids(
        config,
        producer,
        num_target_layers=None if num_target_layers is None else num_target_layers.value,
        override=override,
        where=found.where,
    )
    num_aux = width // target_hidden
    if len(ids.value) != num_aux:
        raise found.error(
            "fc_width",
            f"`{fc.name}` fuses {num_aux} states of {target_hidden} features, but the layer ids "
            f"{list(ids.value)} ({ids.origin.detail}) are {len(ids.value)}",
            "Correct the layer ids in config.json, or give the override `aux_layer_ids`",
        )
    found.findings += findings
    found.put("aux_layer_ids", ids)


def _last_state(found: Collector, folder: str) -> None:
    """Without fc the target's state after its final norm is the input."""
    found.from_tensor("aux_layer_ids", (FINAL_NORMED,), "fc.weight")
    if found.values["norm_before_fc"] or found.values["has_fc_norm"]:
        raise found.error(
            "unsupported_variant",
            "input_norm or fc_norm without fc.weight: such a drafter is not supported",
            "Save fc.weight too, or remove the norm",
            where=folder,
        )
    if found.values["target_hidden_size"] != found.values["hidden_size"]:
        raise found.error(
            "target_mismatch",
            f"without fc the target's state is the drafter's input, but the target is "
            f"{found.values['target_hidden_size']} wide and the drafter {found.values['hidden_size']}",
            "Give the target that the drafter was trained on",
        )
    if not found.values["has_hidden_norm"]:
        found.report(
            "hidden_norm_absent",
            "info",
            "there is no hidden_norm, so the target's state is read as it is; vLLM builds the norm all the same, with "
            "gain 1",
            "If depth-1 acceptance in vLLM is below a replay's, this is one reason",
        )
