"""The target model: logits, residual-stream states at layer boundaries, and its own greedy or sampled text.

Any transformers causal LM. Knows nothing of drafters. States are captured by hooks that hold only the boundaries asked for:
id i < n is the residual stream entering layer i, id n the stream leaving the last layer *before* the final norm (not
transformers' `hidden_states[n]`, which is after it), FINAL_NORMED the state after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, DynamicCache, PreTrainedModel

from probes.checkpoint.spec import FINAL_NORMED
from probes.errors import InputError
from probes.target.family import (
    attention_options,
    auto_class,
    chunked_attention,
    find_decoder,
    last_positions,
    max_padded_tokens,
    new_cache,
    refuse_foreign_kernels,
    refuse_other_states,
    refuse_recurrent,
)
from probes.target.prefix import Prefix
from probes.target.source import not_loadable, source_of
from probes.target.trace import HeadLogits, TargetTrace

PREFILL_CHUNK_TOKENS = 2048
CUDA_PREFILL_CHUNK_TOKENS = 8192
"""Long enough to fill the device; the mask of a chunk has this many rows of all slots before."""

HEAD_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
"""As a part of the largest logit (else 2^-6): the head alone gives the model's logits, or the model does more after it."""


class Target:
    def __init__(self, model: PreTrainedModel, tokenizer: Any, *, aux_layer_ids: Sequence[int] = ()) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.config = model.config.get_text_config()
        self.num_layers = int(self.config.num_hidden_layers)
        self.device = next(model.parameters()).device
        refuse_recurrent(model)
        self.decoder, self.layers = find_decoder(model, self.num_layers)
        self.max_padded_tokens = max_padded_tokens(model)
        self._is_plain_head: bool | None = None  # whether the head alone gives the logits; found when first needed
        # the cache's argument is called `cache` from transformers 5.2x on and `past_key_values` before
        self._arguments = frozenset(inspect.signature(model.forward).parameters)
        self.cache_argument = "cache" if "cache" in self._arguments else "past_key_values"
        self._captured: dict[int, Tensor] = {}
        self._hooks: list[Any] = []
        self.capture(aux_layer_ids)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        aux_layer_ids: Sequence[int] = (),
        trust_remote_code: bool = False,
    ) -> Target:
        """A target from a local folder or a Hub id (`owner/name` or `owner/name@revision`).

        Raises CheckpointError naming the path when transformers cannot load it.
        """
        name, options = source_of(path, trust_remote_code)
        try:
            config = AutoConfig.from_pretrained(name, **options)
            if not trust_remote_code:
                refuse_foreign_kernels(config)
            tokenizer = AutoTokenizer.from_pretrained(name, **options)
            options |= attention_options(config)
            model = auto_class(config).from_pretrained(name, dtype=dtype, **options).to(device)
        except InputError:
            raise
        except Exception as error:  # transformers lets through whatever its many classes run into
            raise not_loadable(path, error) from error
        return cls(model, tokenizer, aux_layer_ids=aux_layer_ids)

    @property
    def embedding(self) -> Float[Tensor, "vocab hidden"]:
        return self.model.get_input_embeddings().weight

    @property
    def lm_head(self) -> Float[Tensor, "vocab hidden"]:
        return self.model.get_output_embeddings().weight

    def head(self, states: Float[Tensor, "position hidden"]) -> Float[Tensor, "position vocab"]:
        """The output head alone, on post-norm states."""
        return self.model.get_output_embeddings()(states)

    def _gives(self, states: Tensor, logits: Float[Tensor, "position vocab"]) -> bool:
        """Whether the head alone gives the model's logits, up to rounding (no soft cap, no scale after it)."""
        if getattr(self.config, "final_logit_softcapping", None) is not None:
            return False
        tolerance = HEAD_TOLERANCE.get(logits.dtype, 2.0**-6)
        return bool((self.head(states) - logits).float().abs().max() <= tolerance * logits.float().abs().max())

    @property
    def max_positions(self) -> int | None:
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a response: the generation config's and the tokenizer's end-of-text ids."""
        ids: set[int] = set()
        for value in (getattr(self.model.generation_config, "eos_token_id", None), self.tokenizer.eos_token_id):
            ids.update([] if value is None else [value] if isinstance(value, int) else value)
        return frozenset(ids)

    def can_pad(self, num_tokens: int) -> bool:
        """Whether prompts of unequal length may share a batch whose texts grow to `num_tokens`, padding included."""
        return self.max_padded_tokens is None or num_tokens <= self.max_padded_tokens

    # ---- states

    def capture(self, aux_layer_ids: Sequence[int]) -> None:
        """Hooks these boundaries, in place of those hooked before. Raises InputError for an id outside 0..n."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.hooked_ids = tuple(sorted(set(aux_layer_ids)))
        for index in self.hooked_ids:
            if index == FINAL_NORMED:
                self._hooks.append(self.decoder.register_forward_hook(self._hold_output(index)))
            elif index == self.num_layers:
                self._hooks.append(self.layers[-1].register_forward_hook(self._hold_output(index)))
            elif 0 <= index < self.num_layers:
                self._hooks.append(
                    self.layers[index].register_forward_pre_hook(self._hold_input(index), with_kwargs=True)
                )
            else:
                raise InputError(
                    f"aux layer id {index} is outside 0..{self.num_layers}: the target has {self.num_layers} layers",
                    code="aux_layer_out_of_range",
                    remedy="is this drafter for another target?",
                )

    @contextmanager
    def _also_final(self) -> Iterator[None]:
        """Within: the post-norm states are captured too."""
        hook = self.decoder.register_forward_hook(self._hold_output(FINAL_NORMED))
        try:
            yield
        finally:
            hook.remove()

    def _hold_input(self, index: int) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._captured[index] = args[0] if args else kwargs["hidden_states"]

        return hook

    def _hold_output(self, index: int) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            self._captured[index] = output if isinstance(output, Tensor) else output[0]

        return hook

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Int[Tensor, "row token"],
        cache: DynamicCache,
        *,
        num_logits: int = 1,
        position_ids: Int[Tensor, "row token"] | None = None,
        attention_mask: Int[Tensor, "row slot"] | None = None,
    ) -> tuple[Float[Tensor, "row position vocab"], dict[int, Float[Tensor, "row token hidden"]]]:
        """Extends `cache` by these tokens; -> (logits of the last `num_logits` positions, captured states)."""
        self._captured = {}
        # not every family knows these
        options = {"logits_to_keep": last_positions(self.config, token_ids, num_logits), "position_ids": position_ids}
        output = self.model(
            input_ids=token_ids,
            **{self.cache_argument: cache},
            use_cache=True,
            attention_mask=attention_mask,
            **{name: value for name, value in options.items() if name in self._arguments},
        )
        captured, self._captured = self._captured, {}
        for state in captured.values():
            refuse_other_states(self.model, state, token_ids)
        return output.logits[:, -num_logits:], captured

    def prefill(self, token_ids: np.ndarray, *, prefix: Prefix | None = None) -> Prefix:
        """The cache and states of a prefix, in chunks; `prefix` gives tokens already computed."""
        begin = 0 if prefix is None else len(prefix.token_ids)
        cache = new_cache(self.config) if prefix is None else prefix.fork()
        aux: dict[int, Tensor] = {}
        self._read_in_chunks(token_ids, begin, cache, aux, prefix)
        return Prefix(np.asarray(token_ids, np.int32), cache, aux)

    def _read_in_chunks(
        self,
        token_ids: np.ndarray,
        begin: int,
        cache: DynamicCache,
        aux: dict[int, Tensor],
        prefix: Prefix | None,
        *,
        after_chunk: Callable[[int, Tensor, dict[int, Tensor]], None] = lambda at, logits, states: None,
        num_logits: int = 1,
    ) -> None:
        """Extends `cache` by the tokens from `begin` on and fills `aux`, one tensor a boundary, allocated once.

        `after_chunk` gets each chunk's first position, its last `num_logits` logits and its states.
        """
        chunk = CUDA_PREFILL_CHUNK_TOKENS if self.device.type == "cuda" else PREFILL_CHUNK_TOKENS
        hooked = set(self.hooked_ids)
        every = torch.as_tensor(token_ids, dtype=torch.int64, device=self.device)
        for at in range(begin, len(token_ids), chunk):
            ids = every[at : at + chunk]
            with chunked_attention(self.model, is_first=at == 0, is_whole=len(ids) == chunk):
                logits, states = self.forward(ids[None], cache, num_logits=min(num_logits, len(ids)))
            for index in hooked & states.keys():
                if index not in aux:
                    aux[index] = states[index].new_empty(len(token_ids), states[index].shape[-1])
                    if prefix is not None and begin:  # prompts may have no token in common
                        aux[index][:begin] = prefix.aux[index]
                aux[index][at : at + len(ids)] = states[index][0]
            after_chunk(at, logits[0], {i: s[0] for i, s in states.items()})
        if begin >= len(token_ids) and prefix is not None:
            aux |= prefix.aux

    def empty_prefix(self) -> Prefix:
        """No token."""
        return Prefix(np.zeros(0, np.int32), new_cache(self.config), {})

    # ---- text

    def check_length(self, num_tokens: int, what: str) -> None:
        """Raises InputError when a text of this many tokens does not fit into the target's positions."""
        if self.max_positions is not None and num_tokens > self.max_positions:
            raise InputError(
                f"{what} needs {num_tokens} tokens and the target allows {self.max_positions}",
                code="context_too_long",
                remedy="lower --context-tokens or --max-new-tokens, or shorten the prompt",
            )

    @torch.inference_mode()
    def read(self, token_ids: np.ndarray, num_prompt_tokens: int, *, prefix: Prefix | None = None) -> TargetTrace:
        """The states and logits of a finished text that somebody else may have written (forced).

        Read in chunks; memory grows by the states, keys and values of a token, not by its logits (see HeadLogits).
        """
        self.check_length(len(token_ids), "the text")
        begin = 0 if prefix is None else len(prefix.token_ids)
        first = num_prompt_tokens - 1
        ids = torch.as_tensor(token_ids, dtype=torch.int64, device=self.device)
        final: list[Tensor] = []

        def keep(at: int, logits: Tensor, states: dict[int, Tensor]) -> None:
            state = states[FINAL_NORMED]
            if self._is_plain_head is None:
                self._is_plain_head = self._gives(state[-1:], logits[-1:])
            final.append(state[max(0, first - at) :].clone())

        aux: dict[int, Tensor] = {}
        cache = new_cache(self.config) if prefix is None else prefix.fork()
        with self._also_final():
            self._read_in_chunks(token_ids, begin, cache, aux, prefix, after_chunk=keep)
        logits: Tensor | HeadLogits = HeadLogits(torch.cat(final)[:-1], self.head, self.lm_head.shape[0])
        if not self._is_plain_head:
            logits = self._all_logits(token_ids, first, prefix)
        return TargetTrace(
            token_ids=ids,
            num_prompt_tokens=num_prompt_tokens,
            num_response_tokens=len(token_ids) - num_prompt_tokens,
            finish_reason="forced",
            aux=aux,
            logits=logits,
            is_forced=True,
        )

    def _all_logits(self, token_ids: np.ndarray, first: int, prefix: Prefix | None) -> Tensor:
        """Those from position `first` on, of a model that changes what its head gives (a soft cap, a scale)."""
        kept: list[Tensor] = []

        def keep(at: int, logits: Tensor, states: dict[int, Tensor]) -> None:
            kept.append(logits[max(0, first - at) :])

        cache = new_cache(self.config) if prefix is None else prefix.fork()
        begin = 0 if prefix is None else len(prefix.token_ids)
        self._read_in_chunks(
            token_ids,
            begin,
            cache,
            {},
            prefix,
            after_chunk=keep,
            num_logits=max(PREFILL_CHUNK_TOKENS, CUDA_PREFILL_CHUNK_TOKENS),
        )
        return torch.cat(kept)[:-1]
