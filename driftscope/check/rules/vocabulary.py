"""DS3xx: the draft vocabulary's map, the drafter's embedding and its lm_head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from driftscope.check.check_report import Finding, Severity
from driftscope.check.definition import Check
from driftscope.check.pair import Pair
from driftscope.check.vocab_map import draft_target_ids, stop_tokens
from driftscope.check.weights import is_float, likeness, pick
from probes.checkpoint.files import MAX_INDEX_BYTES, read_json_object
from probes.checkpoint.safetensors_file import read_array

UNLIKE_COSINE = 0.5  # a copy of the target's embedding is at 1, a trained copy above 0.9, a random one at 0
SAME_ROWS_COSINE = 0.3  # lm_head rows that started as the target's stay well above chance, and twice above other rows
NUM_HEAD_ROWS = 32
TOKENIZER = "tokenizer.json"

MISSING = Check(
    id="DS301",
    name="d2t_missing",
    title="There is no map from draft ids to target ids",
    severity=Severity.error,
    why="Engines then take draft id i for target id i silently: only the first ids of the target's vocabulary are "
    "ever drafted, almost all of them wrong.",
    evidence="Fewer draft ids than target ids, and no d2t among the tensors.",
    remedy="Copy d2t from training; t2d gives it too: d2t = nonzero(t2d) - arange",
    reader_codes=("d2t_missing",),
)
ALL_ZERO = Check(
    id="DS302",
    name="d2t_all_zero",
    title="The map from draft ids to target ids is all zero",
    severity=Severity.error,
    why="A buffer that was never filled. Draft id i is taken for target id i: near-zero acceptance.",
    evidence="The values of d2t.",
    remedy="Copy d2t from training",
    reader_codes=("d2t_all_zero",),
)
ABSOLUTE = Check(
    id="DS303",
    name="d2t_absolute",
    title="The map holds target ids in place of offsets",
    severity=Severity.error,
    why="Every producer and engine read takes d2t as an offset (target id = draft id + d2t[draft id]). Absolute ids lead "
    "to other tokens: near-zero acceptance.",
    evidence="The values of d2t, alone and against t2d.",
    remedy="Store d2t - arange(len(d2t))",
    reader_codes=("d2t_absolute", "d2t_maybe_absolute"),
)
OUT_OF_RANGE = Check(
    id="DS304",
    name="d2t_out_of_range",
    title="The map leads outside the target's vocabulary",
    severity=Severity.error,
    why="The head belongs to another target or the map is damaged.",
    evidence="The values of d2t and the target's vocab_size.",
    remedy="Copy d2t from training; check that this is the drafter's target",
    reader_codes=("d2t_out_of_range",),
)
NOT_RISING = Check(
    id="DS305",
    name="d2t_not_increasing",
    title="The map is not ascending",
    severity=Severity.warning,
    why="Producers write the target ids in ascending order. An id that is reached twice means a damaged map; another order "
    "must be the order of lm_head's rows.",
    evidence="The target ids of neighbouring draft ids.",
    remedy="Copy d2t from training; check the order of lm_head's rows",
    reader_codes=("d2t_not_increasing",),
)
T2D = Check(
    id="DS306",
    name="t2d_disagrees",
    title="d2t and t2d describe different vocabularies",
    severity=Severity.error,
    why="t2d is training's mask of draftable ids, d2t is what engines use. If they differ, one is from another run.",
    evidence="The ids that d2t reaches against those marked in t2d.",
    remedy="Copy both from training",
    reader_codes=("t2d_disagrees",),
)
CUT_BY_OFFSETS = Check(
    id="DS307",
    name="lm_head_cut_by_offsets",
    title="lm_head was cut with the offsets in place of the target ids",
    severity=Severity.error,
    why="Rows lm_head[d2t] in place of lm_head[arange + d2t]: every draft id scores another token.",
    evidence="Neighbours with the same offset have equal rows.",
    remedy="Cut the full lm_head again with arange(len(d2t)) + d2t",
    reader_codes=("lm_head_cut_by_offsets",),
)
OTHER_ROWS = Check(
    id="DS308",
    name="lm_head_other_rows",
    title="lm_head's rows are the target's under another map than d2t's",
    severity=Severity.error,
    why="Heads that start from the target's lm_head stay close to it. Where the rows fit the target's much better under "
    "another map, d2t is not the one that training used.",
    evidence="The cosine between rows of the two lm_heads, under d2t as offsets, as target ids, and without a map.",
    remedy="Copy d2t from training",
)
VOCAB_SIZE = Check(
    id="DS309",
    name="vocab_size_disagrees",
    title="Drafter and target do not have the same vocabulary size",
    severity=Severity.warning,
    why="Different padding is harmless. Otherwise the head was made for another tokenizer.",
    evidence="vocab_size of both configs.",
    remedy="Check that this is the drafter's target",
    reader_codes=("vocab_size_disagrees",),
)
DRAFT_VOCAB_SIZE = Check(
    id="DS310",
    name="draft_vocab_size_disagrees",
    title="draft_vocab_size is not the size of lm_head",
    severity=Severity.warning,
    why="Engines build lm_head and the map by config.json: the load stops, or rows are cut off.",
    evidence="draft_vocab_size and the shape of lm_head.weight.",
    remedy="Correct draft_vocab_size",
    reader_codes=("draft_vocab_size_disagrees",),
)
ENGINE_MAP = Check(
    id="DS311",
    name="engine_other_map",
    title="An engine maps draft ids to other target ids than the checkpoint",
    severity=Severity.warning,
    why="Near-zero acceptance, except for low ids.",
    evidence="What each engine does with and without d2t.",
    remedy="Store d2t as offsets",
)
EMBEDDING = Check(
    id="DS312",
    name="embedding_unlike_target",
    title="The drafter's embedding has nothing in common with the target's",
    severity=Severity.warning,
    why="Producers copy the target's embedding, some train it further. A table that is unlike it was never filled, or "
    "comes from another model: depth 1 suffers in vLLM, which uses the drafter's own; SGLang and TensorRT-LLM replace "
    "it by the target's.",
    evidence="The cosine between the same rows of both embeddings.",
    remedy="Copy the target's embedding into the checkpoint, or leave embed_tokens.weight out of it",
    sources=("https://github.com/vllm-project/vllm/issues/18906",),
)
ENGINE_EMBEDDING = Check(
    id="DS313",
    name="engine_other_embedding",
    title="An engine uses another embedding than the checkpoint's",
    severity=Severity.warning,
    why="Harmless where the two are copies. A head that trained its embedding loses it in engines that always share the "
    "target's.",
    evidence="Which embedding each engine uses, and whether the two differ in sampled rows.",
    remedy="Use an engine that keeps the drafter's embedding (vLLM)",
    sources=("https://github.com/vllm-project/vllm/issues/18906",),
)
ENGINE_LM_HEAD = Check(
    id="DS314",
    name="engine_other_lm_head",
    title="An engine uses another lm_head than the checkpoint's",
    severity=Severity.warning,
    why="SGLang takes the embedding for lm_head where tie_word_embeddings is true (often copied from a small target's "
    "config), and the target's where draft_vocab_size is absent.",
    evidence="Which lm_head each engine uses.",
    remedy="Set tie_word_embeddings to false and state draft_vocab_size",
)
END_TOKEN = Check(
    id="DS315",
    name="end_token_uncovered",
    title="A token that ends the target's turn is outside the draft vocabulary",
    severity=Severity.warning,
    why="It can never be drafted, so the last round of every response ends with a rejection.",
    evidence="eos_token_id of the target's generation_config.json and config.json against d2t.",
    remedy="Train with a draft vocabulary that holds the special tokens of the chat template",
)
TOKENIZER_DIFFERS = Check(
    id="DS316",
    name="tokenizer_differs",
    title="The drafter's folder holds another tokenizer than the target's",
    severity=Severity.warning,
    why="Engines use the target's. A drafter trained on other ids for the same text drafts nonsense.",
    evidence="The vocabularies of both tokenizer.json.",
    remedy="Give the target that the drafter was trained on",
)


def find(pair: Pair) -> Iterator[Finding]:
    yield from _embedding(pair)
    yield from _lm_head_rows(pair)
    yield from _end_tokens(pair)
    yield from _tokenizer(pair)


def _embedding(pair: Pair) -> Iterator[Finding]:
    found = pair.embedding_likeness
    if found is not None and not found.is_equal and found.cosine < UNLIKE_COSINE:
        own = pair.tensors["embed_tokens.weight"]
        yield EMBEDDING.finding(
            f"mean cosine {found.cosine:.2f} over {found.num_rows} rows", where=f"{own.path}: {own.name}"
        )


def _lm_head_rows(pair: Pair) -> Iterator[Finding]:
    """Positive evidence only: a head that was not made from the target's says nothing about the map."""
    head, target, d2t = pair.tensors.get("lm_head.weight"), pair.target.lm_head, pair.tensors.get("d2t")
    if head is None or target is None or d2t is None or not (is_float(head) and is_float(target)):
        return
    if pair.is_remote or head.shape[1:] != target.shape[1:] or len(d2t.shape) != 1:
        return
    offsets = read_array(d2t).astype(np.int64)
    rows = np.unique(np.linspace(0, len(offsets) - 1, NUM_HEAD_ROWS).astype(int))
    rows = rows[rows < head.shape[0]]
    mine = pick(head, rows.tolist())
    maps = {"as offsets": rows + offsets[rows], "as target ids": offsets[rows], "without a map": rows}
    cosines = {}
    for name, ids in maps.items():
        inside = (ids >= 0) & (ids < target.shape[0])
        if inside.sum() >= len(ids) // 2:
            cosines[name] = likeness(mine[inside], pick(target, ids[inside].tolist())).cosine
    best = max(cosines, key=lambda name: cosines[name], default="as offsets")
    if cosines.get(best, 0) > max(SAME_ROWS_COSINE, 2 * cosines.get("as offsets", 0)):
        shown = ", ".join(f"{name} {cosine:.2f}" for name, cosine in cosines.items())
        yield OTHER_ROWS.finding(f"mean cosine of {len(rows)} rows with d2t {shown}", where=f"{d2t.path}: {d2t.name}")


