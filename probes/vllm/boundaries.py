"""Where a request's regions lie on the device, and the queries that look there. Codes index `record.REGIONS`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int, UInt8
from torch import Tensor

from probes.record import REGIONS, TEXT_REGIONS

OWN, CURRENT, SINK = (REGIONS.index(name) for name in ("own", "current", "sink"))
RESPONSE, UNKNOWN = REGIONS.index("response"), REGIONS.index("unknown")
FIRST_TEXT_REGION = REGIONS.index(TEXT_REGIONS[0])  # REGIONS holds TEXT_REGIONS in their order
NO_SLOT = -1


@dataclass(frozen=True, kw_only=True)
class Boundaries:
    """Where each request's regions lie, on the device; `slot` is the recorder's own number of a request."""

    slot: Int[Tensor, "row"]  # int32: of each row of the batch; NO_SLOT: nothing is computed for it
    # [slot], int32
    num_prompt_tokens: Int[Tensor, "_"]
    # [slot, token]: index into TEXT_REGIONS, of prompt tokens; None: known by length only
    region: UInt8[Tensor, "_ token"] | None
    num_sink_slots: int


@dataclass(frozen=True, kw_only=True)
class Queries:
    """One layer's queries of one depth. `rows[i]` of q and of `positions` is row i's (None: i itself)."""

    q: Float[Tensor, "token head head_dim"]
    rows: Int[Tensor, "row"] | None
    positions: Int[Tensor, "_"]  # [token]; may be a buffer that is longer
    num_rows: int
    keys: Float[Tensor, "_ _ kv_head head_dim"]  # [block, slot of the block, ...]
    block_table: Int[Tensor, "_ _"]  # [row, block of the text]; may have more rows
    scale: float
    window: int | None
