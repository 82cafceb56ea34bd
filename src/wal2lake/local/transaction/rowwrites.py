"""Writes whose rows pass through the node, because the statement returns them.

Takes a translated statement with RETURNING; finds its rows, or computes those of an INSERT, gives
them to the caller, and then writes them as ``plainwrites`` does: one commit, with deletion vectors
for the rows that are replaced and one file for the new rows. Spark only answers queries: it finds
rows that a condition needs it for, and computes values. So the rows that are returned are those
that are written, and they are known before anything is.

The rows are held in memory, so their size is limited.

Source: ExecProcessReturning() in nodeModifyTable.c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wal2lake.catalog import TableDef
from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.lake import CommitConflict, TableState
from wal2lake.lake.capture import MovedKey
from wal2lake.lake.plain import FoundRows, PlainChange
from wal2lake.local.ports import HasQueries
from wal2lake.local.transaction.generation import with_generated
from wal2lake.local.transaction.plainwrites import (
    Commit,
    FoundChange,
    find_plainly,
    plain_rows,
)
from wal2lake.pg import Check
from wal2lake.pgtypes import arrow_from_ddl
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.sql.query.changes.returning import ROWS, ValuesOfRows
from wal2lake.sql.query.changes.stored import (
    RowWrite,
    SparkWrite,
    about_null,
    identifying,
)
from wal2lake.sql.query.plain import PlainInsert, PlainWrite

_MOST_BYTES: Final = 32 << 20
"""Limit of the rows of a statement."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The rows that a statement is about to write or to remove."""

    count: int
    proposed: int
    """The rows for which an INSERT has values of sequences."""
    state: TableState
    old: pa.Table | None = None
    """The rows before the statement; None for an INSERT."""
    new: pa.Table | None = None
    """The rows after the statement, in the same order; None for a DELETE."""
    excluded: pa.Table | None = None
    """The rows that an INSERT could not insert, if ``new`` is not known yet."""
    updated: int = 0
    """The rows that an INSERT ... ON CONFLICT updates."""
    others: tuple[tuple[str, pa.ChunkedArray], ...] = ()
    """The Spark types and values of the columns of other tables that RETURNING reads."""


Take = Callable[[ChangedRows], None]
"""Is given the rows before they are written."""


def change_rows(
    node: HasQueries,
    write: SparkWrite,
    by_rows: RowWrite,
    job_group: str,
    check: Check,
    commit: Commit,
    take: Take,
) -> int:
    """Execute a statement that returns rows; returns their number.

    ``check`` raises if the statement shall end."""
    others: tuple[tuple[str, pa.ChunkedArray], ...] = ()
    if write.verb == "INSERT":
        change = added_rows(node, write, by_rows, job_group)
    else:
        plain, plain_change = write.plain, None
        if isinstance(plain, PlainWrite):
            plain_change = find_plainly(
                node, write, plain, job_group, check, fetch=True
            )
        if plain_change is None:
            plain_change, others = _found_by_spark(node, write, by_rows, job_group)
        change = plain_change
    new_rows = change.new
    if new_rows is not None:
        new_rows = with_generated(write.table, change.change.state, new_rows)
    count = len(change.places) if new_rows is None else new_rows.num_rows
    state = change.change.state
    take(ChangedRows(count, count, state, change.old, new_rows, others=others))
    if count:
        check()
        commit(change.change, change.places, new_rows)
    return count


# ---- finding the rows ----------------------------------------------------------------


def added_rows(
    node: HasQueries, write: SparkWrite, by_rows: RowWrite, job_group: str
) -> FoundChange:
    """Return the rows of an INSERT, without the values of generated columns."""
    change = PlainChange.adding(node.tables, write.table.location)
    if change is None:
        raise refused(write)
    rows = None
    if isinstance(write.plain, PlainInsert):
        rows = plain_rows(change, write.plain)
    if rows is None:
        stored, _ = _query(node, write, by_rows.query, job_group)
        by_name = dict(
            zip((c.name for c in write.table.columns), stored.columns, strict=True)
        )
        arrays = []
        for field in change.state.fields:
            kind = arrow_from_ddl(field.spark_ddl)
            values = by_name.get(field.name)
            if values is None:
                values = pa.nulls(stored.num_rows, kind)
            arrays.append(cast_values(write, values, kind))
        names = [field.name for field in change.state.fields]
        rows = pa.Table.from_arrays(arrays, names=names)
    return FoundChange(change, FoundRows.nothing(), None, rows)


