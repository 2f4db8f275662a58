"""DS5xx: the files themselves, and which of their tensors an engine takes."""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.check.check_report import Finding, Severity
from driftscope.check.definition import Check
from driftscope.check.pair import Pair
from driftscope.check.weights import dead, is_float, sample

UNUSED = Check(
    id="DS501",
    name="unused_tensors",
    title="The checkpoint holds tensors that nothing uses",
    severity=Severity.warning,
    why="A part of the drafter that this program and the engines do not know: it may be needed.",
    evidence="Names that belong to no part of the drafter.",
    remedy="Find out what they are for",
    reader_codes=("unused_tensors",),
)
HARMLESS = Check(
    id="DS502",
    name="harmless_tensors",
    title="The checkpoint holds tensors that are not needed",
    severity=Severity.info,
    why="Rope tables and copies of the target's parts that some trainers save; they follow from the rest.",
    evidence="Names known to be harmless.",
    remedy="Nothing to do",
    reader_codes=("harmless_tensors",),
)
OTHER_FILES = Check(
    id="DS503",
    name="unused_weight_file",
    title="Other weight files lie beside the checkpoint",
    severity=Severity.warning,
    why="SafeAILab's loader tries pytorch_model.bin first, vLLM loads safetensors: two engines may run two drafters.",
    evidence="Weight files that the index or the usual name does not cover.",
    remedy="Remove the files that do not belong to the checkpoint",
    reader_codes=("unused_weight_file",),
)
MISSING = Check(
    id="DS504",
    name="tensor_missing",
    title="A tensor is missing",
    severity=Severity.error,
    why="Some engines leave the part as it was initialised (vLLM, SafeAILab with strict=False) and say nothing.",
    evidence="The tensors that config.json and the other tensors ask for.",
    remedy="Save the drafter again with all its weights",
    reader_codes=("tensor_missing",),
)
SHAPE = Check(
    id="DS505",
    name="tensor_shape",
    title="A tensor has the wrong shape",
    severity=Severity.error,
    why="config.json and the weights do not belong together.",
    evidence="The shapes in the weights' header.",
    remedy="Find the config.json of these weights",
    reader_codes=("tensor_shape",),
)
DUPLICATE = Check(
    id="DS506",
    name="duplicate_tensor",
    title="A part of the drafter is there twice",
    severity=Severity.error,
    why="Which of the two an engine keeps depends on the order of the files.",
    evidence="Two tensors that are the same part under different names.",
    remedy="Keep one of them",
    reader_codes=("duplicate_tensor",),
)
INCONSISTENT = Check(
    id="DS507",
    name="config_inconsistent",
    title="config.json contradicts itself or lacks a key",
    severity=Severity.error,
    why="No engine can run the drafter as described: for instance a pruned vocabulary without an lm_head of its own.",
    evidence="The keys named.",
    remedy="Correct config.json, or save the missing part",
    reader_codes=("config_inconsistent", "config_key_missing"),
)
FAMILY = Check(
    id="DS508",
    name="family_disagrees",
    title="config.json names another layer than the tensors show",
    severity=Severity.warning,
    why="Engines choose the layer by config.json: a Qwen3 layer's q and k norms are then left out or stop the load.",
    evidence="architectures, model_type and the tensors' names.",
    remedy="Set architectures (speculators: transformer_layer_config.model_type) to the layer that was trained",
    reader_codes=("family_disagrees",),
)
NUM_LAYERS = Check(
    id="DS509",
    name="num_layers_disagrees",
    title="num_hidden_layers is not the number of layers in the weights",
    severity=Severity.warning,
    why="vLLM builds as many layers as config.json says; those without weights stay uninitialised, silently.",
    evidence="num_hidden_layers and the tensors' names.",
    remedy="Correct num_hidden_layers",
    reader_codes=("num_layers_disagrees",),
)
DEAD = Check(
    id="DS510",
    name="dead_tensor",
    title="A tensor is empty or not finite",
    severity=Severity.error,
    why="Weights that were never filled, or a training run that diverged.",
    evidence="All values of small tensors, sampled rows of large ones.",
    remedy="Save the drafter again from an earlier training checkpoint",
)
ENGINE_WEIGHTS = Check(
    id="DS511",
    name="engine_skips_tensors",
    title="An engine leaves tensors of the drafter out",
    severity=Severity.warning,
    why="SGLang and SafeAILab skip unknown names silently, and run with what is left at its initial "
    "values; vLLM drops input_norm and fc by flag.",
    evidence="The tensors' names against each engine's parameters.",
    remedy="Rename the tensors to the engine's names, or set the flag that switches the part on",
)
ENGINE_REFUSES = Check(
    id="DS512",
    name="engine_refuses",
    title="An engine will not load this checkpoint",
    severity=Severity.warning,
    why="Not a silent failure: the server stops at start. Listed so that it is known before.",
    evidence="architectures, tensor names and flags against each engine's loader.",
    remedy="Convert the checkpoint to the engine's layout",
)
ENGINE_BIAS = Check(
    id="DS513",
    name="engine_other_bias",
    title="An engine leaves out the biases of q, k and v",
    severity=Severity.warning,
    why="SGLang and SafeAILab build the projections without a bias; the tensors are skipped.",
    evidence="attention_bias as each engine reads it.",
    remedy="Use an engine that honours attention_bias (vLLM, TensorRT-LLM)",
)
METHOD = Check(
    id="DS514",
    name="method_not_detected",
    title="vLLM cannot tell from the name that this is EAGLE-3",
    severity=Severity.info,
    why='Without "method" in the speculative config, vLLM looks for "eagle3" in the model\'s name or path; without it the '
    "checkpoint is taken for another kind of drafter.",
    evidence="The drafter's path or Hub id.",
    remedy='Give "method": "eagle3" in --speculative-config',
)
OTHER = Check(
    id="DS599",
    name="reader_finding",
    title="The checkpoint reader reports something that has no check of its own",
    severity=Severity.warning,
    why="A safety net: nothing that the reader finds is lost.",
    evidence="The reader's own words.",
    remedy="See the evidence",
)


def find(pair: Pair) -> Iterator[Finding]:
    yield from _dead(pair)
    name = pair.drafter_name.lower()
    if pair.algorithm == "eagle3" and "eagle3" not in name and pair.config.get("speculators_config") is None:
        yield METHOD.finding(f"no eagle3 in {pair.drafter_name!r}", where=pair.drafter_name)


def _dead(pair: Pair) -> Iterator[Finding]:
    for name, entry in sorted(pair.tensors.items()):
        if not is_float(entry) or 0 in entry.shape or "rotary_emb." in name:
            continue
        what = dead(sample(entry, pair.num_places))
        if what:
            yield DEAD.finding(f"`{entry.name}` {list(entry.shape)} {what}", where=str(entry.path))
