"""A table and its counterpart as the two sides of a comparison.

Comes in: both ends, and the descriptions of both tables. Goes out: ``compare``'s arguments. Called
by ``comparing``.

    end that hashes     the server computes digests over its rows; one line for each block arrives
    end that does not   its rows are read by COPY, and hashed here

The form of a column is decided for both ends together:

    integers of any width, both ends       bigint
    the same fixed type, both ends hash    that type in binary format (real: double precision)
    everything else                        the text of the type's output function

Columns of the source are compared, by name. Columns that only the target has are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wal2lake.cli.verify.pairs.copied import CopyRead
from wal2lake.cli.verify.pairs.ends import ComparedEnd
from wal2lake.pg import RemoteColumn, RemoteTable
from wal2lake.verify import (
    ColumnForm,
    Comparison,
    LakeSide,
    NotComparable,
    ServerSide,
    TableStatements,
    ValueForm,
    compare,
)

_MONEY: Final = 790

_INTEGERS: Final = frozenset({20, 21, 23, 26})
_FLOATS: Final = frozenset({700, 701})

_FIXED: Final = {
    16: ValueForm.BOOL,
    17: ValueForm.BYTES,
    700: ValueForm.FLOAT,
    701: ValueForm.FLOAT,
    1082: ValueForm.DATE,
    1114: ValueForm.TIMESTAMP,
    1184: ValueForm.TIMESTAMPTZ,
}
"""The forms of types that servers send in binary format."""


@dataclass(frozen=True, slots=True)
class TablePair:
    """A table at both ends."""

    source: RemoteTable
    target: RemoteTable
    where: str | None = None
    """A condition that rows of both ends must meet."""


def compare_pair(
    source: ComparedEnd,
    target: ComparedEnd,
    pair: TablePair,
    progress: Callable[[int], None],
) -> Comparison:
    """Compare a table with its counterpart. ``progress``: is told the number of rows that have been
    read by COPY. Raises NotComparable with the reason."""
    columns, forms = _columns(source, target, pair)
    key = tuple(columns.index(name) for name in pair.source.key if name in columns)
    if len(key) != len(pair.source.key):
        key = ()
    theirs = _side(
        source,
        pair.source,
        _relation(pair.source, pair.source.row_filters, pair.where),
        columns,
        tuple(form for form, _ in forms),
        key,
        progress,
    )
    ours = _side(
        target,
        pair.target,
        _relation(pair.target, (), pair.where),
        columns,
        tuple(form for _, form in forms),
        key,
        progress,
    )
    return compare(theirs, ours, columns, key)


def _columns(
    source: ComparedEnd, target: ComparedEnd, pair: TablePair
) -> tuple[tuple[str, ...], list[tuple[ColumnForm, ColumnForm]]]:
    counterparts = {column.name: column for column in pair.target.columns}
    if not pair.source.columns:
        raise NotComparable("it has no columns")
    missing = [c.name for c in pair.source.columns if c.name not in counterparts]
    if missing:
        raise NotComparable(f"column {missing[0]} is not at the target")
    forms = [
        _forms(column, counterparts[column.name], source.hashes and target.hashes)
        for column in pair.source.columns
    ]
    return tuple(column.name for column in pair.source.columns), forms


def _forms(
    source: RemoteColumn, target: RemoteColumn, both_hash: bool
) -> tuple[ColumnForm, ColumnForm]:
    types = {int(source.type_oid), int(target.type_oid)}
    if _MONEY in types:
        raise NotComparable("the text of type money depends on lc_monetary")
    form = ValueForm.TEXT
    if types <= _INTEGERS:
        form = ValueForm.INTEGER
    elif both_hash and (len(types) == 1 or types <= _FLOATS):
        form = _FIXED.get(int(source.type_oid), ValueForm.TEXT)
    return ColumnForm(form, source.type_oid), ColumnForm(form, target.type_oid)


def _relation(table: RemoteTable, filters: tuple[str, ...], where: str | None) -> str:
    conditions = []
    if filters:
        conditions.append(" OR ".join(f"({text})" for text in filters))
    if where is not None:
        conditions.append(where)
    only = "ONLY " if table.kind == "r" else ""
    condition = " AND ".join(f"({text})" for text in conditions)
    return f"{only}{table.qualified}" + (f" WHERE {condition}" if conditions else "")


def _side(
    end: ComparedEnd,
    table: RemoteTable,
    relation: str,
    columns: tuple[str, ...],
    forms: tuple[ColumnForm, ...],
    key: tuple[int, ...],
    progress: Callable[[int], None],
) -> ServerSide | LakeSide:
    statements = TableStatements(relation, columns, forms, key)
    if end.hashes:
        return ServerSide(end.session, statements)
    whole = table.qualified if relation == f"ONLY {table.qualified}" else None
    integers = tuple(form.value is ValueForm.INTEGER for form in forms)
    read = CopyRead(end.session, relation, columns, integers, whole)
    key_read = None
    if statements.is_ordered:
        first = (columns[key[0]],)
        key_read = CopyRead(end.session, relation, first, (True,), whole)
    texts = tuple(
        form if form.value is ValueForm.INTEGER else ColumnForm(ValueForm.TEXT, _TEXT)
        for form in forms
    )
    return LakeSide(read, key_read, texts, key, progress)


_TEXT: Final = 25
"""COPY gives the text of all other types."""