def _found_by_spark(
    node: HasQueries, write: SparkWrite, by_rows: RowWrite, job_group: str
) -> tuple[FoundChange, tuple[tuple[str, pa.ChunkedArray], ...]]:
    version = node.tables.state(write.table.location).version
    rows, ddls = _query(node, write, by_rows.query, job_group)
    rows = rows.take(_first_of_each(rows))
    names = sorted(set(rows.column(0).to_pylist()))
    change = PlainChange.at(node.tables, write.table.location, names)
    if change is None:
        raise refused(write)
    if change.state.version != version:
        # A writer outside of the node was between, so the places may be wrong.
        raise CommitConflict(
            "could not serialize access due to concurrent update",
            hint="The transaction might succeed if retried.",
        )
    numbers = {name: number for number, name in enumerate(names)}
    places = FoundRows(
        np.asarray([numbers[name] for name in rows.column(0).to_pylist()], np.int64),
        rows.column(1).to_numpy().astype(np.int64),
    )
    first_other = 2 + len(by_rows.sets)
    others = tuple(zip(ddls[first_other:], rows.columns[first_other:], strict=True))
    if not rows.num_rows:
        return FoundChange(change, places, None, None), others
    old_rows = change.rows(places)
    if old_rows is None:
        raise too_large()
    new_rows = None
    if write.verb == "UPDATE":
        new_rows = old_rows
        for number, name in enumerate(by_rows.sets, 2):
            place = new_rows.schema.get_field_index(name)
            kind = new_rows.schema.field(place)
            new = cast_values(write, rows.column(number), kind.type)
            new_rows = new_rows.set_column(place, kind, new)
    return FoundChange(change, places, old_rows, new_rows), others


def _first_of_each(rows: pa.Table) -> pa.Array:
    """Return the numbers of the rows without those whose place an earlier row has.

    If a row joins several rows of other tables, it is changed once, with one of them."""
    seen: set[tuple[str, int]] = set()
    kept = []
    places = zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)
    for number, place in enumerate(places):
        if place not in seen:
            seen.add(place)
            kept.append(number)
    return pa.array(kept, pa.int64())


def _query(
    node: HasQueries, write: SparkWrite, sql: str, job_group: str
) -> tuple[pa.Table, list[str]]:
    """Return the result of a query, and the Spark types of its columns."""
    batches, size = [], 0
    try:
        result = node.queries.run(sql, job_group=job_group)
        with result.batches:
            for batch in result.batches:
                size += batch.nbytes
                if size > _MOST_BYTES:
                    raise too_large()
                batches.append(batch)
    except UsageError as error:
        error.about = error.about or about_null(error, write.table)
        raise
    names = [str(n) for n in range(len(result.schema))]
    table = pa.Table.from_batches(batches, result.schema).rename_columns(names)
    return table, [field.spark_ddl for field in result.fields]


def cast_values(write: SparkWrite, values: Any, kind: pa.DataType) -> Any:
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise refused(write) from None


def refused(write: SparkWrite) -> FeatureNotSupportedError:
    """Return the error for a table whose rows the node cannot change itself."""
    assert write.by_rows is not None
    clause = "RETURNING" if write.by_rows.conflict is None else "ON CONFLICT"
    return FeatureNotSupportedError(
        f'{write.verb} with {clause} is not supported for relation "{write.table.name}"',
        detail="Only Spark can change rows of its files.",
    )


def too_large() -> UsageError:
    """Return the error for rows that do not fit into memory."""
    return UsageError(
        "rows of a statement with RETURNING or ON CONFLICT need too much memory",
        sqlstate="53200",
        detail=f"The limit is {_MOST_BYTES} bytes.",
    )


# ---- what is made of them --------------------------------------------------------------


