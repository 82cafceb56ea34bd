"""Judges whether the columns of an existing table can hold what the publisher sends. Pure.

A table that the subscription creates has columns that can (``wal2lake check`` shows them). An
existing table may have other columns. Those are allowed, but a value that does not fit stops the
table, or is handled by value_policies. Without this note only such a value would show it.

A column is accepted if its type holds every value: the same type at least as wide; text; a wider
number.

Source: PostgreSQL manual, 8.1 (numeric types), 8.3 (character types).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wal2lake.catalog import TableDef
from wal2lake.commands.preflight.finding import Level, TableFinding
from wal2lake.pg import RemoteColumn, RemoteTable
from wal2lake.pgtypes.registry.pg_type import (
    format_type,
    numeric_precision_scale,
    type_by_oid,
)

_INT2: Final = 21
_INT4: Final = 23
_INT8: Final = 20
_FLOAT4: Final = 700
_FLOAT8: Final = 701
_NUMERIC: Final = 1700
_TEXT: Final = 25
_VARCHAR: Final = 1043

_WIDER: Final[Mapping[int, frozenset[int]]] = {
    _INT2: frozenset({_INT4, _INT8, _FLOAT4, _FLOAT8}),
    _INT4: frozenset({_INT8, _FLOAT8}),
    _FLOAT4: frozenset({_FLOAT8}),
}

_DIGITS: Final = {_INT2: 5, _INT4: 10, _INT8: 19}
"""Number of digits of the type's largest value."""


def judge_stored(remote: RemoteTable, table: TableDef) -> list[TableFinding]:
    """Judge the columns of a table that existed before the subscription."""
    narrow = []
    for sent in remote.columns:
        have = table.column(sent.name)
        if have is None or _holds(sent, int(have.type_oid), have.typmod):
            continue
        theirs = format_type(int(sent.type_oid), sent.typmod)
        ours = format_type(int(have.type_oid), have.typmod)
        narrow.append(f'"{sent.name}" ({theirs}, here {ours})')
    if not narrow:
        return []
    hint = (
        "A value that does not fit stops the table, unless value_policies say what becomes"
        " of it. Tables that the subscription creates have columns that hold every value."
    )
    return [
        TableFinding(
            Level.NOTE,
            f"{remote.namespace}.{remote.name}",
            f"has columns that do not hold every value of the publisher's:"
            f" {', '.join(narrow)}",
            "have columns that do not hold every value of the publisher's",
            hint,
            hint,
        )
    ]


def _holds(sent: RemoteColumn, oid: int, typmod: int) -> bool:
    theirs = int(sent.type_oid)
    if oid == _TEXT or (oid == _VARCHAR and typmod < 0):
        return True
    if oid == _NUMERIC and theirs in (*_DIGITS, _NUMERIC):
        return _holds_digits(theirs, sent.typmod, typmod)
    if type_by_oid(theirs) is None or oid != theirs:
        return oid in _WIDER.get(theirs, ())
    return typmod < 0 or typmod == sent.typmod or 0 <= sent.typmod < typmod


def _holds_digits(theirs: int, sent: int, typmod: int) -> bool:
    ours = numeric_precision_scale(typmod)
    if ours is None:
        return True
    sends = (_DIGITS[theirs], 0) if theirs in _DIGITS else numeric_precision_scale(sent)
    if sends is None:
        return False
    (precision, scale), (needed, decimals) = ours, sends
    return scale >= decimals and precision - scale >= needed - decimals
