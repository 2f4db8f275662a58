"""A checkpoint's files -> one `DrafterSpec`: every value with its origin, every doubt a finding.

Tensors beat config.json wherever they can show a value (n_aux, norms, biases, vocabulary sizes, the layer family);
`norm_output` and `norm_before_residual` leave no trace in tensors and come from config.json or a named engine's default.
Where the two contradict each other in a way that no engine could run, the checkpoint is refused.

No torch, unless the weights are a pytorch_model.bin: then it is imported for torch's restricted reader.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from probes.checkpoint.algorithms import LAYOUTS
from probes.checkpoint.collector import Collector
from probes.checkpoint.families import DEFAULT_FAMILY, FAMILIES, FAMILY_OF_CLASS
from probes.checkpoint.files import CheckpointFiles, open_checkpoint
from probes.checkpoint.layout import canonical_names, check_tensors, marked_family
from probes.checkpoint.producer import Producer, architectures
from probes.checkpoint.producers import choose_producer
from probes.checkpoint.rope import read_rope
from probes.checkpoint.safetensors_file import TensorEntry, read_array
from probes.checkpoint.spec import DrafterSpec, Finding, Origin, Source
from probes.checkpoint.values import Section, Settings, Value
from probes.checkpoint.vocab import check_lm_head_rows, check_vocab_map
from probes.checkpoint.window import read_sliding_window
from probes.errors import CheckpointError, InputError

OVERRIDABLE = frozenset(
    {
        *("aux_layer_ids", "norm_output", "norm_before_residual", "rope_parameters", "rms_norm_eps"),
        *("max_position_embeddings", "logit_scale"),
    }
)
"""Spec fields that the tensors do not settle, so that a user may replace them."""

FIXED_SETTINGS: dict[str, object] = {
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "is_causal": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
    "parallel_drafting": False,
    "eagle_aux_injection_mode": "fused_fc",  # forks of AngelSlim
}
"""Settings that would change the forward pass and have one supported value."""

ACTIVATIONS = frozenset({"silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2"})
LLAMA_DEFAULTS = "transformers LlamaConfig"


def read_spec(
    path_or_id: str,
    *,
    target_config: Mapping[str, object] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> DrafterSpec:
    """What the drafter in a local folder or Hub id (`owner/name[@revision]`) is.

    `target_config` is the target's config.json; it is needed when the drafter's config gives no layer ids, and checked
    against wherever given. `overrides` replaces spec fields of `OVERRIDABLE` (layer ids as boundary ids).

    Raises CheckpointError, naming file, place and remedy, for everything that cannot be read as a supported drafter, and
    InputError for an override that does not exist.
    """
    unknown = sorted(set(overrides or ()) - OVERRIDABLE)
    if unknown:
        raise InputError(
            f"{', '.join(unknown)} cannot be overridden",
            code="unknown_override",
            where="overrides",
            remedy=f"Possible: {', '.join(sorted(OVERRIDABLE))}",
        )
    files = open_checkpoint(path_or_id, headers_only=True)
    return _Reader(files, target_config, overrides or {}).spec()


class _Reader(Collector):
    """One checkpoint, group by group. Later groups use the values of earlier ones."""

    def __init__(
        self, files: CheckpointFiles, target_config: Mapping[str, object] | None, overrides: Mapping[str, object]
    ) -> None:
        where = str(files.config_path)
        self.files = files
        self.producer = choose_producer(files.config, frozenset(files.tensors), where=where)
        names = canonical_names(files.tensors, self.producer, where=str(files.folder))
        sections = [Section(values=overrides, source=Source.override)]
        sections += _sections(files.config, self.producer, where=where)
        super().__init__(
            Settings(where, sections, self.producer.aliases),
            {names[name]: entry for name, entry in files.tensors.items()},
            where=where,
        )
        self.findings += files.findings
        self.overrides = overrides
        self.target = _target_settings(target_config)

    def spec(self) -> DrafterSpec:
        named = Value(value=self.producer.name, origin=self.producer.origin(self.files.config))
        self.put("producer", named)
        self.put("algorithm", Value(value=self.producer.algorithm, origin=named.origin))
        self._family()
        self._refuse_variants()
        self._sizes()
        self._layers()
        LAYOUTS[self.producer.algorithm].read_inputs(
            self,
            config=self.files.config,
            producer=self.producer,
            target=self.target,
            override=self.overrides.get("aux_layer_ids"),
            folder=str(self.files.folder),
        )
        self._feedback()
        self._vocabulary()
        self._positions()
        spec = DrafterSpec(**self.values)
        self.findings += check_tensors(spec, self.tensors, self.producer, where=str(self.files.folder))
        self._vocab_map(spec)
        self._doubts(spec)
        return dataclasses.replace(spec, origins=self.origins, findings=tuple(self.findings))

    def _family(self) -> None:
        """The layer that the tensors show. One that config.json makes engines build must have its tensors."""
        layer = self.files.config.get("transformer_layer_config")
        kind = layer.get("model_type") if isinstance(layer, Mapping) else None
        claimed = architectures(self.files.config)
        built = (
            kind
            if isinstance(layer, Mapping)
            else next((FAMILY_OF_CLASS[a] for a in claimed if a in FAMILY_OF_CLASS), DEFAULT_FAMILY)
        )
        family, mark = marked_family(self.tensors)
        if mark is None and isinstance(built, str) and built in FAMILIES:
            family = built  # its tensors, if they are absent, will be reported as missing
        if mark is not None:
            self.from_tensor("family", family, mark)
            if built != family:
                self.report(
                    "family_disagrees",
                    "warning",
                    f"the tensor `{self.tensors[mark].name}` makes this a {family} layer, but engines build a "
                    f"{built or DEFAULT_FAMILY} layer by config.json, without it; the tensors count",
                    "Set architectures (speculators: transformer_layer_config.model_type) to the layer that was trained",
                )
            return
        origin = Origin(source=Source.file_key, detail="architectures, layer type and the tensors' names")
        self.put("family", Value(value=family, origin=origin))

    def _refuse_variants(self) -> None:
        for key, supported in FIXED_SETTINGS.items():
            found = self.settings.find(key)
            if found is not None and found.value != supported:
                raise self.error(
                    "unsupported_variant",
                    f"`{found.origin.detail}` is {reprlib.repr(found.value)}: such a drafter is not supported yet",
                    f"Supported: {str(supported).lower()}",
                )

    def _sizes(self) -> None:
        settings = self.settings
        for field, key in (
            ("hidden_size", "hidden_size"),
            ("intermediate_size", "intermediate_size"),
            ("num_heads", "num_attention_heads"),
        ):
            self.put(field, settings.needed(settings.integer(key), key))
        heads = self.values["num_heads"]
        self.put_or_default("num_kv_heads", settings.integer("num_key_value_heads"), heads, "= num_attention_heads")
        hidden = self.values["hidden_size"]
        self.put_or_default("head_dim", settings.integer("head_dim"), hidden // heads, "hidden_size / heads")
        head_dim, kv_heads = self.values["head_dim"], self.values["num_kv_heads"]
        if heads % kv_heads or head_dim == 0 or head_dim % 2:
            raise self.error(
                "config_inconsistent",
                f"{heads} heads, {kv_heads} kv heads and a head_dim of {head_dim} do not go together: heads must be a "
                "multiple of kv heads and head_dim even",
                "Correct num_attention_heads, num_key_value_heads or head_dim",
            )
        self.put_or_default("rms_norm_eps", settings.positive_number("rms_norm_eps"), 1e-6, LLAMA_DEFAULTS)
        self.put_or_default("logit_scale", settings.positive_number("logit_scale"), 1.0, "vLLM llama_eagle3.py")
        self.put_or_default("hidden_act", settings.text("hidden_act"), "silu", LLAMA_DEFAULTS)
        if self.values["hidden_act"] not in ACTIVATIONS:
            raise self.error(
                "unsupported_variant",
                f"`hidden_act` is {reprlib.repr(self.values['hidden_act'])}, which is not supported",
                f"Supported: {', '.join(sorted(ACTIVATIONS))}",
            )

    def _layers(self) -> None:
        indices = {int(m[1]) for m in (re.match(r"layers\.(\d{1,9})\.", name) for name in self.tensors) if m}
        num_layers = len(indices)
        if not indices or indices != set(range(num_layers)):
            raise self.error(
                "tensor_missing",
                f"the weights hold layers {sorted(indices)[:5]}, which do not count from 0 without a gap",
                "Save the drafter again with all its layers",
                where=str(self.files.folder),
            )
        self.put("num_layers", Value(value=num_layers, origin=Origin(source=Source.tensor, detail="layers.{i}.*")))
        stated = self.settings.integer("num_hidden_layers", minimum=0)
        if stated is not None and stated.value != num_layers:
            is_more = stated.value > num_layers
            effect = (
                "builds the missing layers without weights: its states are garbage or NaN" if is_more else "refuses it"
            )
            self.report(
                "num_layers_disagrees",
                "error" if is_more else "warning",
                f"the weights hold {num_layers} layer(s), `{stated.origin.detail}` says {stated.value}; the weights count "
                f"here, but vLLM goes by config.json and {effect}",
                f"Set `{stated.origin.detail}` to {num_layers} before serving",
            )
        self.tensor_flag("attention_bias", "attention_bias", "layers.0.self_attn.q_proj.bias", is_often_copied=True)
        o_proj_bias = "layers.0.self_attn.o_proj.bias"
        self.from_tensor("has_o_proj_bias", o_proj_bias in self.tensors, o_proj_bias)
        windows, findings = read_sliding_window(self.settings, num_layers)
        self.put("sliding_window", windows)
        self.findings += findings

    def _feedback(self) -> None:
        for field, (default, whose) in (
            ("norm_output", self.producer.norm_output_default),
            ("norm_before_residual", self.producer.norm_before_residual_default),
        ):
            stated = self.settings.flag(field)
            if stated is not None:
                self.put(field, stated)
            else:
                self.default(field, default, whose, is_certain=False)

    def _vocabulary(self) -> None:
        stated, target = self.settings.integer("vocab_size"), self.target.integer("vocab_size")
        if stated is None and "t2d" in self.tensors:
            self.from_tensor("vocab_size", self.size("t2d", 0, 1), "t2d")
        elif stated is None and "embed_tokens.weight" in self.tensors:
            self.from_tensor("vocab_size", self.size("embed_tokens.weight", 0), "embed_tokens.weight")
        else:
            self.put("vocab_size", self.settings.needed(stated or target, "vocab_size"))
        vocab_size = self.values["vocab_size"]
        if target is not None and target.value != vocab_size:
            self.report(
                "vocab_size_disagrees",
                "warning",
                f"the drafter is made for {vocab_size} target ids, the target has {target.value}",
                "Harmless if only padding differs; otherwise the tokenizer or the target is another one",
            )
        said = self.settings.integer("draft_vocab_size")
        if "lm_head.weight" in self.tensors:
            self.from_tensor("draft_vocab_size", self.size("lm_head.weight", 0), "lm_head.weight")
        elif "d2t" in self.tensors:
            self.from_tensor("draft_vocab_size", self.size("d2t", 0, 1), "d2t")
        else:
            self.put_or_default("draft_vocab_size", said, vocab_size, "= vocab_size when the key is absent (vLLM)")
        size = self.values["draft_vocab_size"]
        if said is not None and said.value != size:
            self.report(
                "draft_vocab_size_disagrees",
                "warning",
                f"the weights hold {size} draft ids, `{said.origin.detail}` says {said.value}; the weights count",
                "Correct draft_vocab_size: engines go by it",
            )
        self.from_tensor("has_own_embedding", "embed_tokens.weight" in self.tensors, "embed_tokens.weight")
        self.from_tensor("has_own_lm_head", "lm_head.weight" in self.tensors, "lm_head.weight")
        self.from_tensor("has_vocab_map", "d2t" in self.tensors, "d2t")
        if size > vocab_size or (size != vocab_size and not self.values["has_own_lm_head"]):
            what = "exceeds" if size > vocab_size else "has no lm_head of its own and differs from"
            raise self.error(
                "config_inconsistent",
                f"the draft vocabulary of {size} ids {what} the target's {vocab_size}",
                "Correct vocab_size or draft_vocab_size, or save lm_head.weight too",
            )
        borrowed = [
            name
            for name, is_own in (("embed_tokens", "has_own_embedding"), ("lm_head", "has_own_lm_head"))
            if not self.values[is_own]
        ]
        if borrowed and self.values["hidden_size"] != self.values["target_hidden_size"]:
            raise self.error(
                "tensor_missing",
                f"missing: {', '.join(f'`{name}.weight`' for name in borrowed)}. The target's cannot stand in: it is "
                f"{self.values['target_hidden_size']} wide, the drafter {self.values['hidden_size']}",
                "Save the drafter with its own",
                where=str(self.files.folder),
            )

    def _positions(self) -> None:
        limit = self.settings.integer("max_position_embeddings")
        self.put_or_default("max_position_embeddings", limit, 2048, LLAMA_DEFAULTS)
        settings = self.settings
        if self.overrides.get("rope_parameters") is not None:
            settings = Settings(self.where, settings.sections[:1])  # replaces all of it, theta included
        rope, findings = read_rope(settings, self.values["head_dim"])
        self.put("rope_parameters", rope)
        self.findings += findings

    def _vocab_map(self, spec: DrafterSpec) -> None:
        d2t, t2d = (_array(self.tensors.get(name)) for name in ("d2t", "t2d"))
        entry = self.tensors.get("d2t")
        where = f"{entry.path if entry else self.files.folder}: d2t"
        sizes = {"vocab_size": spec.vocab_size, "draft_vocab_size": spec.draft_vocab_size}
        self.findings += check_vocab_map(d2t, t2d, **sizes, where=where)
        if d2t is not None and spec.has_own_lm_head:
            self.findings += check_lm_head_rows(d2t, self.tensors["lm_head.weight"])

    def _doubts(self, spec: DrafterSpec) -> None:
        """What this producer's files are known to give otherwise than training used it."""
        for doubt in self.producer.doubts:
            origin = self.origins[doubt.field]
            if origin.source is not Source.override and doubt.is_raised(self.files.config, spec):
                self.origins[doubt.field] = dataclasses.replace(origin, is_certain=False)
                self.findings.append(
                    Finding(
                        code=doubt.code,
                        severity=doubt.severity,
                        message=doubt.message,
                        where=f"{self.where}: {origin.detail}",
                        remedy=doubt.remedy,
                    )
                )


def _sections(config: Mapping[str, object], producer: Producer, *, where: str) -> list[Section]:
    """The parts of config.json that this producer's settings stand in."""
    sections = []
    for name in producer.sections:
        values = config.get(name) if name else config
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise CheckpointError(
                f"`{name}` must be an object, found {reprlib.repr(values)}",
                code="config_wrong_type",
                where=where,
                remedy="Correct this key; see the producer's own example config",
            )
        sections.append(Section(values=values, prefix=f"{name}." if name else ""))
    return sections


def _array(entry: TensorEntry | None) -> Any:
    return None if entry is None else read_array(entry)


def _target_settings(target_config: Mapping[str, object] | None) -> Settings:
    """The target's own numbers; multimodal configs keep them in `text_config`."""
    top = target_config or {}
    text = top.get("text_config")
    nested = [Section(values=text, prefix="text_config.", source=Source.target)] if isinstance(text, Mapping) else []
    return Settings("the target's config", [*nested, Section(values=top, source=Source.target)])
