"""What the hooks of both model runners write at one depth, and once a step: device operations only, fit for CUDA graphs.

`enter` says which rows of the drafter's batch are the requests' last slots and at which depth; until `leave`, hooks inside
the drafter may write. Knows vLLM's drafter modules, no runner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from probes.vllm.attach import num_head_ranks
from probes.vllm.boundaries import Queries
from probes.vllm.masses import write_masses
from probes.vllm.recorder import Recorder
from probes.vllm.residual_norm import record_residual_norm


class DepthWriter:
    """`step` is a 0-dim int64 device tensor: the depth, from 0. `model` is vLLM's EAGLE-3 drafter."""

    def __init__(self, recorder: Recorder, model: Any, step: Tensor, max_num_tokens: int) -> None:
        self.recorder, self.model, self.step = recorder, model, step
        self.rows = recorder.rows
        self.layout = recorder.layout
        self.has_norms = recorder.config.level != "counts"
        self._is_cuda = self.rows.words.device.type == "cuda"
        self._num_rows: int | None = None
        self._rows_of: Tensor | None = None
        self._positions: Tensor | None = None
        self._scratch: Tensor | None = None
        self.residual_norm: Tensor | None = None
        self._fusion: tuple[Tensor, Tensor | None, float] | None = None
        if not self.has_norms:
            return
        inner = model.model
        if getattr(inner, "norm_output", False):
            self.residual_norm = record_residual_norm(inner.norm, max_num_tokens)
        for index, layer in enumerate(inner.layers):
            reason = self._hook_attention(index, layer.self_attn.attn)
            if reason:
                recorder.unmeasured["mass"] = recorder.unmeasured["attention_entropy"] = reason
            if self.layout.is_eager:
                self._hook_branches(index, layer)
        self._has_fc = getattr(inner, "use_aux_hidden_state", True)
        if self._is_cuda and self._has_fc:
            self._fusion = _plain_fusion(inner)
        if self._fusion is not None:  # compiles the kernels now and not at the first request
            num_aux, size = self._fusion[0].shape[:2]
            self.write_fusion(self._fusion[0].new_zeros(1, num_aux * size), step.new_zeros(1))
        if not self._has_fc:
            recorder.unmeasured["fusion_share"] = "the drafter has no fc"

    def enter(self, num_rows: int, rows_of: Tensor | None, positions: Tensor) -> None:
        """`rows_of[i]`: row i's place among the drafter's tokens (None: i itself); `positions` [token]: their slots."""
        self._num_rows, self._rows_of, self._positions = num_rows, rows_of, positions

    @property
    def aux_width(self) -> int | None:
        """Numbers of one token's captured states where their shares are for sure fit for a CUDA graph: of plain weights."""
        return None if self._fusion is None else self._fusion[0].shape[0] * self._fusion[0].shape[1]

    @property
    def is_inside(self) -> bool:
        """Whether a depth is being drafted."""
        return self._num_rows is not None

    def leave(self) -> None:
        """Always, also where the recorder failed since `enter`: hooks must find nothing of a depth that is over."""
        self._num_rows = self._rows_of = self._positions = None

    def write_start(self) -> None:
        """Depth 1: the slot t of each round."""
        assert self._positions is not None
        self.rows.first("start", self._n).copy_(self._own(self._positions))

    def write_fused(self, hidden: Tensor) -> None:
        """Depth 1: what enters the layer, [token, hidden]. At later depths it is what was fed back."""
        if self.has_norms:
            self._put_norm("hidden_in_norm", hidden, layer=0)

    def write_feedback(self, hidden: Tensor) -> None:
        """What the drafter feeds back, [token, hidden]; with it the norm before its final norm, where it has one there."""
        if not self.has_norms:
            return
        if self._is_cuda and self.residual_norm is not None:
            from probes.vllm.norms_triton import put_norms

            feedback = self._column("hidden_feedback_norm", None)
            out = self._column("hidden_out_norm", self.layout.num_layers - 1)
            put_norms(hidden, self._rows_of, self.step, feedback, self._n, values=self.residual_norm, value_out=out)
            return
        self._put_norm("hidden_feedback_norm", hidden)
        if self.residual_norm is not None:  # else it is what was fed back
            self._put_own("hidden_out_norm", self._own(self.residual_norm), layer=self.layout.num_layers - 1)

    def write_fusion(self, concat: Tensor, rows_of: Tensor) -> None:
        """Shares of the captured states (`concat` [token, aux * target_hidden]) in the fused one, of these tokens."""
        if not self.has_norms:
            return
        num_rows, inner = len(rows_of), self.model.model
        share, energy, aux_norm = (self.rows.first(n, num_rows) for n in ("fusion_share", "fusion_energy", "aux_norm"))
        if self._fusion is not None:
            self._write_fusion_at_once(concat, rows_of, share, energy, aux_norm)
            return
        states = concat.index_select(0, rows_of).unflatten(1, (self.layout.num_aux, -1)).transpose(0, 1)
        aux_norm.copy_(_norm(states).T)
        if not self._has_fc:
            return
        terms = _terms(inner.fc, _normed(inner, states))  # float32 [aux, row, hidden]
        fused, size = terms.sum(dim=0), terms.norm(dim=-1)
        share.copy_(((terms * fused).sum(dim=-1) / fused.square().sum(dim=-1)).T)
        energy.copy_((size / size.sum(dim=0)).T)

    def _write_fusion_at_once(
        self, concat: Tensor, rows_of: Tensor, share: Tensor, energy: Tensor, aux_norm: Tensor
    ) -> None:
        """The same in three launches, on a GPU with plain weights."""
        from probes.vllm.norms_triton import fusion_shares, gather_states

        assert self._fusion is not None
        weight, gains, eps = self._fusion
        states = concat.new_empty(weight.shape[0], len(rows_of), weight.shape[1])
        gather_states(concat, rows_of, gains, eps, states, aux_norm)
        fusion_shares(torch.bmm(states, weight, out_dtype=torch.float32), share, energy)

    @property
    def _n(self) -> int:
        assert self._num_rows is not None
        return self._num_rows

    def _own(self, values: Tensor) -> Tensor:
        """The rows of the requests' last slots, of a tensor over the drafter's tokens."""
        return values[: self._n] if self._rows_of is None else values.index_select(0, self._rows_of[: self._n])

    def _column(self, name: str, layer: int | None) -> Tensor:
        """[row, depth]"""
        column = self.rows.first(name, self._n)
        return column if layer is None else column[:, :, layer]

    def _put_own(self, name: str, values: Tensor, layer: int | None = None) -> None:
        """`values` [row], at this depth."""
        self._column(name, layer).index_copy_(1, self.step.view(1), values[:, None])

    def _put_norm(self, name: str, states: Tensor, layer: int | None = None) -> None:
        """Writes the norm of the state at each request's last slot, `states` [token, hidden], at this depth."""
        if self._is_cuda:
            from probes.vllm.norms_triton import put_norms

            put_norms(states, self._rows_of, self.step, self._column(name, layer), self._n)
        else:
            self._put_own(name, self._own(_norm(states)), layer)

    def _hook_attention(self, index: int, attention: Any) -> str:
        """Wraps the implementation's `forward` -> why not, where it cannot be read."""
        implementation = attention.impl
        reason, keys_of = key_view(attention)
        if reason:
            return reason
        if self._scratch is None and self._is_cuda:
            from probes.vllm.masses_triton import make_scratch

            self._scratch = make_scratch(len(self.rows.words), implementation.num_heads, self.rows.words.device)
        forward = implementation.forward

        def write(query: Tensor, kv_cache: Tensor, metadata: Any) -> None:
            self._write_masses(index, implementation, query, keys_of(kv_cache), metadata)

        def recorded(
            layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor, metadata: Any, *a: Any, **kw: Any
        ) -> Any:
            result = forward(layer, query, key, value, kv_cache, metadata, *a, **kw)
            if metadata is not None and self._num_rows is not None:
                self.recorder.guarded(write, query, kv_cache, metadata)
            return result

        implementation.forward = recorded
        return ""

    def _write_masses(self, index: int, implementation: Any, query: Tensor, keys: Tensor, metadata: Any) -> None:
        assert self._positions is not None
        queries = Queries(
            q=query.view(len(query), implementation.num_heads, implementation.head_size),
            rows=self._rows_of,
            positions=self._positions,
            num_rows=self._n,
            keys=keys,
            block_table=metadata.block_table,
            scale=implementation.scale,
            window=_window(implementation),
        )
        write_masses(
            queries,
            self.recorder.boundaries,
            start=self.rows["start"],
            step=self.step,
            layer=index,
            mass=self.rows["mass"],
            entropy=self.rows["attention_entropy"],
            scratch=self._scratch,
        )

    def _hook_branches(self, index: int, layer: Any) -> None:
        """Eager mode only: compiled code calls no hooks."""

        def put(name: str) -> Callable[..., None]:
            def hook(module: Any, args: Any, output: Any) -> None:
                if self._num_rows is not None:
                    value = output[0] if isinstance(output, tuple) else output
                    self.recorder.guarded(self._put_norm, name, value, index)

            return hook

        layer.self_attn.register_forward_hook(put("branch_norm_attn"))
        layer.mlp.register_forward_hook(put("branch_norm_mlp"))
        if index == 0:
            weight = output_weights(layer.self_attn, self.rows.words.device)

            def put_share(projection: Any, args: tuple[Tensor, ...]) -> None:
                if self._num_rows is not None:
                    self.recorder.guarded(self._put_embed_share, projection, args[0], weight)

            layer.self_attn.qkv_proj.register_forward_pre_hook(put_share)

    def _put_embed_share(self, projection: Any, x: Tensor, weight: Tensor) -> None:
        share, energy = embed_share(projection, self._own(x), weight)
        self._put_own("input_share_embed", share)
        self._put_own("input_energy", energy)


