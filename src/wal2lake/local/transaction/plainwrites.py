"""INSERT, UPDATE and DELETE of a few rows, without a job of Spark's on the table.

Comes in: a statement on a table under its locks, or on a branch. Goes out: how many rows it has
changed; or nothing, and then it is for Spark to do.

Rows are found in the table's files. What an UPDATE makes of them is still Spark's to say, so that
a value is what it would be otherwise: it is asked about these rows alone, as constants. Columns
that the statement does not name keep the values that are stored. Nobody is asked for new values
that are constants themselves (``query.constants``), those of an INSERT among them.

Called by ``local``. Source: PostgreSQL manual, INSERT, UPDATE, DELETE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from wal2lake.errors import UsageError
from wal2lake.lake import CommitConflict
from wal2lake.lake.plain.change import FoundRows, PlainChange
from wal2lake.local.node import EngineParts
from wal2lake.local.transaction.generation import with_generated
from wal2lake.pg import Check
from wal2lake.sql.query.matching import bounds, can_compare, matches
from wal2lake.sql.query.plain import PlainInsert, PlainWrite
from wal2lake.sql.query.writes import SparkWrite, about_null, new_values_sql

_MOST_ROWS: Final = 1000
"""Rows of an UPDATE at most: their values are part of a statement's text."""

_MOST_TEXT: Final = 1 << 20
"""Characters of them."""


class _SparksToDo(Exception):
    """It is more than a few rows of plain columns."""


Commit = Callable[[PlainChange, FoundRows, pa.Table | None], None]
"""Commits rows, and the rows that replace them."""


def change_plainly(
    node: EngineParts, write: SparkWrite, job_group: str, check: Check, commit: Commit
) -> int | None:
    """``check`` raises once the statement is to end. None: nothing has happened."""
    asked = write.plain
    if asked is None:
        return None
    if isinstance(asked, PlainInsert):
        return _insert(node, write, asked, check, commit)
    condition = asked.condition
    limits = {} if condition is None else bounds(condition)
    change = PlainChange.of(node.tables, write.table.location, limits)
    needed = set() if condition is None else condition.columns()
    named = {*needed, *asked.reads, *(name for name, _ in asked.values)}
    if change is None or not change.has(sorted(named)):
        return None

    def wanted(rows: pa.Table) -> Any:
        if condition is None:
            return None
        if not can_compare(rows.schema, condition):
            raise _SparksToDo
        return matches(rows, condition)

    try:
        found = change.find(sorted(needed), wanted, check)
        new = None
        if asked.values:
            if len(found) > _MOST_ROWS:
                return None
            rows = change.rows(found) if len(found) else None
            if len(found) and rows is None:
                return None
            if asked.constants is None:
                new = _updated(node, write, asked, change, rows, job_group)
            elif rows is not None:
                new = _with_constants(asked, rows)
        if len(found):
            check()
            if new is not None:
                new = with_generated(write.table, change.state, new)
            commit(change, found, new)
    except (_SparksToDo, CommitConflict):
        # A writer outside of the node was faster: Delta knows whether that is a conflict.
        return None
    return len(found)


def _insert(
    node: EngineParts,
    write: SparkWrite,
    asked: PlainInsert,
    check: Check,
    commit: Commit,
) -> int | None:
    change = PlainChange.adding(node.tables, write.table.location)
    new = None if change is None else change.table_of(asked.columns, asked.rows)
    if change is None or new is None:
        return None
    check()
    new = with_generated(write.table, change.state, new)
    try:
        commit(change, FoundRows.nothing(), new)
    except CommitConflict:
        return None
    return len(asked.rows)


def _with_constants(asked: PlainWrite, rows: pa.Table) -> pa.Table:
    assert asked.constants is not None
    for (name, _), value in zip(asked.values, asked.constants, strict=True):
        place = rows.schema.get_field_index(name)
        kind = rows.schema.field(place)
        if pa.types.is_timestamp(kind.type) and kind.type.unit != "us":
            # The value is a number of microseconds.
            raise _SparksToDo
        try:
            new = pa.array([value] * rows.num_rows, kind.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            # The files have another type.
            raise _SparksToDo from None
        rows = rows.set_column(place, kind, new)
    return rows


def _updated(
    node: EngineParts,
    write: SparkWrite,
    asked: PlainWrite,
    change: PlainChange,
    rows: pa.Table | None,
    job_group: str,
) -> pa.Table | None:
    """The rows with their new values; without rows, whether Spark takes the values."""
    kinds = {field.name: field.spark_ddl for field in change.state.fields}
    given: list[list[str | None]] = []
    if rows is not None:
        columns = [_texts(rows.column(name)) for name in asked.reads]
        given = [[column[i] for column in columns] for i in range(rows.num_rows)]
        if sum(len(text or "") for row in given for text in row) > _MOST_TEXT:
            raise _SparksToDo
    sql = new_values_sql(asked, kinds, given)
    try:
        result = node.queries.run(sql, job_group=job_group)
        batches = [batch for batch in result.batches if batch.num_rows]
    except UsageError as error:
        error.about = about_null(error, write.table)
        raise
    if rows is None:
        return None
    values = pa.Table.from_batches(batches).sort_by("n")
    for i, (name, _) in enumerate(asked.values):
        place = rows.schema.get_field_index(name)
        kind = rows.schema.field(place)
        try:
            new = values.column(f"v{i}").cast(kind.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise _SparksToDo from None
        rows = rows.set_column(place, kind, new)
    return rows


def _texts(values: pa.ChunkedArray) -> list[str | None]:
    """Values that a text says exactly, whoever reads it."""
    kind = values.type
    if not (
        pa.types.is_string(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal128(kind)
    ):
        raise _SparksToDo
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts
