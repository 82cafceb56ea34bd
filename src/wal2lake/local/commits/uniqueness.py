"""23505: a primary key that is there twice.

Comes in: a branch and the files that a statement has added to it. Goes out: nothing, or
PostgreSQL's error with the key as its text. Source: _bt_check_unique() in nbtinsert.c.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from wal2lake.catalog import TableDef
from wal2lake.errors import About, UsageError
from wal2lake.lake.branch.keys import Key
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.sql.query.results import Rendering, columns_in
from wal2lake.wire.frontback import FieldDescription, Format


def key_of(table: TableDef) -> Key:
    """Return the key that no two rows may share."""
    return Key(tuple(table.key))


def refuse_repeated(
    table: TableDef, found: pa.RecordBatch | None, rendering: Rendering
) -> None:
    """Raise if a key was found."""
    if found is None:
        return
    name = table.index_name
    raise UsageError(
        f'duplicate key value violates unique constraint "{name}"',
        sqlstate="23505",
        about=About(table.namespace, table.name, constraint=name),
        detail=f"Key ({', '.join(map(quote_identifier, table.key))})="
        f"({', '.join(_texts(table, found, rendering))}) already exists.",
    )


def _texts(
    table: TableDef, found: pa.RecordBatch, rendering: Rendering
) -> Sequence[str]:
    columns = {column.name: column for column in table.columns}
    fields = [
        FieldDescription(name, int(columns[name].type_oid), -1, columns[name].typmod)
        for name in table.key
    ]
    texts = columns_in(found, fields, [Format.TEXT] * len(fields), rendering)
    return [(one[0] or b"").decode() for one in texts.columns]