def _end_tokens(pair: Pair) -> Iterator[Finding]:
    ids = draft_target_ids(pair)
    if ids is None:
        return
    missing = [token for token in stop_tokens(pair.target) if token not in ids]
    if missing:
        yield END_TOKEN.finding(
            f"{len(missing)} of the target's end tokens: {', '.join(map(str, missing[:5]))}", where=pair.where
        )


def _tokenizer(pair: Pair) -> Iterator[Finding]:
    paths = pair.files.folder / TOKENIZER, pair.target.folder / TOKENIZER
    if not all(path.is_file() for path in paths) or paths[0].read_bytes() == paths[1].read_bytes():
        return
    mine, theirs = (_vocabulary(path) for path in paths)
    moved = [text for text in mine if theirs.get(text, mine[text]) != mine[text]]
    if moved or len(mine) != len(theirs):
        yield TOKENIZER_DIFFERS.finding(
            f"{len(mine):,} tokens against {len(theirs):,}; {len(moved):,} of them with other ids", where=str(paths[0])
        )


def _vocabulary(path: Path) -> Mapping[str, int]:
    """text -> id of a tokenizer.json, the added tokens included; empty for kinds without such a map."""
    content = read_json_object(path, MAX_INDEX_BYTES)
    model, added = content.get("model"), content.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    result = dict(vocabulary) if isinstance(vocabulary, Mapping) else {}
    for token in added if isinstance(added, list) else []:
        if isinstance(token, Mapping) and isinstance(token.get("content"), str):
            result[token["content"]] = token.get("id")
    return result