def output_weights(attention: Any, device: torch.device) -> Tensor:
    """How much each output of this worker's q, k and v counts, [output]: a key head of several workers counts once."""
    num_copies = attention.num_kv_heads * num_head_ranks(attention) // attention.total_num_kv_heads
    weight = torch.ones(attention.q_size + 2 * attention.kv_size, device=device)
    weight[attention.q_size :] /= num_copies
    return weight


def embed_share(projection: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """-> (<W_e e, W [e, n]> / ||W [e, n]||^2, ||W [e, n]||^2) of x = [e, n], each [row]: the embedding half comes first.
    Without bias; `weight` [output] of each product."""
    embed, hidden = x.clone(), x.clone()
    size = x.shape[-1] // 2
    embed[:, size:], hidden[:, :size] = 0, 0
    parts = projection.quant_method.apply(projection, torch.cat([embed, hidden]), None).float()
    from_embed, total = parts[: len(x)], parts[: len(x)] + parts[len(x) :]
    energy = (total.square() * weight).sum(dim=-1)
    return (from_embed * total * weight).sum(dim=-1) / energy, energy


def _norm(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dim=-1, dtype=torch.float32)


def _normed(inner: Any, states: Tensor) -> Tensor:
    """What fc reads, of the states [aux, row, target_hidden]: as in vLLM's `combine_hidden_states`."""
    if getattr(inner, "norm_before_fc", False):
        whole = inner.input_norm(states.transpose(0, 1).flatten(1).contiguous())
        states = whole.unflatten(1, (len(states), -1)).transpose(0, 1)
    if inner.fc_norm is not None:
        states = torch.stack([norm(state.contiguous()) for norm, state in zip(inner.fc_norm, states, strict=True)])
    return states


def _plain_fusion(inner: Any) -> tuple[Tensor, Tensor | None, float] | None:
    """-> (fc's weight by layer [aux, target_hidden, hidden], fc_norm's gains [aux, target_hidden], eps) of a drafter whose
    weights are as in the checkpoint, in half precision; None where only its modules can apply them."""
    weight: Any = getattr(inner.fc, "weight", None)
    is_half = weight is not None and weight.dtype in (torch.bfloat16, torch.float16)
    if not is_half or getattr(inner, "norm_before_fc", False):
        return None
    slices = weight.detach().unflatten(1, (inner.num_aux_hidden_states, -1)).permute(1, 2, 0)  # a view
    if inner.fc_norm is None:
        return slices, None, 0.0
    gains = torch.stack([norm.weight.detach() for norm in inner.fc_norm])
    return slices, gains, float(inner.fc_norm[0].variance_epsilon)


def _terms(fc: Any, states: Tensor) -> Tensor:
    """W_i g_i, float32 [aux, row, hidden], of the states [aux, row, target_hidden], whatever form the weights have."""
    num_aux, num_rows, size = states.shape
    alone = states.new_zeros(num_aux, num_rows, num_aux, size)
    for index in range(num_aux):
        alone[index, :, index] = states[index]
    applied = fc.quant_method.apply(fc, alone.view(num_aux * num_rows, num_aux * size), None)
    return applied.view(num_aux, num_rows, -1).float()


def _window(implementation: Any) -> int | None:
    """Tokens that a query sees, itself included; None: all. FlashAttention keeps (left, right), others the number."""
    window = implementation.sliding_window
    left = window[0] if isinstance(window, tuple | list) else window
    if left is None or left < 0:
        return None
    return left + 1 if isinstance(window, tuple | list) else left


def key_view(attention: Any) -> tuple[str, Callable[[Tensor], Tensor]]:
    """-> (why the keys cannot be read, else "", a function from the layer's cache to [block, slot, kv_head, head_dim])."""
    implementation = attention.impl
    name = type(implementation).__name__
    head_size = implementation.head_size

    def none(cache: Tensor) -> Tensor:
        raise AssertionError(name)

    cache_dtype = getattr(implementation, "kv_cache_dtype", "auto")
    if cache_dtype not in ("auto", "float16", "bfloat16"):
        return f"the key cache is {cache_dtype}", none
    if getattr(implementation, "sinks", None) is not None or getattr(implementation, "logits_soft_cap", False):
        return "attention with learned sinks or capped logits", none
    if getattr(implementation, "alibi_slopes", None) is not None:
        return "attention with ALiBi", none
    if name in ("FlashAttentionImpl", "TritonAttentionImpl"):
        # (blocks, kv_heads, block_slots, 2 * head_size), keys first

        def by_head(cache: Tensor) -> Tensor:
            return cache.transpose(1, 2)[..., :head_size]

        return "", by_head
    if name == "CPUAttentionBackendImpl":
        # (blocks, kv_heads, block_slots, 2 * head_size) of which the first half are the keys, [head_size, block_slots]

        def transposed(cache: Tensor) -> Tensor:
            num_blocks, num_heads, block_slots, _ = cache.shape
            if attention.isa not in ("vec", "vec16"):
                raise NotImplementedError(f"the CPU backend's key layout {attention.isa!r} was never read")
            stride = cache.stride()
            return cache.as_strided(
                (num_blocks, block_slots, num_heads, head_size), (stride[0], 1, stride[1], block_slots)
            )

        return "", transposed
    return f"the key layout of {name} was never read", none
