"""Decides whether the publisher's unique index keeps local keys unique. Pure.

In: the index's columns with their types at the publisher, the local table. Out: True, or False if
it is not certain. If True, a copy or a batch of inserts is not checked for duplicates. If False,
rows are compared, which costs only time.

Rows that the publisher's valid index tells apart may have the same local key in two cases: the
local key lacks a column of the index, or the local type makes more values equal (text '1.0' and
'1.00' in a numeric, 0.14 and 0.11 in a numeric(2,1)).

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
"""For each built-in type, the types that hold its values without making two of them equal."""

SentType = tuple[Oid, int]
"""Type OID and typmod at the publisher."""


def keeps_apart(index: Mapping[str, SentType], table: TableDef) -> bool:
    """Whether rows that differ in the columns of ``index`` always have different keys in ``table``.

    The columns contain no nulls, because the local key refuses nulls."""
    if not index or not index.keys() <= set(table.key):
        return False
    columns = {column.name: column for column in table.columns}
    return all(
        name in columns and _differ(int(oid), typmod, columns[name])
        for name, (oid, typmod) in index.items()
    )


def _differ(oid: int, typmod: int, column: ColumnDef) -> bool:
    """Whether different values of the publisher's type stay different in the column's type."""
    built_in = type_by_oid(oid) is not None
    if column.type_name is not None:
        # A type that is not built in, for instance citext, may consider more texts equal.
        return not built_in
    local_type, limit = int(column.type_oid), column.typmod
    if local_type == _TEXT and limit == -1:
        # In every type, different values have different texts.
        return True
    if not built_in and column.domain is not None:
        oid, typmod = int(column.domain.type_oid), column.domain.typmod
    if oid != local_type:
        if local_type not in _WIDER.get(oid, ()):
            return False
        # Integers have scale 0; the other types have no typmod.
        return limit == -1 or (local_type == _NUMERIC and _scale(limit) >= 0)
    if limit in (-1, typmod):
        return True
    if local_type == _NUMERIC:
        return typmod != -1 and _scale(limit) >= _scale(typmod)
    return False


def _scale(typmod: int) -> int:
    precision_scale = numeric_precision_scale(typmod)
    assert precision_scale is not None
    return precision_scale[1]
