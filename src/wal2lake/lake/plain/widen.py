"""Rewrites all rows of a table's version with other columns, constants or computed, without Spark.

Comes in: a version, the metadata of the next one, the source of each of its columns, and the
constants. Goes out: Delta's ``add`` actions of new files, which are durable in the table's
directory and which no commit names yet; or nothing, if Spark must write the rows. Called by ALTER
TABLE: the first job of a Spark plan costs more than all rows of a small table.

Memory is that of a few batches, however large the table is.

Source: ATRewriteTable() in tablecmds.c; Delta transaction log protocol, "Column Mapping".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.delta.durability import settle_files
from wal2lake.lake.delta.log.version import state_of
from wal2lake.lake.plain.read import is_plain
from wal2lake.lake.port import NextField, TablePort, TableState
from wal2lake.lake.staging.convert import SentColumn, convert_column, mapping_of
from wal2lake.lake.staging.generated import computed
from wal2lake.lake.store import store_at
from wal2lake.lake.tablefiles import add_action
from wal2lake.lake.upsert import is_plainly_written
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import Generated

_BATCH_ROWS: Final = 32 * 1024
_BATCH_BYTES: Final = 8 << 20
"""Bytes of a batch as Parquet stores them, uncompressed."""

_MOST_FILE_BYTES: Final = 512 << 20
"""Most bytes of the version's files; a guess at the size from which Spark's cores, if it has more
of them, are faster."""


def widened(
    tables: TablePort,
    state: TableState,
    metadata: Mapping[str, Any],
    fields: Sequence[NextField],
    constants: Mapping[str, str | None],
    generated: Generated = (),
) -> list[dict[str, Any]] | None:
    """Write all rows of ``state`` in the columns of ``metadata``; return the ``add`` actions.

    ``constants``: PostgreSQL's text of the value of each column without a source, by the column's
    name; None is NULL. ``generated``: columns whose values are computed from the others; the
    caller has checked that they can be. Returns None, and writes nothing, if a value does not fit
    its column, if a column keeps its source but not its type, or if only Spark can read the
    version. Raises StorageError.
    """
    store = store_at(state.location)
    stored = tables.plainly_read(state.location, state.version)
    computes = {name for name, _ in generated}
    anew = [
        column for column in fields if column.anew and column.field.name not in computes
    ]
    if store is None or stored is None or anew:
        return None
    before, files = stored
    after = state_of(state.location, metadata, state.version + 1, {})
    readable = [
        is_plain(field, physical)
        for version in (before, after)
        for field, physical in zip(version.fields, version.physical_fields, strict=True)
    ]
    if not (all(readable) and is_plainly_written(before) and is_plainly_written(after)):
        return None
    if sum(file.size for file in files) > _MOST_FILE_BYTES:
        return None
    values = _values(after, fields, constants)
    if values is None:
        return None
    rows = StoredRows(replace(before, location=store.location), files)
    positions = range(len(before.fields))
    with TableWriter(state.location, after.physical_fields) as writer:
        for batch in rows.live_batches(positions, _BATCH_ROWS, _BATCH_BYTES):
            columns = [
                pa.repeat(values[field.field.name], batch.num_rows)
                if field.source is None or field.field.name in computes
                else batch.column(field.source)
                for field in fields
            ]
            names = [field.name for field in after.fields]
            table, failed = computed(
                generated, after.fields, pa.table(columns, names=names)
            )
            if failed:
                raise InternalError("a generated column cannot be computed any more")
            writer.write(table)
        added = writer.finish()
    settle_files(store, [file.path for file in added])
    return [{"add": add_action(file, data_change=True)} for file in added]


def _values(
    after: TableState,
    fields: Sequence[NextField],
    constants: Mapping[str, str | None],
) -> dict[str, pa.Scalar] | None:
    """Return the value of each new column, in the column's stored type."""
    scalars = {}
    for spec, field in zip(after.fields, fields, strict=True):
        if field.source is not None and field.field.name not in constants:
            continue
        text = constants.get(field.field.name)
        sent = SentColumn(
            pa.array([None if text is None else text.encode()], pa.binary()),
            type_oid=spec.pg_type_oid,
            typmod=spec.pg_typmod,
        )
        converted = convert_column(sent, spec, mapping_of(spec))
        if converted.bad:
            return None
        scalars[field.field.name] = converted.array[0]
    return scalars
