"""Makes the two sides of a comparison of a table with its copy.

Comes in: the table at the source, and a version of the lake table. Goes out: a ``CopyPair``, or
the reason why the two cannot be compared. Called by VERIFY, and by copies that write differing rows
only.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal2lake.catalog import TableDef
from wal2lake.lake import TablePort
from wal2lake.lake.plain import PlainRead
from wal2lake.pg import RemoteTable, Session
from wal2lake.pgtypes import arrow_from_ddl
from wal2lake.verify.forms import NotComparable, form_of
from wal2lake.verify.sides import LakeSide, Progress, ServerSide
from wal2lake.verify.statements import TableStatements, published_rows


@dataclass(frozen=True, slots=True)
class CopyPair:
    """A table and its copy."""

    source: ServerSide
    copy: LakeSide
    columns: tuple[str, ...]
    """The columns that the source sends."""
    key: tuple[int, ...]
    """Positions of the primary key's columns; empty: no key, or not all of it is sent."""


def pair(
    session: Session,
    remote: RemoteTable,
    tables: TablePort,
    table: TableDef,
    version: int,
    progress: Progress,
) -> CopyPair:
    """Pair a table, as the session's transaction sees it, with a version of its copy.

    Raises NotComparable."""
    columns = tuple(column.name for column in remote.columns)
    missing = [name for name in columns if table.column(name) is None]
    if missing or not columns:
        raise NotComparable(
            f"column {missing[0]} is not here" if missing else "it has no columns"
        )
    read = PlainRead.of(tables, table.location, version, columns)
    if read is None:
        raise NotComparable("only Spark can read its files")
    forms = tuple(
        form_of(arrow_from_ddl(field.spark_ddl), column.type_oid, column.typmod)
        for field, column in zip(read.fields, remote.columns, strict=True)
    )
    key = tuple(columns.index(name) for name in remote.key if name in columns)
    if len(key) != len(remote.key):
        key = ()
    statements = TableStatements(
        published_rows(remote), columns, forms, key, bool(remote.row_filters)
    )
    key_read = None
    if statements.is_ordered:
        first = [columns[key[0]]]
        key_read = PlainRead.of(tables, table.location, version, first)
    return CopyPair(
        ServerSide(session, statements),
        LakeSide(read, key_read, forms, key, progress),
        columns,
        key,
    )
