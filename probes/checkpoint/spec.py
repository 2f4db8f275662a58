"""What a drafter is, whoever made it: one immutable description, each value with where it came from. No torch here.

Canonical tensor names, used by `tensors.load_tensors` and by the drafter module's state dict:
`embed_tokens.weight` [vocab, hidden], `fc.weight` [hidden, n_aux*target_hidden], `fc.bias`, `input_norm.weight`,
`fc_norm.{i}.weight`, `layers.{i}.hidden_norm.weight` (layer 0), `layers.{i}.input_layernorm.weight`,
`layers.{i}.post_attention_layernorm.weight`, `layers.{i}.self_attn.{q,k,v,o}_proj.{weight,bias}`,
`layers.{i}.mlp.{gate,up,down}_proj.weight`, `norm.weight`, `lm_head.weight` [draft_vocab, hidden],
`d2t` int64 [draft_vocab] (offset: target id = draft id + d2t[draft id]), `t2d` bool [vocab].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

FINAL_NORMED = -1
"""In place of boundary ids: the target's state after its final norm, the input of drafters without aux states."""


class Source(StrEnum):
    """Where a value came from."""

    file_key = "file_key"  # a key of config.json
    tensor = "tensor"  # a tensor's presence or shape
    engine_default = "engine_default"  # nobody says: what a named engine assumes
    target = "target"  # taken from the target's config
    override = "override"  # asked for by the user


@dataclass(frozen=True, kw_only=True)
class Origin:
    """`detail`: the key, the tensor with its shape, or the engine and version whose default it is.

    `is_certain` is False where the files cannot prove the value (`norm_output`, `norm_before_residual`, ambiguous ids).
    """

    source: Source
    detail: str
    is_certain: bool = True


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something a reader of this checkpoint should know. Severities: info, warning, error."""

    code: str  # stable, snake_case
    severity: str
    message: str
    where: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """Everything that the forward pass depends on (each origin is in `origins`)."""

    producer: str  # "safeailab" | "specforge" | "speculators" | ...
    algorithm: str = "eagle3"  # how a chain is drafted and fed back
    family: str = "llama"  # which decoder layer
    num_layers: int = 1
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int  # the target's ids
    draft_vocab_size: int
    rms_norm_eps: float
    hidden_act: str = "silu"
    attention_bias: bool = False  # of q, k and v
    has_o_proj_bias: bool = False
    max_position_embeddings: int
    rope_parameters: Mapping[str, object]  # transformers >= 5 form: {"rope_type", "rope_theta", ...}; the *draft's*
    sliding_window: tuple[int | None, ...] = (None,)  # per layer, in tokens; None = full attention

    # boundary ids, ascending: id i = the residual stream entering layer i, n = leaving the last; FINAL_NORMED without aux
    aux_layer_ids: tuple[int, ...]
    use_aux_hidden_state: bool = True  # False: input is the target's final post-norm state, no fc
    has_fc: bool = True
    has_fc_bias: bool = False
    has_fc_norm: bool = False  # one RMSNorm for each aux state
    norm_before_fc: bool = False  # one RMSNorm over the whole concatenation
    has_hidden_norm: bool = True
    norm_output: bool = False  # feed back the post-norm state (EAGLE-3.1)
    norm_before_residual: bool = False
    has_own_embedding: bool  # False: the target's
    has_own_lm_head: bool  # False: the target's
    has_vocab_map: bool  # d2t present
    logit_scale: float = 1.0

    origins: Mapping[str, Origin] = field(default_factory=dict)  # field name -> origin
    findings: tuple[Finding, ...] = ()

    @property
    def num_aux(self) -> int:
        """How many target states are fused."""
        return len(self.aux_layer_ids)

    @property
    def kind(self) -> str:
        """The algorithm; "eagle3.1" when states are normed before fc and the post-norm state is fed back."""
        is_3_1 = self.algorithm == "eagle3" and self.norm_output and (self.has_fc_norm or self.norm_before_fc)
        return "eagle3.1" if is_3_1 else self.algorithm
