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
    num_prompt_tokens: Int[Tensor, "slot"]  # int32
    region: (
        UInt8[Tensor, "slot token"] | None
    )  # index into TEXT_REGIONS, of prompt tokens; None: told apart by length only
    num_sink_slots: int


@dataclass(frozen=True, kw_only=True)
class Queries:
    """One layer's queries of one depth. `rows[i]` of q and of `positions` is row i's (None: i itself)."""

    q: Float[Tensor, "token head head_dim"]
    rows: Int[Tensor, "row"] | None
    positions: Int[Tensor, "token"]
    num_rows: int
    keys: Float[Tensor, "block block_slot kv_head head_dim"]
    block_table: Int[Tensor, "row block"]
    scale: float
    window: int | None
