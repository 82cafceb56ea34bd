"""Rows that stay when a copy replaces all rows of a table whose deleted rows are kept.

In: the table, the version that the copy replaces, the files of the copy. Out: files with the rows
that the copy lacks, marked, for the copy's commit. Called by ``tablesync.group``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from wal2lake.catalog import TableDef
from wal2lake.errors import ApplyError
from wal2lake.lake import AddedFile, TablePort
from wal2lake.lake.upsert import is_plainly_written, keep_deleted


def kept_by_copy(
    port: TablePort,
    table: TableDef,
    files: Sequence[AddedFile],
    version: int | None,
    directory: str,
) -> tuple[AddedFile, ...]:
    """Write the rows that ``version`` has and the copy lacks. The caller removes the files if it
    does not commit them. 55000 if the version is not the newest, or cannot be read here."""
    state = port.state(table.location)
    present = port.files(state) if is_plainly_written(state) else None
    if present is None or state.version != version:
        raise ApplyError(
            f'a copy cannot keep the deleted rows of table "{table.qualified}" now',
            sqlstate="55000",
            detail="The table is being written, or can only be written by Spark.",
            hint="The copy begins anew by itself. Rows that are no longer needed may be"
            " deleted here meanwhile.",
            context=f"COPY {table.name}",
        )
    now = time.time_ns() // 1000
    return keep_deleted(
        state, present, files, table.key, table.generated, now, directory
    )
