"""DS1xx: which target layers are fused, and the projection that fuses them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driftscope.check.check_report import Finding, Severity
from driftscope.check.definition import Check
from driftscope.check.engines.engine import default_ids
from driftscope.check.pair import Pair
from driftscope.check.weights import is_float, sample
from probes.checkpoint.spec import FINAL_NORMED, Source

DEAD_SLICE_SHARE = 1e-3  # of the strongest slice of fc: below it a state does not reach the drafter

ENGINE_LAYERS = Check(
    id="DS101",
    name="engine_other_layers",
    title="An engine captures other target layers than the checkpoint names",
    severity=Severity.warning,
    why="Engines look for the layer ids in different places and read them in different conventions (the stream entering "
    "layer i, or layer i's output). What they do not find they replace by (2, n//2, n-3) and log at INFO level at most. "
    "Acceptance at depth 1 is then low: NVIDIA's Llama-3.3-70B head fell from 58.9 % to 1.2 % of drafts accepted; one "
    "layer off costs about 0.1 tokens per round.",
    evidence="The ids that each engine's loader would take from config.json, as boundary ids.",
    remedy="Write the boundary ids to the top-level key eagle_aux_hidden_state_layer_ids for vLLM, and the layer outputs "
    "(boundary - 1) to eagle_config for SGLang; set eagle3_layers_to_capture for TensorRT-LLM",
    sources=(
        "https://github.com/vllm-project/vllm/pull/50170",
        "https://github.com/sgl-project/sglang/pull/25454",
        "https://github.com/sgl-project/sglang/pull/32334",
    ),
)
AMBIGUOUS = Check(
    id="DS102",
    name="aux_ids_ambiguous",
    title="The layer ids can be read in two conventions",
    severity=Severity.warning,
    why="A list like [1, 15, 28] may hold layer outputs or boundary ids; the two are one layer apart, and no tensor tells. "
    "A wrong reading costs little enough to go unnoticed.",
    evidence="The ids, the key they stand under, who usually writes that key, and the first id (1 is the mark of outputs, "
    "2 of boundaries).",
    remedy="Measure both readings: the interventions on aux ids, or the override aux_layer_ids",
    reader_codes=("aux_ids_ambiguous",),
    sources=("https://github.com/sgl-project/sglang/pull/25454",),
)
CONFLICT = Check(
    id="DS103",
    name="aux_ids_conflict",
    title="Two keys name different layers",
    severity=Severity.warning,
    why="vLLM's V1 runner reads one key, its V2 runner and SGLang another: each engine captures other layers.",
    evidence="Both lists, converted to boundary ids.",
    remedy="Remove the wrong list",
    reader_codes=("aux_ids_conflict",),
)
NOT_ASCENDING = Check(
    id="DS104",
    name="aux_ids_not_ascending",
    title="The layer ids are not in ascending order",
    severity=Severity.warning,
    why="Engines capture states as the target computes them, so they are concatenated in ascending order whatever the list "
    "says. A drafter trained in the list's order gets its slices of fc swapped.",
    evidence="The list in config.json.",
    remedy="Sort the list, and reorder the columns of fc if training concatenated in the list's order",
    reader_codes=("aux_ids_not_ascending",),
)
BESIDE_DEFAULT = Check(
    id="DS105",
    name="aux_ids_beside_default",
    title="The layer ids are the default's, all shifted by one",
    severity=Severity.warning,
    why="Nobody chooses (3, n//2+1, n-2) or (1, n//2-1, n-4): such boundary ids come from a conversion between the two "
    "conventions that was done once too often or not at all.",
    evidence="The boundary ids against (2, n//2, n-3) of this target.",
    remedy="If training used the default layers, write (2, n//2, n-3) as boundary ids",
)
NOT_STATED = Check(
    id="DS106",
    name="aux_ids_not_stated",
    title="The checkpoint does not say which layers it reads",
    severity=Severity.info,
    why="Every engine then takes (2, n//2, n-3). That is right for most heads, and unnoticed where it is not.",
    evidence="No list of layer ids in config.json.",
    remedy="Write the boundary ids that training used to eagle_aux_hidden_state_layer_ids",
    reader_codes=("aux_ids_not_recorded",),
)
INVALID = Check(
    id="DS107",
    name="aux_ids_invalid",
    title="The layer ids do not fit the target",
    severity=Severity.error,
    why="An id beyond the target's layers, twice in the list, or none where there is no default: what is captured is not "
    "what training used, or nothing.",
    evidence="The list and the target's num_hidden_layers.",
    remedy="Correct the list, or give the target that the drafter was trained on",
    reader_codes=("aux_ids_invalid", "aux_ids_missing"),
)
FC_WIDTH = Check(
    id="DS108",
    name="fc_width",
    title="fc does not fit the target's hidden size and the number of layer ids",
    severity=Severity.error,
    why="fc reads the captured states side by side: its width is their number times the target's hidden size.",
    evidence="The shape of fc.weight, target_hidden_size, the layer ids.",
    remedy="Give the drafter's own target, or correct the layer ids",
    reader_codes=("fc_width",),
    sources=("https://github.com/vllm-project/vllm/pull/54598",),
)
ENGINE_NUM_AUX = Check(
    id="DS109",
    name="engine_other_num_aux",
    title="An engine expects another number of captured states",
    severity=Severity.warning,
    why="Some engines hard-code three states; vLLM's Llama class counts eagle_config's ids but not a top-level list. fc is "
    "then built with another width.",
    evidence="num_aux_hidden_states, the lists of ids, each engine's default, the width of fc.",
    remedy="Write num_aux_hidden_states to config.json",
    sources=("https://github.com/vllm-project/vllm/pull/54598",),
)
LAST_LAYER = Check(
    id="DS110",
    name="aux_id_last",
    title="One of the layer ids is the stream after the last layer",
    severity=Severity.info,
    why="Id n means the residual stream before the target's final norm. transformers' hidden_states[n] is after that norm: "
    "tools that take it from there feed the drafter something else.",
    evidence="The largest boundary id equals the target's num_hidden_layers.",
    remedy="Capture the state before the final norm",
)
EMBEDDING_LAYER = Check(
    id="DS111",
    name="aux_id_embedding",
    title="One of the layer ids is the embedding itself",
    severity=Severity.warning,
    why="Boundary id 0 is the stream entering the first layer, the token's embedding, which tells nothing of the context. "
    "It is usually an output id that was shifted down by mistake.",
    evidence="The smallest boundary id is 0.",
    remedy="Add 1 to the ids if they were meant as layer outputs",
)
DEAD_SLICE = Check(
    id="DS112",
    name="fc_slice_dead",
    title="fc ignores one of the captured states",
    severity=Severity.warning,
    why="A slice of fc without weights means that this layer's state never reaches the drafter: the layer was not captured "
    "in training, or the weights were saved in pieces.",
    evidence="The norm of each state's slice in sampled rows of fc.weight.",
    remedy="Compare with the training checkpoint",
)


def find(pair: Pair) -> Iterator[Finding]:
    if pair.algorithm == "eagle3":
        yield from _ids(pair)
        yield from _slices(pair)


def _ids(pair: Pair) -> Iterator[Finding]:
    if pair.spec is None or pair.spec.aux_layer_ids == (FINAL_NORMED,):
        return
    ids, origin = pair.spec.aux_layer_ids, pair.spec.origins["aux_layer_ids"]
    n, default = pair.target.num_layers, default_ids(pair)
    where = f"{pair.where}: {origin.detail}" if origin.source is Source.file_key else pair.where
    if origin.source is Source.engine_default:
        yield NOT_STATED.finding(f"taken as boundary {list(ids)}: {origin.detail}", where=where)
    if n is None or default is None:
        return
    for shift in (1, -1):
        if ids == tuple(i + shift for i in default):
            yield BESIDE_DEFAULT.finding(
                f"boundary {list(ids)}; the default for {n} layers is {list(default)}",
                where=where,
                remedy=f"If training used the default layers, write {list(default)} as boundary ids",
            )
    if max(ids) == n:
        yield LAST_LAYER.finding(f"boundary {list(ids)} of a target with {n} layers", where=where)
    if min(ids) == 0:
        yield EMBEDDING_LAYER.finding(f"boundary {list(ids)}", where=where)


def _slices(pair: Pair) -> Iterator[Finding]:
    fc = pair.tensors.get("fc.weight")
    if pair.spec is None or not pair.spec.has_fc or fc is None or not is_float(fc):
        return
    rows = sample(fc, pair.num_places)
    width = pair.spec.target_hidden_size
    norms = np.linalg.norm(rows.reshape(len(rows), pair.spec.num_aux, width), axis=(0, 2))
    for layer_id, norm in zip(pair.spec.aux_layer_ids, norms, strict=True):
        if norm < DEAD_SLICE_SHARE * norms.max():
            yield DEAD_SLICE.finding(
                f"slice of layer {layer_id}: norm {norm:.3g} in {len(rows)} rows, the strongest {norms.max():.3g}",
                where=f"{fc.path}: {fc.name}",
            )