def computed_values(
    node: HasQueries,
    table: TableDef,
    values: ValuesOfRows,
    changed: ChangedRows,
    job_group: str,
) -> pa.Table:
    """Return values that are computed from the rows of a statement, in the same order."""
    if not changed.count:
        return pa.table({})
    kinds, arrays = [], []
    for place in values.reads:
        ddl, array = _values_at(table, changed, place)
        kinds.append(f"{place} {ddl}")
        arrays.append(array)
    names = list(values.reads)
    if values.choice is not None:
        chosen = [arrays[names.index(name)] for name in values.choice]
        return pa.Table.from_arrays(chosen, names=[f"v{n}" for n in range(len(chosen))])
    # The number of the row keeps the order, and lets a list read no column.
    numbers = pa.array(range(changed.count), pa.int64())
    rows = pa.Table.from_arrays([numbers, *arrays], names=["r", *names])
    with node.queries.rows(rows, ", ".join(["r bigint", *kinds])) as view:
        relation = view
        if values.subqueries:
            relation = f"(SELECT {ROWS}.*, {values.subqueries} FROM {view} AS {ROWS})"
        sql = f"SELECT {ROWS}.r, {values.items} FROM {relation} AS {ROWS}"
        result = node.queries.run(sql, job_group=job_group)
        with result.batches:
            batches = list(result.batches)
    result_rows = pa.Table.from_batches(batches, result.schema)
    numbered = result_rows.rename_columns(
        ["r", *(f"v{n}" for n in range(result_rows.num_columns - 1))]
    )
    return numbered.sort_by("r").select(range(1, result_rows.num_columns))


def _values_at(
    table: TableDef, changed: ChangedRows, place: str
) -> tuple[str, pa.ChunkedArray]:
    """Return the Spark type and the values of a column of the rows' relation."""
    side, number = place[0], int(place[1:])
    if side == "x":
        return changed.others[number]
    name = table.columns[number].name
    field = next(f for f in changed.state.fields if f.name == name)
    rows = {"n": changed.new, "o": changed.old, "e": changed.excluded}[side]
    if rows is None:
        kind = arrow_from_ddl(field.spark_ddl)
        return field.spark_ddl, pa.chunked_array([pa.nulls(changed.count, kind)])
    return field.spark_ddl, rows.column(name)


def moved_keys(write: SparkWrite, changed: ChangedRows, most: int) -> list[MovedKey]:
    """Return the keys that an UPDATE changes, in capture's form; no more than ``most``."""
    columns = identifying(write.table)
    if changed.old is None or changed.new is None:
        return []
    if any(column.generated is not None for column in columns):
        # Capture identifies these rows by their content.
        return []
    old, new = (
        list(zip(*(_texts(rows.column(c.name), c) for c in columns), strict=True))
        for rows in (changed.old, changed.new)
    )
    # A row that INSERT ... ON CONFLICT has inserted has no old key. No row has a key of NULLs.
    moved = (
        MovedKey(before, after)
        for before, after in zip(old, new, strict=True)
        if before != after and not (write.table.key and None in before)
    )
    return list(islice(moved, most))


def keys_to_move(
    node: HasQueries, write: SparkWrite, job_group: str, most: int
) -> list[MovedKey]:
    """Return the keys that an UPDATE of Spark's is about to change, in capture's form; no more than
    ``most``."""
    columns = identifying(write.table)
    moved: list[MovedKey] = []
    sql = f"{write.moves} LIMIT {most}"
    for batch in node.queries.run(sql, job_group=job_group).batches:
        texts = [
            arrow_to_text(array, int(column.type_oid), column.typmod)
            for array, column in zip(batch.columns, columns * 2, strict=True)
        ]
        values = [[t if t is None else t.decode() for t in column] for column in texts]
        old, new = values[: len(columns)], values[len(columns) :]
        moved += map(MovedKey, zip(*old, strict=True), zip(*new, strict=True))
    return moved


def _texts(values: pa.ChunkedArray, column: Any) -> Sequence[str | None]:
    array = values.combine_chunks()
    texts = arrow_to_text(array, int(column.type_oid), column.typmod)
    return [text if text is None else text.decode() for text in texts]
