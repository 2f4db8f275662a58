"""DS2xx: norms before fc, the residual branch, and what is fed back from one depth to the next."""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.check.check_report import Finding, Severity
from driftscope.check.definition import Check
from driftscope.check.engines.vllm import load as load_as_vllm
from driftscope.check.pair import Pair
from probes.checkpoint.spec import Source
from probes.checkpoint.values import finite_number

FLAG_DISAGREES = Check(
    id="DS201",
    name="flag_disagrees",
    title="A flag in config.json contradicts the tensors",
    severity=Severity.warning,
    why="Engines build the drafter by config.json. A norm or bias whose flag is off is skipped in silence (SGLang, "
    "SafeAILab, input_norm in vLLM) or stops the load; a flag without weights leaves a norm with gain 1. A lost fc_norm "
    "flag turns an EAGLE-3.1 head into a bad EAGLE-3 head.",
    evidence="The flags, and which tensors are there.",
    remedy="Make the flag say what the tensors show",
    reader_codes=("flag_disagrees",),
    sources=("https://github.com/vllm-project/vllm/pull/43482",),
)
ENGINE_FC_NORM = Check(
    id="DS202",
    name="engine_without_fc_norm",
    title="An engine leaves out the norm of each captured state (fc_norm)",
    severity=Severity.warning,
    why="Without it the deepest state, which is by far the largest, drowns the others in fc: depth 1 suffers.",
    evidence="fc_norm as each engine reads it.",
    remedy="Set fc_norm: true at the top level of config.json and use an engine version that knows it",
    sources=(
        "https://github.com/vllm-project/vllm/pull/42764",
        "https://github.com/sgl-project/sglang/pull/24663",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/14988",
    ),
)
TWO_NORMS = Check(
    id="DS203",
    name="two_fusion_norms",
    title="There are two norms before fc",
    severity=Severity.warning,
    why="One norm over the whole concatenation (input_norm) and one for each state (fc_norm): vLLM applies both, "
    "TensorRT-LLM lets fc_norm win, speculators refuses the combination.",
    evidence="input_norm.weight and fc_norm.{i}.weight are both there.",
    remedy="Find out which of the two training applied and drop the other",
    reader_codes=("two_fusion_norms",),
    sources=("https://github.com/vllm-project/speculators/pull/670",),
)
HALF_31 = Check(
    id="DS204",
    name="half_of_eagle31",
    title="Only one half of EAGLE-3.1 is switched on",
    severity=Severity.warning,
    why="EAGLE-3.1 norms the captured states and feeds back the state after the final norm. norm_output leaves no trace in "
    "the tensors, so a lost or invented flag goes unnoticed: depth 1 is right, from depth 2 on acceptance collapses.",
    evidence="norm_output against the fusion norms among the tensors.",
    remedy="Set norm_output as training had it; if in doubt measure both (the intervention norm_output)",
    sources=(
        "https://github.com/vllm-project/vllm/pull/46488",
        "https://github.com/vllm-project/speculators/pull/610",
    ),
)
ENGINE_FEEDBACK = Check(
    id="DS205",
    name="engine_other_feedback",
    title="An engine feeds back another state than the checkpoint asks for (norm_output)",
    severity=Severity.warning,
    why="Before or after the final norm: depth 1 is unaffected, every deeper draft starts from a state that training never "
    "showed.",
    evidence="norm_output as each engine reads it; vLLM and SGLang look at the top level only.",
    remedy="Set norm_output at the top level of config.json and use an engine version that knows it",
    sources=(
        "https://github.com/vllm-project/vllm/pull/46488",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/14988",
    ),
)
SPECFORGE_NORM_OUTPUT = Check(
    id="DS206",
    name="norm_output_changed_meaning",
    title="norm_output meant something else in SpecForge before its PR 879",
    severity=Severity.info,
    why="Until 2026-09-15 SpecForge fed back the state before the norm in training whatever the flag said: with true, "
    "engines feed back another state than training did (depth 2 on); with false, training put lm_head on the state "
    "without the norm, which no engine does (depth 1).",
    evidence="norm_output is stated in a SpecForge checkpoint; the files do not carry SpecForge's version.",
    remedy="If the head was trained with SpecForge before PR 879, train it again",
    sources=("https://github.com/sgl-project/SpecForge/pull/879",),
)
ENGINE_RESIDUAL = Check(
    id="DS207",
    name="engine_other_residual",
    title="An engine builds the residual branch otherwise (norm_before_residual)",
    severity=Severity.warning,
    why="Whether the residual branch carries the state before or after hidden_norm leaves no trace in the tensors. Its "
    "absence means true to vLLM for speculators checkpoints and false everywhere else; SGLang, TensorRT-LLM and "
    "SafeAILab have no such switch.",
    evidence="norm_before_residual as each engine reads it.",
    remedy="State norm_before_residual in config.json; a head trained with true needs an engine that has the switch",
)
RESIDUAL_UNPROVEN = Check(
    id="DS208",
    name="norm_before_residual_unproven",
    title="norm_before_residual is not stated, and vLLM takes the class's opposite",
    severity=Severity.warning,
    why="For a speculators checkpoint without the key, vLLM's loader takes true, the speculators class itself false. One "
    "of the two is not what training did.",
    evidence="speculators_config without norm_before_residual.",
    remedy="Write norm_before_residual to config.json as training had it; if in doubt measure both",
)
MODELOPT_CONVERTED = Check(
    id="DS209",
    name="norm_before_residual_unlikely",
    title="norm_before_residual is true for a producer that trains without it",
    severity=Severity.warning,
    why="SafeAILab, SpecForge, TorchSpec, NeMo, ModelOpt and AngelSlim have no such switch: the residual is the raw state. "
    "ModelOpt's conversion script for vLLM writes true all the same.",
    evidence="norm_before_residual in config.json, and the producer by its layout (a speculators layout without an "
    "embedding and without t2d is a converted ModelOpt head).",
    remedy="Measure both (the intervention norm_before_residual); set it to false if that accepts more",
)
MODELOPT_DOUBLE_NORM = Check(
    id="DS210",
    name="modelopt_double_norm",
    title="ModelOpt may have normed the state twice in training",
    severity=Severity.info,
    why="ModelOpt trains with transformers' own decoder layer, whose input_layernorm may run on the state before "
    "hidden_norm does. Engines apply hidden_norm alone. Read in its source, not confirmed by a run.",
    evidence="A ModelOpt checkpoint.",
    remedy="If depth-1 acceptance is below what training reported, ask the producer",
)
NO_HIDDEN_NORM = Check(
    id="DS211",
    name="hidden_norm_absent",
    title="The state has no norm of its own",
    severity=Severity.info,
    why="Heads without captured states may read the target's final state as it is; vLLM builds the norm all the same, with "
    "gain 1.",
    evidence="No hidden_norm.weight.",
    remedy="Compare depth-1 acceptance in the engine with a replay's",
    reader_codes=("hidden_norm_absent",),
)
EPS = Check(
    id="DS212",
    name="rms_norm_eps_unlike_target",
    title="The drafter's rms_norm_eps is not the target's",
    severity=Severity.info,
    why="It is usually copied from the target. A missing key means 1e-6 to transformers and engines.",
    evidence="rms_norm_eps of both configs.",
    remedy="Write rms_norm_eps to config.json as training had it",
)
ENGINE_INPUT_NORM = Check(
    id="DS213",
    name="engine_without_input_norm",
    title="An engine leaves out the norm over the concatenated states (norm_before_fc)",
    severity=Severity.warning,
    why="fc then reads states many times larger than in training. vLLM drops input_norm.weight silently when the "
    "flag is off; SGLang before its PR 32334 and SafeAILab do not know it; TensorRT-LLM reads it from eagle_config alone.",
    evidence="norm_before_fc as each engine reads it.",
    remedy="Set norm_before_fc: true at the top level and in eagle_config",
    sources=("https://github.com/sgl-project/sglang/pull/32334",),
)

