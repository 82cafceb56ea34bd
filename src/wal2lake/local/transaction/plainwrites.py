"""INSERT, UPDATE and DELETE of a few rows, without a Spark job on the table.

Takes a statement on a table under its locks, or on a branch. Returns the number of changed rows, or
None if the statement has to be executed by Spark.

Rows are found in the table's files. Spark still computes the new values of an UPDATE, so that
values don't depend on the method: it gets these rows only, as constants. Columns that the statement
does not name keep the stored values. New values that are constants themselves
(``query.constants``), and those of an INSERT, need no Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from wal2lake.errors import UsageError
from wal2lake.lake import CommitConflict
from wal2lake.lake.plain import FoundRows, PlainChange
from wal2lake.local.ports import HasQueries, HasTables
from wal2lake.local.transaction.generation import with_generated
from wal2lake.pg import Check
from wal2lake.sql.query.changes.stored import SparkWrite, about_null
from wal2lake.sql.query.changes.updates import new_values_sql
from wal2lake.sql.query.matching import bounds, can_compare, matches
from wal2lake.sql.query.plain import PlainInsert, PlainWrite

_MOST_ROWS: Final = 1000
"""Limit of an UPDATE's rows, whose values become part of a statement's text."""

_MOST_TEXT: Final = 1 << 20
"""Limit of the values' characters."""


class _NeedsSpark(Exception):
    """Raised if Spark must execute the statement."""


Commit = Callable[[PlainChange, FoundRows, pa.Table | None], None]
"""Commits the rows that are replaced, and their new rows."""


@dataclass(frozen=True, slots=True)
class FoundChange:
    """The rows that an UPDATE or DELETE changes."""

    change: PlainChange
    places: FoundRows
    old: pa.Table | None
    """The rows, with all columns, if a caller needs them."""
    new: pa.Table | None
    """The rows of an UPDATE with their new values, without those of generated columns."""


def change_plainly(
    node: HasQueries, write: SparkWrite, job_group: str, check: Check, commit: Commit
) -> int | None:
    """Execute the write; returns None if nothing has happened.

    ``check`` raises if the statement shall end."""
    plain = write.plain
    if plain is None:
        return None
    if isinstance(plain, PlainInsert):
        return _insert(node, write, plain, check, commit)
    found_change = find_plainly(node, write, plain, job_group, check)
    if found_change is None:
        return None
    if len(found_change.places):
        check()
        new_rows = found_change.new
        try:
            if new_rows is not None:
                new_rows = with_generated(
                    write.table, found_change.change.state, new_rows
                )
            commit(found_change.change, found_change.places, new_rows)
        except CommitConflict:
            # After a conflict with a writer outside of the node, Delta decides.
            return None
    return len(found_change.places)


def find_plainly(
    node: HasQueries,
    write: SparkWrite,
    plain: PlainWrite,
    job_group: str,
    check: Check,
    *,
    fetch: bool = False,
) -> FoundChange | None:
    """Find the rows of an UPDATE or DELETE; None if Spark must find them.

    ``fetch``: a DELETE needs the rows, too."""
    condition = plain.condition
    limits = {} if condition is None else bounds(condition)
    change = PlainChange.of(node.tables, write.table.location, limits)
    needed = set() if condition is None else condition.columns()
    named = {*needed, *plain.reads, *(name for name, _ in plain.values)}
    if change is None or not change.has(sorted(named)):
        return None

    def select(rows: pa.Table) -> Any:
        if condition is None:
            return None
        if not can_compare(rows.schema, condition):
            raise _NeedsSpark
        return matches(rows, condition)

    try:
        places = change.find(sorted(needed), select, check)
        rows = new_rows = None
        if plain.values and len(places) > _MOST_ROWS:
            return None
        if plain.values or fetch:
            rows = change.rows(places) if len(places) else None
            if len(places) and rows is None:
                return None
        if plain.values and plain.constants is None:
            new_rows = _updated(node, write, plain, change, rows, job_group)
        elif plain.values and rows is not None:
            new_rows = _with_constants(plain, rows)
    except (_NeedsSpark, CommitConflict):
        return None
    return FoundChange(change, places, rows, new_rows)


def _insert(
    node: HasTables,
    write: SparkWrite,
    plain: PlainInsert,
    check: Check,
    commit: Commit,
) -> int | None:
    change = PlainChange.adding(node.tables, write.table.location)
    new_rows = None if change is None else plain_rows(change, plain)
    if change is None or new_rows is None:
        return None
    check()
    new_rows = with_generated(write.table, change.state, new_rows)
    try:
        commit(change, FoundRows.nothing(), new_rows)
    except CommitConflict:
        return None
    return len(plain.rows)


def plain_rows(change: PlainChange, plain: PlainInsert) -> pa.Table | None:
    """Return the rows of an INSERT; None if the table's columns have other types."""
    return change.table_of(plain.columns, plain.rows)


def _with_constants(plain: PlainWrite, rows: pa.Table) -> pa.Table:
    assert plain.constants is not None
    for (name, _), value in zip(plain.values, plain.constants, strict=True):
        place = rows.schema.get_field_index(name)
        kind = rows.schema.field(place)
        if pa.types.is_timestamp(kind.type) and kind.type.unit != "us":
            # The value is a number of microseconds.
            raise _NeedsSpark
        try:
            new = pa.array([value] * rows.num_rows, kind.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            # The files store another type.
            raise _NeedsSpark from None
        rows = rows.set_column(place, kind, new)
    return rows


def _updated(
    node: HasQueries,
    write: SparkWrite,
    plain: PlainWrite,
    change: PlainChange,
    rows: pa.Table | None,
    job_group: str,
) -> pa.Table | None:
    """Return the rows with their new values; without rows, only check the values by Spark."""
    kinds = {field.name: field.spark_ddl for field in change.state.fields}
    old_values: list[list[str | None]] = []
    if rows is not None:
        columns = [_texts(rows.column(name)) for name in plain.reads]
        old_values = [[column[i] for column in columns] for i in range(rows.num_rows)]
        if sum(len(text or "") for row in old_values for text in row) > _MOST_TEXT:
            raise _NeedsSpark
    sql = new_values_sql(plain, kinds, old_values)
    try:
        result = node.queries.run(sql, job_group=job_group)
        batches = [batch for batch in result.batches if batch.num_rows]
    except UsageError as error:
        error.about = about_null(error, write.table)
        raise
    if rows is None:
        return None
    values = pa.Table.from_batches(batches).sort_by("n")
    for i, (name, _) in enumerate(plain.values):
        place = rows.schema.get_field_index(name)
        kind = rows.schema.field(place)
        try:
            new = values.column(f"v{i}").cast(kind.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise _NeedsSpark from None
        rows = rows.set_column(place, kind, new)
    return rows


def _texts(values: pa.ChunkedArray) -> list[str | None]:
    """Return values as texts, if the texts are exact; else raise."""
    kind = values.type
    if not (
        pa.types.is_string(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal128(kind)
    ):
        raise _NeedsSpark
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts
