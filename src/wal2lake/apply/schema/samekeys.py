"""Whether rows that a publisher's unique index tells apart have different keys here, too. Pure.

In: the index's columns with their types at the publisher, our table. Out: yes, or not known. A
copy and a batch of inserts are not looked into where it is yes, so every doubt is a no: rows are
compared then, which costs time and nothing else.

A publisher's rows may have one key here though its index is valid: our key has not all of the
index's columns, or our type finds more values equal (text '1.0' and '1.00' in a numeric, 0.14 and
0.11 in a numeric(2,1)).

Called by ``relationmap`` and by tablesync.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.model import Oid
from wal2lake.pgtypes.registry.pg_type import numeric_precision_scale, type_by_oid

_INT8: Final = 20
_INT2: Final = 21
_INT4: Final = 23
_TEXT: Final = 25
_FLOAT4: Final = 700
_FLOAT8: Final = 701
_VARCHAR: Final = 1043
_NUMERIC: Final = 1700

_WIDER: Final = {
    _INT2: frozenset({_INT4, _INT8, _NUMERIC}),
    _INT4: frozenset({_INT8, _NUMERIC}),
    _INT8: frozenset({_NUMERIC}),
    _FLOAT4: frozenset({_FLOAT8}),
    _TEXT: frozenset({_VARCHAR}),
}
"""Built-in types that hold each value of another as a value of its own."""

SentType = tuple[Oid, int]
"""OID and typmod, as the publisher has them."""


def keeps_apart(index: Mapping[str, SentType], table: TableDef) -> bool:
    """Whether no two rows that differ in the columns of ``index`` can have one key in ``table``.

    None of these columns is null: our key refuses nulls."""
    if not index or not index.keys() <= set(table.key):
        return False
    columns = {column.name: column for column in table.columns}
    return all(
        name in columns and _differ(int(oid), typmod, columns[name])
        for name, (oid, typmod) in index.items()
    )


def _differ(oid: int, typmod: int, column: ColumnDef) -> bool:
    """Whether different values of the publisher's type are different ones of the column's."""
    built_in = type_by_oid(oid) is not None
    if column.type_name is not None:
        # A type that is not built in, citext perhaps, which finds more texts equal.
        return not built_in
    own, limit = int(column.type_oid), column.typmod
    if own == _TEXT and limit == -1:
        # Values of no type differ and have one text.
        return True
    if not built_in and column.domain is not None:
        oid, typmod = int(column.domain.type_oid), column.domain.typmod
    if oid != own:
        if own not in _WIDER.get(oid, ()):
            return False
        # Of integers the scale is 0, the others have no typmod.
        return limit == -1 or (own == _NUMERIC and _scale(limit) >= 0)
    if limit in (-1, typmod):
        return True
    if own == _NUMERIC:
        return typmod != -1 and _scale(limit) >= _scale(typmod)
    return False


def _scale(typmod: int) -> int:
    found = numeric_precision_scale(typmod)
    assert found is not None
    return found[1]
