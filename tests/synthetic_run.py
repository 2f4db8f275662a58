"""Makes records and runs out of nothing, for tests: right in every identity, with numbers that depend on a seed only.

Knows no model. `make_prompt` and `make_batch` give one record each; `write_run` a whole run folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from driftscope.runs import DrafterInfo, RunInfo, RunWriter, TargetInfo
from probes.record import NUM_CANDIDATES, REGIONS, TEXT_REGIONS, PromptRecord, Record, RejectionReason, RoundBatch

AUX_LAYER_IDS = (2, 15, 27)
DRAFTERS = ("eagle3", "eagle3.1")


def make_prompt(
    prompt_id: str = "p0",
    *,
    system_prompt: str = "default",
    template: str = "default",
    context_tokens: int = 0,
    num_prompt_tokens: int = 12,
    num_response_tokens: int = 30,
    num_continuation_tokens: int = 7,
    is_loop: bool = False,
    is_forced: bool = False,
    text_agreement: float = float("nan"),
    seed: int = 0,
) -> PromptRecord:
    """`is_loop`: the response repeats three tokens, so that it counts as degenerate from 24 tokens on."""
    rng = np.random.default_rng(seed)
    num_tokens = num_prompt_tokens + num_response_tokens + num_continuation_tokens
    token_ids = rng.permutation(40_000)[:num_tokens].astype(np.int32)  # distinct, so never a loop
    if is_loop:
        end = num_prompt_tokens + num_response_tokens
        token_ids[num_prompt_tokens:end] = np.resize([5, 6, 7], num_response_tokens)
    region = np.full(num_tokens, TEXT_REGIONS.index("response"), dtype=np.uint8)
    region[:num_prompt_tokens] = TEXT_REGIONS.index("user")
    return PromptRecord(
        prompt_id=prompt_id,
        system_prompt=system_prompt,
        template=template,
        context_tokens=context_tokens,
        category="chat",
        messages=({"role": "user", "content": f"a secret question of {prompt_id}"},),
        token_ids=token_ids,
        region=region,
        num_prompt_tokens=num_prompt_tokens,
        num_response_tokens=num_response_tokens,
        num_continuation_tokens=num_continuation_tokens,
        finish_reason="forced" if is_forced else "stop",
        is_forced=is_forced,
        text_agreement=text_agreement,
    )


def walk(accepted: np.ndarray, num_prompt_tokens: int, num_tokens: int) -> tuple[np.ndarray, int]:
    """The rounds an engine would make over dense starts P-1 .. L-3, and how many tokens it trims at the end."""
    on_walk = np.zeros(len(accepted), dtype=bool)
    t = num_prompt_tokens - 1
    while t < num_tokens - 2:
        on_walk[t - (num_prompt_tokens - 1)] = True
        t += int(accepted[t - (num_prompt_tokens - 1)]) + 1
    return on_walk, t - (num_tokens - 2)


def make_batch(
    prompt: PromptRecord,
    *,
    drafter: str = "eagle3",
    engine: str = "replay",
    depth: int = 4,
    num_layers: int = 1,
    num_heads: int = 3,
    accept_share: float = 0.5,
    accepted_drafts: np.ndarray | None = None,
    num_drafts: np.ndarray | None = None,
    has_labels_share: float = 1.0,
    has_attention: bool = True,
    has_fusion_bias: bool = False,
    seed: int = 0,
) -> RoundBatch:
    """One prompt with one drafter. `accepted_drafts` [round] fixes what is drawn with `accept_share` otherwise: for a
    replay one entry for each start P-1 .. L-3, else one for each round of the walk."""
    rng = np.random.default_rng([seed, sum(map(ord, drafter + prompt.prompt_id + prompt.system_prompt))])
    first, last = prompt.num_prompt_tokens - 1, prompt.num_prompt_tokens + prompt.num_response_tokens - 3
    num_tokens = prompt.num_prompt_tokens + prompt.num_response_tokens
    is_given = accepted_drafts is not None
    starts = np.arange(first, max(first, last + 1), dtype=np.int32)
    if accepted_drafts is None:
        drawn = rng.random((len(starts), depth)) < accept_share
        accepted_drafts = np.cumprod(drawn, axis=1).sum(axis=1)
    accepted_drafts = np.asarray(accepted_drafts, dtype=np.int32)
    if is_given and engine != "replay":
        starts = (first + np.concatenate([[0], np.cumsum(accepted_drafts + 1)[:-1]])).astype(np.int32)
        on_walk, num_trimmed = np.ones(len(starts), dtype=bool), 0
    else:
        on_walk, num_trimmed = walk(accepted_drafts, prompt.num_prompt_tokens, num_tokens)
        if engine != "replay":
            starts, accepted_drafts, on_walk = starts[on_walk], accepted_drafts[on_walk], on_walk[on_walk]
    num_rounds = len(starts)
    drafted = np.full(num_rounds, depth, dtype=np.int32) if num_drafts is None else np.asarray(num_drafts, np.int32)
    has_all_labels = np.ones(num_rounds, dtype=bool)
    has_all_labels[num_rounds - round((1 - has_labels_share) * num_rounds) :] = False

    depths = np.arange(depth)[None, :]
    is_accepted = depths < accepted_drafts[:, None]  # [round, depth]
    is_drafted = depths < drafted[:, None]
    is_reached = is_drafted & (depths <= accepted_drafts[:, None])
    reason = np.full((num_rounds, depth), RejectionReason.not_reached, dtype=np.uint8)
    reason[is_reached] = RejectionReason.disagreement
    reason[is_accepted] = RejectionReason.none
    reason[~is_drafted] = RejectionReason.limit
    out_of_vocab = is_reached & ~is_accepted & (rng.random((num_rounds, depth)) < 0.2)
    reason[out_of_vocab] = RejectionReason.out_of_draft_vocab
    draft_token = np.where(is_drafted, rng.integers(0, 40_000, (num_rounds, depth)), -1).astype(np.int32)
    target_token = np.where(is_accepted, draft_token, np.where(is_reached, draft_token + 1, -1)).astype(np.int32)
    candidate = np.arange(NUM_CANDIDATES)
    draft_top_token = np.where(is_drafted[..., None], (draft_token[..., None] + 7 * candidate) % 40_000, -1)
    target_top_token = np.where(is_reached[..., None], (target_token[..., None] + 7 * candidate) % 40_000, -1)
    fresh_right = (is_accepted | (rng.random((num_rounds, depth)) < 0.2)).astype(np.int8)
    fresh_right[:, 0] = is_accepted[:, 0]

    by_layer = (num_rounds, depth, num_layers)
    growth = 1 + 0.2 * np.arange(depth)[None, :, None]
    norm_in = (rng.uniform(90, 110, by_layer) * growth).astype(np.float32)
    mass: dict[str, np.ndarray] = {}
    head_columns: dict[str, np.ndarray] = {}
    if has_attention:
        raw = rng.random((len(REGIONS), *by_layer, num_heads))
        raw[REGIONS.index("own"), :, 0] = 0.0
        raw[REGIONS.index("tools")] = 0.0
        shares = (raw / raw.sum(axis=0)).astype(np.float32)
        mass = dict(zip(REGIONS, shares, strict=True))
        recent = (mass["own"] * 0.5).astype(np.float32)
        head_columns = {
            "recent_mass": recent,
            "own_excess": mass["own"] - recent,
            "sink_deficit": (mass["sink"] * 0.1).astype(np.float32),
            "attention_entropy": rng.uniform(1, 4, (*by_layer, num_heads)).astype(np.float32),
        }
    share = rng.normal(1 / 3, 0.2, (num_rounds, len(AUX_LAYER_IDS)))
    bias = np.full(num_rounds, 0.05) if has_fusion_bias else np.zeros(num_rounds)
    share[:, -1] = 1 - bias - share[:, :-1].sum(axis=1)
    energy = np.abs(share) / np.abs(share).sum(axis=1, keepdims=True)
    return RoundBatch(
        drafter=drafter,
        prompt_id=prompt.prompt_id,
        system_prompt=prompt.system_prompt,
        template=prompt.template,
        context_tokens=prompt.context_tokens,
        engine=engine,
        depth=depth,
        num_trimmed_tokens=None if prompt.is_forced else num_trimmed,
        start=starts,
        num_drafts=drafted,
        accepted_drafts=accepted_drafts,
        on_walk=on_walk & (not prompt.is_forced),
        has_all_labels=has_all_labels,
        draft_us=None if engine == "replay" else rng.uniform(900, 1100, num_rounds).astype(np.float32),
        verify_us=None if engine == "replay" else rng.uniform(4000, 5000, num_rounds).astype(np.float32),
        fusion_share_bias=bias.astype(np.float32) if has_fusion_bias else None,
        fusion_share=share.astype(np.float32),
        fusion_energy=energy.astype(np.float32),
        aux_norm=rng.uniform(10, 20, share.shape).astype(np.float32),
        draft_token=draft_token,
        draft_prob=rng.random((num_rounds, depth)).astype(np.float32),
        draft_entropy=rng.random((num_rounds, depth)).astype(np.float32),
        target_token=target_token,
        target_prob_of_draft=np.where(is_reached, 0.5, np.nan).astype(np.float32),
        target_rank_of_draft=np.where(is_reached, 0, -1).astype(np.int32),
        overlap=np.where(is_reached, 0.5, np.nan).astype(np.float32),
        accepted=np.where(is_reached, is_accepted, -1).astype(np.int8),
        rejection_reason=reason,
        draft_top_token=draft_top_token.astype(np.int32),
        draft_top_prob=np.where(is_drafted[..., None], 0.5 ** (candidate + 1), np.nan).astype(np.float32),
        target_top_token=target_top_token.astype(np.int32),
        target_top_prob=np.where(is_reached[..., None], 0.75 * 0.25**candidate, np.nan).astype(np.float32),
        fresh_token=np.where(fresh_right == 1, target_token, 1).astype(np.int32),
        fresh_right=fresh_right,
        hidden_feedback_norm=norm_in[:, :, 0] * np.float32(0.1),
        input_share_embed=rng.random((num_rounds, depth)).astype(np.float32),
        hidden_in_norm=norm_in,
        hidden_out_norm=norm_in * np.float32(2),
        branch_norm_attn=norm_in * np.float32(0.3),
        branch_norm_mlp=norm_in * np.float32(0.4),
        mass=mass,
        **head_columns,
    )


def make_info(*, engine: str = "replay", depth: int = 4, has_text: bool = True, num_heads: int = 3) -> RunInfo:
    """run.json of a synthetic run."""
    return RunInfo(
        engine=engine,
        depth=depth,
        has_text=has_text,
        plan={"target": "synthetic", "depth": depth},
        target=TargetInfo(name="synthetic-target"),
        drafters=[
            DrafterInfo(name=name, kind=name, aux_layer_ids=list(AUX_LAYER_IDS), num_heads=num_heads)
            for name in DRAFTERS
        ],
    )


def make_records(
    *,
    num_prompts: int = 6,
    system_prompts: tuple[str, ...] = ("default", "none"),
    contexts: tuple[int, ...] = (0,),
    drafters: tuple[str, ...] = DRAFTERS,
    num_loops: int = 0,
    num_response_tokens: int = 30,
    seed: int = 0,
    **batch_options: object,
) -> Iterator[Record]:
    """Each prompt, then its batches; the first `num_loops` prompts of each condition are degenerate."""
    for system_prompt in system_prompts:
        for context in contexts:
            for number in range(num_prompts):
                prompt = make_prompt(
                    f"p{number}",
                    system_prompt=system_prompt,
                    context_tokens=context,
                    is_loop=number < num_loops,
                    num_response_tokens=num_response_tokens,
                    seed=seed + number,
                )
                yield prompt
                for drafter in drafters:
                    yield make_batch(prompt, drafter=drafter, seed=seed, **batch_options)  # type: ignore[arg-type]


def write_run(
    path: Path,
    records: Iterable[Record] | None = None,
    info: RunInfo | None = None,
    *,
    error: BaseException | None = None,
) -> Path:
    """A run at `path`: complete, or stopped by `error` after the last record."""
    with RunWriter(path, info or make_info()) as writer:
        for record in make_records() if records is None else records:
            writer.write_batch(record)
        if error is not None:
            raise error
    return path
