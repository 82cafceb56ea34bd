"""Raises 23505 for a duplicate primary key.

Takes a branch and the files that a statement has added to it; raises PostgreSQL's error with the
key as text. Source: _bt_check_unique() in nbtinsert.c.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from wal2lake.catalog import TableDef
from wal2lake.errors import About, UsageError
from wal2lake.lake.spark import Key
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.query.results import Rendering, columns_in
from wal2lake.wire.frontback import FieldDescription, Format


def key_of(table: TableDef) -> Key:
    """Return the columns that no two rows may share."""
    return Key(tuple(table.key))


def refuse_repeated(
    table: TableDef, repeated: pa.RecordBatch | None, rendering: Rendering
) -> None:
    """Raise if there is a repeated key."""
    if repeated is None:
        return
    name = table.index_name
    raise UsageError(
        f'duplicate key value violates unique constraint "{name}"',
        sqlstate="23505",
        about=About(table.namespace, table.name, constraint=name),
        detail=f"Key ({', '.join(map(quote_identifier, table.key))})="
        f"({', '.join(_texts(table, repeated, rendering))}) already exists.",
    )


def _texts(
    table: TableDef, repeated: pa.RecordBatch, rendering: Rendering
) -> Sequence[str]:
    columns = {column.name: column for column in table.columns}
    fields = [
        FieldDescription(name, int(columns[name].type_oid), -1, columns[name].typmod)
        for name in table.key
    ]
    texts = columns_in(repeated, fields, [Format.TEXT] * len(fields), rendering)
    return [(column[0] or b"").decode() for column in texts.columns]
