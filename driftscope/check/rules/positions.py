"""DS4xx: rope, the longest position, and the sliding window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from driftscope.check.check_report import Finding, Severity
from driftscope.check.definition import Check
from driftscope.check.pair import Pair
from probes.checkpoint.spec import Source

THETA = Check(
    id="DS401",
    name="rope_theta_unlike_target",
    title="The drafter's rope base is not the target's",
    severity=Severity.warning,
    why="Rope is the draft config's own, and a head may be trained with another base than its target; but the number is "
    "usually copied from the target, and a wrong one makes attention decay with distance. Where the key is absent every "
    "engine takes 10000; SafeAILab trains so on purpose.",
    evidence="rope_theta of both configs.",
    remedy="Write the base that training used; if in doubt measure the target's (the intervention rope)",
)
SCALING = Check(
    id="DS402",
    name="rope_scaling_unlike_target",
    title="The drafter's rope scaling is not the target's",
    severity=Severity.warning,
    why="A lost yarn or llama3 scaling goes unnoticed on short prompts and costs acceptance on long ones. A head trained "
    "without scaling on short texts is right without it.",
    evidence="rope_type and its numbers in both configs.",
    remedy="Write the scaling that training used; if in doubt measure the target's (the intervention rope)",
)
CONFLICT = Check(
    id="DS403",
    name="rope_conflict",
    title="config.json states rope twice, differently",
    severity=Severity.warning,
    why="transformers 5 and older engines read different keys (rope_parameters, rope_scaling, rope_theta), so each "
    "computes other angles.",
    evidence="The keys that disagree.",
    remedy="Keep the one that training used",
    reader_codes=("rope_conflict",),
)
ENGINE_ROPE = Check(
    id="DS404",
    name="engine_other_rope",
    title="An engine computes other rope angles than the checkpoint asks for",
    severity=Severity.warning,
    why="Engines that read rope_theta and rope_scaling only fall back to base 10000 where the base stands in "
    "rope_parameters alone, as transformers 5 writes it.",
    evidence="The rope that each engine would build.",
    remedy="Write rope_theta and rope_scaling beside rope_parameters",
)
TRAINING_ROPE = Check(
    id="DS405",
    name="rope_theta_unused_in_training",
    title="The producer's training ignores rope_theta",
    severity=Severity.warning,
    why="AngelSlim's training class computes rope from the head size alone, with base 10000; engines use config.json's.",
    evidence="An AngelSlim checkpoint whose rope_theta is not 10000.",
    remedy="Compare acceptance with rope_theta 10000, and write that if it is higher",
    reader_codes=("rope_theta_unused_in_training",),
)
EXPORT_ROPE = Check(
    id="DS406",
    name="rope_set_at_export",
    title="The rope scaling may have been written at export, not used in training",
    severity=Severity.info,
    why="ModelOpt's export writes yarn with factor 32 by default, while training used plain rope.",
    evidence="A ModelOpt checkpoint with yarn and factor 32.",
    remedy="If acceptance is low, measure plain rope with the same base",
    reader_codes=("rope_set_at_export",),
)
INVALID = Check(
    id="DS407",
    name="rope_invalid",
    title="The rope settings are incomplete",
    severity=Severity.error,
    why="A scaling without its factor cannot be computed; engines differ in what they do then.",
    evidence="The rope keys of config.json.",
    remedy="Complete them as in training",
    reader_codes=("rope_invalid",),
)
BY_LENGTH = Check(
    id="DS408",
    name="rope_depends_on_length",
    title="The rope angles depend on the length of the text",
    severity=Severity.info,
    why="dynamic and longrope change all angles once a text grows past a length. Keys that an engine has stored keep the "
    "old ones, and training at a position offset of one is no longer the same.",
    evidence="rope_type of the draft config.",
    remedy="Compare acceptance on both sides of that length",
)
BELOW_TARGET = Check(
    id="DS409",
    name="positions_below_target",
    title="The drafter is made for shorter texts than the target",
    severity=Severity.warning,
    why="Beyond max_position_embeddings an engine reads past its rope table (vLLM before 0.32) or extends it to positions "
    "that training never saw: acceptance is fine on short prompts and falls towards nothing on long ones. Many heads say "
    "2048.",
    evidence="max_position_embeddings of both configs.",
    remedy="Switch speculation off beyond that length, or train on longer texts; measure with --context-tokens",
    sources=(
        "https://github.com/vllm-project/vllm/pull/48894",
        "https://github.com/sgl-project/sglang/issues/6783",
    ),
)
ENGINE_POSITIONS = Check(
    id="DS410",
    name="engine_position_limit",
    title="An engine's rope table ends before the target's longest text",
    severity=Severity.warning,
    why="Positions beyond the table are read from whatever lies behind it, or the server's longest text is cut to the "
    "drafter's.",
    evidence="The table that each engine would build, against the target's max_position_embeddings.",
    remedy="Use vLLM 0.32 or later, or serve with a max_model_len within the drafter's limit",
    sources=(
        "https://github.com/vllm-project/vllm/pull/48894",
        "https://github.com/vllm-project/vllm/pull/57941",
    ),
)
WINDOW_IGNORED = Check(
    id="DS411",
    name="sliding_window_ignored",
    title="A sliding window is stated but not switched on",
    severity=Severity.warning,
    why="vLLM's drafters use sliding_window only together with layer_types. A head trained with a window then attends to "
    "everything, which costs acceptance on long texts.",
    evidence="sliding_window, layer_types and use_sliding_window in config.json.",
    remedy="Add layer_types with sliding_attention if training used the window, else remove sliding_window",
    reader_codes=("sliding_window_ignored",),
    sources=("https://github.com/vllm-project/speculators/pull/684",),
)
ENGINE_WINDOW = Check(
    id="DS412",
    name="engine_other_window",
    title="An engine leaves out the drafter's sliding window",
    severity=Severity.warning,
    why="SGLang takes a window from its command line alone, vLLM's Qwen3 drafter only since 0.26, TensorRT-LLM and "
    "SafeAILab not at all. Long texts suffer.",
    evidence="The window of each layer as each engine builds it.",
    remedy="For SGLang give --speculative-draft-window-size; otherwise use an engine that honours it",
    sources=(
        "https://github.com/sgl-project/sglang/pull/24664",
        "https://github.com/vllm-project/speculators/pull/684",
    ),
)
LAYER_TYPES = Check(
    id="DS413",
    name="layer_types_too_long",
    title="layer_types has more entries than the drafter has layers",
    severity=Severity.warning,
    why="The list was probably copied from the target; its first entries count, which may not be what training used.",
    evidence="The length of layer_types and num_hidden_layers.",
    remedy="Cut the list to the drafter's layers",
    reader_codes=("layer_types_too_long",),
)


def find(pair: Pair) -> Iterator[Finding]:
    if pair.spec is None:
        return
    yield from _rope(pair, pair.spec.rope_parameters)
    limit, target = pair.spec.max_position_embeddings, pair.target.integer("max_position_embeddings")
    if target is not None and limit < target:
        origin = pair.spec.origins["max_position_embeddings"]
        yield BELOW_TARGET.finding(f"drafter {limit:,} ({origin.detail}), target {target:,}", where=pair.where)


def _rope(pair: Pair, rope: Mapping[str, object]) -> Iterator[Finding]:
    assert pair.spec is not None
    target, origin = pair.target.rope, pair.spec.origins["rope_parameters"]
    if rope["rope_type"] in ("dynamic", "longrope"):
        yield BY_LENGTH.finding(f"rope_type {rope['rope_type']}", where=f"{pair.where}: {origin.detail}")
    if target is None:
        return
    if rope["rope_theta"] != target["rope_theta"]:
        is_meant = origin.source is Source.engine_default and pair.spec.producer == "safeailab"
        yield THETA.finding(
            f"drafter {rope['rope_theta']:g} ({origin.detail}), target {target['rope_theta']:g}",
            where=pair.where,
            severity=Severity.info if is_meant else Severity.warning,
        )
    mine, theirs = ({k: v for k, v in r.items() if k != "rope_theta"} for r in (rope, target))
    if mine != theirs:
        is_meant = pair.spec.producer == "safeailab" or theirs == {"rope_type": "default"}
        yield SCALING.finding(
            f"drafter {_shown(mine)}, target {_shown(theirs)}",
            where=pair.where,
            severity=Severity.info if is_meant else Severity.warning,
        )


def _shown(rope: Mapping[str, object]) -> str:
    rest = [f"{key} {value}" for key, value in sorted(rope.items()) if key != "rope_type"]
    return ", ".join([str(rope["rope_type"]), *rest])
