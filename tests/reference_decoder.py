"""The oracle: an EAGLE-3 drafter in float64, one whole sequence at a time. Full softmax, no cache, no tricks.

It knows nothing of targets, checkpoints, regions, engines or the project's own forward pass. A chain is drafted as if
there were no cache: for each depth *all* slots so far, true-feature ones and the chain's own, run through every layer
again with ordinary causal attention. A slot never sees a later one, so this is the key/value layout that an engine has
when a round starts at slot t, with nothing stored and so nothing to get wrong.

Slot t holds the pair (embed(x[t+1]), fused g[t]), stands at position t and predicts x[t+2].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from probes.checkpoint.spec import DrafterSpec

Tensors = Mapping[str, Tensor]
ACTIVATIONS = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu, "relu": torch.relu}


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """What one verified token's target states become, before the drafter's first layer. All float64."""

    fused: Tensor  # [slot, hidden] f
    contribution: Tensor | None  # [slot, aux, hidden] W_i g_i; None without fc
    bias: Tensor | None  # [hidden]
    aux_norm: Tensor  # [slot, aux] raw ||g_i||

    @property
    def share(self) -> Tensor:
        """<W_i g_i, f> / ||f||^2, [slot, aux]."""
        return torch.einsum("sah,sh->sa", self.contribution, self.fused) / self.fused.square().sum(-1, keepdim=True)

    @property
    def share_bias(self) -> Tensor:
        """<b, f> / ||f||^2, [slot]."""
        return self.fused @ self.bias / self.fused.square().sum(-1)

    @property
    def energy(self) -> Tensor:
        """||W_i g_i|| / sum_j ||W_j g_j||, [slot, aux]."""
        norm = self.contribution.norm(dim=-1)
        return norm / norm.sum(-1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class SlotPass:
    """Everything one sequence of slots went through. All float64; the last axis but one of `attention` is the query."""

    hidden_in: Tensor  # [layer, slot, hidden] the residual stream entering the layer
    hidden_out: Tensor  # [layer, slot, hidden] o: leaving it; the last one is before the final norm
    branch_attn: Tensor  # [layer, slot, hidden] what attention adds to the residual
    branch_mlp: Tensor  # [layer, slot, hidden]
    attention: Tensor  # [layer, head, query slot, key slot] probabilities
    normed: Tensor  # [slot, hidden] y
    feedback: Tensor  # [slot, hidden] y with norm_output, else o
    logits: Tensor  # [slot, draft_vocab]
    input_share_embed: Tensor  # [slot] of layer 0

    @property
    def attention_entropy(self) -> Tensor:
        """Nats, [layer, head, slot]."""
        return -torch.special.xlogy(self.attention, self.attention).sum(-1)


@dataclass(frozen=True, kw_only=True)
class ChainStep:
    """The query of depth k: slot `slot` = start + k - 1 of the sequence `slots`."""

    slot: int
    hidden_in: Tensor  # [layer, hidden]
    hidden_out: Tensor  # [layer, hidden]
    branch_norm_attn: Tensor  # [layer]
    branch_norm_mlp: Tensor  # [layer]
    attention: Tensor  # [layer, head, key slot], slots 0 .. slot
    attention_entropy: Tensor  # [layer, head]
    normed: Tensor  # [hidden]
    feedback: Tensor  # [hidden]
    logits: Tensor  # [draft_vocab]
    input_share_embed: Tensor  # []
    token: int  # the greedy draft, a target id
    gap: float  # between the two largest logits


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def fuse(spec: DrafterSpec, tensors: Tensors, aux: Tensor) -> Fusion:
    """`aux` [slot, n_aux*Ht] -> the drafter's input states (facts 1.2). Done for verified tokens only."""
    if not spec.has_fc:
        return Fusion(fused=aux, contribution=None, bias=None, aux_norm=aux.norm(dim=-1, keepdim=True))
    parts = aux.unflatten(-1, (spec.num_aux, spec.target_hidden_size))  # [slot, aux, Ht]
    aux_norm = parts.norm(dim=-1)
    if spec.norm_before_fc:
        parts = rms_norm(aux, tensors["input_norm.weight"], spec.rms_norm_eps).view_as(parts)
    if spec.has_fc_norm:
        normed = [rms_norm(parts[:, i], tensors[f"fc_norm.{i}.weight"], spec.rms_norm_eps) for i in range(spec.num_aux)]
        parts = torch.stack(normed, 1)
    weight = tensors["fc.weight"].unflatten(-1, (spec.num_aux, spec.target_hidden_size))  # [hidden, aux, Ht]
    contribution = torch.einsum("hat,sat->sah", weight, parts)
    bias = tensors["fc.bias"] if spec.has_fc_bias else None
    fused = contribution.sum(1) + (0 if bias is None else bias)
    return Fusion(fused=fused, contribution=contribution, bias=bias, aux_norm=aux_norm)


