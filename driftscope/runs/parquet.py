"""Reading and writing of one Parquet file, with the errors that a reader of a run needs.

Knows no columns' meaning. zstd; dictionary encoding for repeated names only; a checksum on every page, so that
`runs verify` sees a flipped bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from driftscope.runs.files import write_atomically
from driftscope.runs.schema import UNIQUE_STRINGS
from probes.errors import RunError


def write_table(path: Path, table: pa.Table) -> None:
    """Write `table` to `path` in one step."""
    dictionary = [f.name for f in table.schema if f.type == pa.string() and f.name not in UNIQUE_STRINGS]

    def write(file: Any) -> None:
        pq.write_table(table, file, compression="zstd", use_dictionary=dictionary or False, write_page_checksum=True)

    write_atomically(path, write)


def num_rows(path: Path, schema: pa.Schema) -> int:
    """Rows of the file, read from its footer. Raises RunError when it is cut short or holds other columns than
    `schema` (a column that an older version did not write is fine, one of another type is not)."""
    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise damaged(path, "it is missing") from error
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, str(error).split("\n")[0]) from error
    with file:
        found = file.schema_arrow
        unknown = [
            name for name in schema.names if name in found.names and found.field(name).type != schema.field(name).type
        ]
        required = [f.name for f in schema if not f.nullable and f.name not in found.names]
        if required or unknown:
            raise damaged(path, f"its columns are not driftscope's (see {', '.join((required + unknown)[:3])})")
        return int(file.metadata.num_rows)


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The whole file, page checksums verified. Raises RunError as `num_rows` does, and for damaged pages."""
    num_rows(path, schema)
    try:
        return pq.read_table(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, str(error).split("\n")[0]) from error


def damaged(path: Path, what: str) -> RunError:
    """The error of a part that cannot be read."""
    run = path.parent if path.parent.suffix == ".drift" else path.parent.parent
    return RunError(
        f"this part of the run cannot be read: {what}",
        code="unreadable_part",
        where=str(path),
        remedy=f"`driftscope runs recover {run}` sets it aside and keeps all the others.",
    )
