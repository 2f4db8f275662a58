"""DS6xx: whether this is the drafter's target, and what about it changes acceptance."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from driftscope.check.check_report import Finding, Severity
from driftscope.check.definition import Check
from driftscope.check.pair import Pair, Target
from driftscope.check.vocab_map import generation_config
from probes.checkpoint.files import MAX_CONFIG_BYTES, read_json_object
from probes.checkpoint.producer import architectures
from probes.checkpoint.values import finite_number

ROTATIONS = ("quarot", "spinquant", "hadamard", "rotation", "transform_config")
"""Words in a quantisation config that mean a rotated residual stream."""

MISMATCH = Check(
    id="DS601",
    name="target_mismatch",
    title="The drafter is made for a target of another hidden size",
    severity=Severity.error,
    why="It cannot read this target's states.",
    evidence="hidden_size of the target, target_hidden_size of the drafter.",
    remedy="Give the target that the drafter was trained on",
    reader_codes=("target_mismatch",),
)
OTHER_VERIFIER = Check(
    id="DS602",
    name="other_verifier",
    title="The checkpoint names another target",
    severity=Severity.warning,
    why="A head trained on a sibling of the same size loads and runs, with less acceptance: a base model for an instruct "
    "model, another version, a fine-tune.",
    evidence="speculators_config.verifier against the target given.",
    remedy="Give the named target, or measure how far the two differ (--reference-target)",
)
QUANTISED = Check(
    id="DS603",
    name="target_quantised",
    title="The target is quantised",
    severity=Severity.info,
    why="Its states differ from those that training saw. Weight quantisation usually costs little; a rotation (QuaRot, "
    "SpinQuant) puts them in another basis, and the head must be rotated with it: acceptance is near zero otherwise.",
    evidence="quantization_config of the target's config.json.",
    remedy="Measure the aux states' cosine against the unquantised target (--reference-target)",
    sources=(
        "https://github.com/vllm-project/vllm-ascend/issues/5974",
        "https://github.com/vllm-project/vllm-ascend/pull/6914",
    ),
)
TEMPLATE = Check(
    id="DS604",
    name="chat_template_differs",
    title="The drafter's folder holds another chat template than the target's",
    severity=Severity.warning,
    why="The drafter was probably trained on text rendered by its own copy. Serving renders by the target's; heads without "
    "norms on their states lose up to half of their acceptance under a changed template.",
    evidence="chat_template of both folders (chat_template.jinja or tokenizer_config.json).",
    remedy="Measure both templates (--template)",
    sources=("https://arxiv.org/abs/2605.09992",),
)
SAMPLES = Check(
    id="DS605",
    name="server_samples",
    title="The target's generation_config.json makes servers sample",
    severity=Severity.info,
    why="vLLM takes its default temperature from there. With greedy drafts, its default, a draft is accepted with the "
    "probability that the target gives it: acceptance is lower than at temperature 0, by design, and published numbers "
    "are often at 0.",
    evidence="do_sample, temperature, top_p and top_k of generation_config.json.",
    remedy="State the temperature with every number; compare draft_sample_method greedy and probabilistic",
)
NOT_CHECKED = Check(
    id="DS606",
    name="target_not_read",
    title="The target's weights could not be read",
    severity=Severity.info,
    why="The drafter's embedding and lm_head were not compared with the target's.",
    evidence="The reader's message.",
    remedy="Give a folder or Hub id with safetensors weights",
)


def find(pair: Pair) -> Iterator[Finding]:
    target = pair.target
    where = str(target.folder / "config.json")
    if target.tensors is None:
        yield NOT_CHECKED.finding(target.problem, where=str(target.folder))
    yield from _verifier(pair)
    name = quantization(target)
    if name is not None:
        text = json.dumps(target.config.get("quantization_config"), default=str).lower()
        words = [word for word in ROTATIONS if word in text]
        yield QUANTISED.finding(
            f"quantization_config: {name}" + (f"; it speaks of {', '.join(words)}" if words else ""),
            where=where,
            severity=Severity.warning if words else Severity.info,
        )
    mine = _template(pair)
    theirs = _template(target) if mine is not None else None
    if mine is not None and theirs is not None and mine.strip() != theirs.strip():
        yield TEMPLATE.finding(f"{len(mine):,} characters against {len(theirs):,}", where=str(pair.files.folder))
    generation = generation_config(target)
    temperature = finite_number(generation.get("temperature"))
    if generation.get("do_sample") is True and temperature != 0:
        said = [f"{key} {generation[key]}" for key in ("temperature", "top_p", "top_k") if key in generation]
        yield SAMPLES.finding(", ".join(["do_sample true", *said]), where=str(target.folder / "generation_config.json"))


def quantization(target: Target) -> str | None:
    """The method's name in the target's config.json; None when it is not quantised."""
    value = target.config.get("quantization_config", target.settings.get("quantization_config"))
    if not isinstance(value, Mapping):
        return None
    return str(value.get("quant_method") or value.get("quant_algo") or "unnamed method")


def _verifier(pair: Pair) -> Iterator[Finding]:
    """Names differ between a Hub id and a folder of the same model, so only the last part of the name is compared."""
    speculators = pair.config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    if not isinstance(verifier, Mapping):
        return
    named = verifier.get("name_or_path")
    claimed, mine = verifier.get("architectures"), architectures(pair.target.config)
    is_other_class = (
        isinstance(claimed, list) and bool(claimed) and bool(mine) and not set(mine) & set(map(str, claimed))
    )
    is_other_name = isinstance(named, str) and _last(named) not in (
        _last(pair.target.name),
        _last(_own_name(pair.target)),
    )
    if is_other_class or (is_other_name and named):
        yield OTHER_VERIFIER.finding(
            f"made for {named or claimed}, checked against {pair.target.name}"
            + (f" ({', '.join(mine)}, not {', '.join(map(str, claimed))})" if is_other_class and claimed else ""),
            where=f"{pair.where}: speculators_config.verifier",
            severity=Severity.warning if is_other_class else Severity.info,
        )


def _own_name(target: Target) -> str:
    name = target.config.get("_name_or_path")
    return name if isinstance(name, str) else ""


def _last(name: str) -> str:
    return name.split("@")[0].rstrip("/").split("/")[-1].lower()


def _template(holder: Target | Pair) -> str | None:
    jinja = holder.file("chat_template.jinja")
    if jinja is not None:
        return jinja.read_text(encoding="utf-8", errors="replace")
    path = holder.file("tokenizer_config.json")
    if path is None:
        return None
    template = read_json_object(path, MAX_CONFIG_BYTES).get("chat_template")
    return template if isinstance(template, str) else None