def rope_frequencies(spec: DrafterSpec) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] and the factor on cos and sin, written from the papers' formulas."""
    rope = spec.rope_parameters
    kind, theta = rope["rope_type"], float(rope["rope_theta"])
    exponent = torch.arange(0, spec.head_dim, 2, dtype=torch.float64) / spec.head_dim
    inverse = theta**-exponent
    if kind == "default":
        return inverse, 1.0
    factor = float(rope["factor"])
    if kind == "linear":
        return inverse / factor, 1.0
    context = float(rope["original_max_position_embeddings"])
    turns = context * inverse / (2 * math.pi)  # full rotations within the original context
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return keep * inverse + (1 - keep) * inverse / factor, 1.0
    if kind == "yarn":
        fast, slow = float(rope.get("beta_fast", 32)), float(rope.get("beta_slow", 1))

        def dimension(rotations: float) -> float:
            return spec.head_dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), spec.head_dim - 1)
        ramp = ((torch.arange(spec.head_dim // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
        return (1 - ramp) * inverse + ramp * inverse / factor, 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    raise NotImplementedError(f"the oracle has no rope_type {kind!r}")


def rotate(spec: DrafterSpec, x: Tensor) -> Tensor:
    """Half-split rope; `x` [slot, head, head_dim], slot t stands at position t."""
    inverse, scale = rope_frequencies(spec)
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * inverse  # [slot, head_dim / 2]
    cos, sin = scale * angle.cos()[:, None], scale * angle.sin()[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attend(spec: DrafterSpec, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
    """Causal softmax attention -> (output [slot, head*head_dim], probabilities [head, query slot, key slot])."""
    num_slots, group = query.shape[0], spec.num_heads // spec.num_kv_heads
    query, key = rotate(spec, query), rotate(spec, key)
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)  # [slot, head, head_dim]
    logits = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(spec.head_dim)
    position = torch.arange(num_slots)
    distance = position[:, None] - position[None, :]  # [query slot, key slot]
    is_visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    probability = logits.masked_fill(~is_visible, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", probability, value).flatten(1), probability


def project(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    out = x @ tensors[f"{name}.weight"].T
    return out + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else out


def run_slots(spec: DrafterSpec, tensors: Tensors, token_ids: Tensor, features: Tensor) -> SlotPass:
    """One causal pass over slots 0..S-1 (facts 1.3): `token_ids` [slot] is x[t+1], `features` [slot, hidden] is h."""
    eps = spec.rms_norm_eps
    embedding = tensors["embed_tokens.weight"][token_ids]  # [slot, hidden]
    stream = features
    hidden_in, hidden_out, branch_attn, branch_mlp, attention = [], [], [], [], []
    share = torch.zeros(len(token_ids), dtype=torch.float64)
    for i in range(spec.num_layers):
        at = f"layers.{i}."
        hidden_in.append(stream)
        if i == 0:
            e = rms_norm(embedding, tensors[at + "input_layernorm.weight"], eps)
            n = rms_norm(stream, tensors[at + "hidden_norm.weight"], eps) if spec.has_hidden_norm else stream
            residual = n if spec.norm_before_residual else stream
            x = torch.cat([e, n], dim=-1)  # [slot, 2*hidden], embedding first
            stacked = torch.cat([tensors[at + f"self_attn.{name}_proj.weight"] for name in "qkv"])
            z = x @ stacked.T  # before rope and bias
            from_embedding = e @ stacked[:, : spec.hidden_size].T
            share = (from_embedding * z).sum(-1) / z.square().sum(-1)
        else:
            x = rms_norm(stream, tensors[at + "input_layernorm.weight"], eps)
            residual = stream
        q, k, v = (
            project(tensors, at + f"self_attn.{name}_proj", x).unflatten(-1, (-1, spec.head_dim)) for name in "qkv"
        )
        if spec.family == "qwen3":  # a norm over each head, before rope
            q, k = (rms_norm(x, tensors[at + f"self_attn.{name}_norm.weight"], eps) for name, x in (("q", q), ("k", k)))
        mixed, probability = attend(spec, q, k, v, spec.sliding_window[i])
        a = project(tensors, at + "self_attn.o_proj", mixed)
        r = residual + a
        u = rms_norm(r, tensors[at + "post_attention_layernorm.weight"], eps)
        gate = ACTIVATIONS[spec.hidden_act](project(tensors, at + "mlp.gate_proj", u))
        m = project(tensors, at + "mlp.down_proj", gate * project(tensors, at + "mlp.up_proj", u))
        stream = r + m
        hidden_out.append(stream)
        branch_attn.append(a)
        branch_mlp.append(m)
        attention.append(probability)
    normed = rms_norm(stream, tensors["norm.weight"], eps)
    return SlotPass(
        hidden_in=torch.stack(hidden_in),
        hidden_out=torch.stack(hidden_out),
        branch_attn=torch.stack(branch_attn),
        branch_mlp=torch.stack(branch_mlp),
        attention=torch.stack(attention),
        normed=normed,
        feedback=normed if spec.norm_output else stream,
        logits=normed @ tensors["lm_head.weight"].T * spec.logit_scale,
        input_share_embed=share,
    )


def to_target_id(spec: DrafterSpec, tensors: Tensors, draft_id: int) -> int:
    return draft_id + int(tensors["d2t"][draft_id]) if spec.has_vocab_map else draft_id


class ReferenceDecoder:
    """One text with one drafter: `token_ids` x[0..N-1], `aux` [at least N-1, n_aux*Ht], true slots 0..N-2."""

    def __init__(self, spec: DrafterSpec, tensors: Tensors, token_ids: Tensor, aux: Tensor) -> None:
        self.spec = spec
        self.tensors = {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}
        self.token_ids = token_ids.long()
        self.fusion = fuse(spec, self.tensors, aux.double())
        self._true_features: SlotPass | None = None

    def _step(self, slots: SlotPass, slot: int) -> ChainStep:
        best = slots.logits[slot].topk(2)
        return ChainStep(
            slot=slot,
            hidden_in=slots.hidden_in[:, slot],
            hidden_out=slots.hidden_out[:, slot],
            branch_norm_attn=slots.branch_attn[:, slot].norm(dim=-1),
            branch_norm_mlp=slots.branch_mlp[:, slot].norm(dim=-1),
            attention=slots.attention[:, :, slot, : slot + 1],
            attention_entropy=slots.attention_entropy[:, :, slot],
            normed=slots.normed[slot],
            feedback=slots.feedback[slot],
            logits=slots.logits[slot],
            input_share_embed=slots.input_share_embed[slot],
            token=to_target_id(self.spec, self.tensors, int(best.indices[0])),
            gap=float(best.values[0] - best.values[1]),
        )

    def fresh(self, slot: int) -> ChainStep:
        """Depth 1 at `slot`, with true features everywhere."""
        if self._true_features is None:
            self._true_features = run_slots(
                self.spec, self.tensors, self.token_ids[1:], self.fusion.fused[: len(self.token_ids) - 1]
            )
        return self._step(self._true_features, slot)

    def chain(self, start: int, depth: int) -> list[ChainStep]:
        """The round that starts at slot `start`: `depth` greedy drafts, each fed its predecessor's token and state."""
        tokens = self.token_ids[1 : start + 2]  # x[t+1] of slots 0..start
        features = self.fusion.fused[: start + 1]
        steps: list[ChainStep] = []
        for k in range(1, depth + 1):
            step = self._step(run_slots(self.spec, self.tensors, tokens, features), start + k - 1)
            steps.append(step)
            tokens = torch.cat([tokens, torch.tensor([step.token])])
            features = torch.cat([features, step.feedback[None]])
        return steps