WITHOUT_SWITCH = frozenset({"safeailab", "specforge", "torchspec", "nemo", "modelopt", "angelslim", "sglang"})
"""Producers that have no norm_before_residual."""


def find(pair: Pair) -> Iterator[Finding]:
    if pair.algorithm == "eagle3":
        yield from _feedback(pair)
        yield from _residual(pair)
    yield from _eps(pair)


def _feedback(pair: Pair) -> Iterator[Finding]:
    spec = pair.spec
    if spec is None:
        return
    said = spec.origins["norm_output"]
    stated = f"norm_output is {str(spec.norm_output).lower()} ({said.detail})"
    if spec.has_fc_norm and not spec.norm_output:
        yield HALF_31.finding(f"the states are normed one by one (fc_norm), but {stated}", where=pair.where)
    elif spec.norm_output and not spec.has_fc_norm and not spec.norm_before_fc:
        yield HALF_31.finding(f"{stated}, but no captured state is normed before fc", where=pair.where)
    elif spec.norm_before_fc and not spec.norm_output:
        yield HALF_31.finding(
            f"one norm over all states (norm_before_fc) and {stated}. NVIDIA's gpt-oss v3 head is so on purpose",
            where=pair.where,
            severity=Severity.info,
        )
    if spec.producer == "specforge" and said.source is Source.file_key:
        yield SPECFORGE_NORM_OUTPUT.finding(stated, where=f"{pair.where}: {said.detail}")


def _residual(pair: Pair) -> Iterator[Finding]:
    spec = pair.spec
    if spec is None:
        return
    loaded, said = load_as_vllm(pair.config), spec.origins["norm_before_residual"]
    if loaded.is_speculators and "norm_before_residual" in loaded.defaulted:
        yield RESIDUAL_UNPROVEN.finding(
            f"taken as {str(spec.norm_before_residual).lower()}: {said.detail}", where=pair.where
        )
    is_converted = spec.producer == "speculators" and not spec.has_own_embedding and "t2d" not in pair.tensors
    if (
        spec.norm_before_residual
        and said.source is Source.file_key
        and (spec.producer in WITHOUT_SWITCH or is_converted)
    ):
        kind = (
            "a speculators layout as ModelOpt's conversion writes it" if is_converted else f"producer {spec.producer}"
        )
        yield MODELOPT_CONVERTED.finding(f"{said.detail} is true; {kind}", where=f"{pair.where}: {said.detail}")
    if spec.producer == "modelopt":
        yield MODELOPT_DOUBLE_NORM.finding("producer modelopt", where=pair.where)


def _eps(pair: Pair) -> Iterator[Finding]:
    target = finite_number(pair.target.settings.get("rms_norm_eps"))
    if pair.spec is not None and target is not None and pair.spec.rms_norm_eps != target:
        detail = pair.spec.origins["rms_norm_eps"].detail
        yield EPS.finding(f"drafter {pair.spec.rms_norm_eps:g} ({detail}), target {target:g}", where=pair.where)
