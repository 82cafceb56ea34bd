"""INSERT ... ON CONFLICT: rows that are inserted, updated or left out.

Takes a translated INSERT whose rows may have keys that the table has already; computes the rows as
PostgreSQL does before it looks for conflicts (defaults, generated columns, NOT NULL, CHECK), finds
the keys in the table's files, and writes what the clause says as one commit.

    the key of a row is            DO NOTHING    DO UPDATE
    ----------------------------   -----------   ---------------------------------------
    nowhere                        inserted      inserted
    in the table                   left out      that row is updated, if the condition is true
    that of an earlier row that    left out      21000
      the statement has written

The conditions and values of DO UPDATE do not depend on what the statement has written, so they are
computed at once. No other session can write the keys meanwhile: an autocommit statement holds the
table, and a block is checked at its COMMIT, where another's row of the same key is 23505.

Source: ExecInsert() and ExecOnConflictUpdate() in nodeModifyTable.c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.catalog import TableDef
from wal2lake.errors import About, UsageError
from wal2lake.lake.plain import FoundRows, PlainChange
from wal2lake.local.ports import HasQueries
from wal2lake.local.transaction.generation import with_generated
from wal2lake.local.transaction.plainwrites import Commit
from wal2lake.local.transaction.rowwrites import (
    ChangedRows,
    Take,
    added_rows,
    cast_values,
    computed_values,
    refused,
    too_large,
)
from wal2lake.local.transaction.writtenchecks import refuse_rows
from wal2lake.pg import Check
from wal2lake.sql.query.changes.stored import OnConflict, RowWrite, SparkWrite


@dataclass(frozen=True, slots=True)
class _Meeting:
    """The proposed rows, and the rows of the table that have their keys."""

    change: PlainChange
    proposed: pa.Table
    numbers: list[int]
    """For each proposed row, the number of its key."""
    place: dict[int, int]
    """For the number of a key, the position of its row in ``places``."""
    places: FoundRows


@dataclass(frozen=True, slots=True)
class _Decided:
    """The rows that the statement writes, in the order of the proposed rows."""

    proposed: list[int]
    """The number of the proposed row of each written row."""
    pair: list[int | None]
    """For each written row, the pair that updates it; None for an inserted row."""


def upsert_rows(
    node: HasQueries,
    write: SparkWrite,
    by_rows: RowWrite,
    conflict: OnConflict,
    job_group: str,
    check: Check,
    commit: Commit,
    take: Take,
) -> int:
    """Execute the statement; returns the number of rows inserted and updated.

    ``check`` raises if the statement shall end."""
    met = _meet(node, write, by_rows, job_group)
    meeting = [row for row, key in enumerate(met.numbers) if key in met.place]
    pairs = {row: number for number, row in enumerate(meeting)}
    old = values = None
    if conflict.values is not None and meeting:
        old = _rows_there(met, meeting)
        excluded = met.proposed.take(pa.array(meeting, pa.int64()))
        state = met.change.state
        compared = ChangedRows(len(meeting), 0, state, old=old, excluded=excluded)
        values = computed_values(
            node, write.table, conflict.values, compared, job_group
        )
    decided = _decide(met, pairs, conflict, values)
    new_rows = met.proposed.take(pa.array(decided.proposed, pa.int64()))
    replaced = [row for row in decided.proposed if row in pairs]
    if replaced:
        assert old is not None and values is not None
        updated = _updated(write, conflict, old, values)
        new_rows = _merged(met.proposed, updated, decided)
        _refuse_nulls(write.table, conflict, new_rows)
        new_rows = with_generated(write.table, met.change.state, new_rows)
    old_rows = None
    if old is not None:
        # An inserted row has a row of NULLs.
        old_rows = old.take(pa.array(decided.pair, pa.int64()))
    count = len(decided.proposed)
    take(
        ChangedRows(
            count,
            met.proposed.num_rows,
            met.change.state,
            old_rows,
            new_rows,
            updated=len(replaced),
        )
    )
    if count:
        check()
        chosen = np.asarray([met.place[met.numbers[row]] for row in replaced], np.int64)
        gone = FoundRows(met.places.file[chosen], met.places.row[chosen])
        commit(met.change, gone, new_rows)
    return count


def _meet(
    node: HasQueries,
    write: SparkWrite,
    by_rows: RowWrite,
    job_group: str,
) -> _Meeting:
    added = added_rows(node, write, by_rows, job_group)
    assert added.new is not None
    proposed = with_generated(write.table, added.change.state, added.new)
    refuse_rows(write.table, added.change.state, proposed)
    change = PlainChange.at(node.tables, write.table.location)
    if change is None:
        raise refused(write)
    if not proposed.num_rows:
        return _Meeting(change, proposed, [], {}, FoundRows.nothing())
    found_keys = change.find_keys(write.table.key, proposed)
    if found_keys is None:
        raise refused(write)
    place = {key: position for position, key in enumerate(found_keys.key.tolist())}
    return _Meeting(
        change, proposed, found_keys.numbers.tolist(), place, found_keys.places
    )


def _rows_there(met: _Meeting, meeting: list[int]) -> pa.Table:
    """Return the table's rows that have the keys of these proposed rows, in their order."""
    positions_met = sorted({met.place[met.numbers[row]] for row in meeting})
    places = np.asarray(positions_met, np.int64)
    rows = met.change.rows(FoundRows(met.places.file[places], met.places.row[places]))
    if rows is None:
        raise too_large()
    positions = {position: number for number, position in enumerate(positions_met)}
    order = [positions[met.place[met.numbers[row]]] for row in meeting]
    return rows.take(pa.array(order, pa.int64()))


def _decide(
    met: _Meeting,
    pairs: dict[int, int],
    conflict: OnConflict,
    values: pa.Table | None,
) -> _Decided:
    chosen: list[bool | None] | None = None
    if conflict.is_conditional and values is not None:
        chosen = values.column(values.num_columns - 1).to_pylist()
    written: set[int] = set()
    decided = _Decided([], [])
    for row, key in enumerate(met.numbers):
        pair = pairs.get(row)
        if conflict.values is None:
            if pair is not None or key in written:
                continue
        elif key in written:
            raise UsageError(
                "ON CONFLICT DO UPDATE command cannot affect row a second time",
                sqlstate="21000",
                hint="Ensure that no rows proposed for insertion within the same command"
                " have duplicate constrained values.",
            )
        elif pair is not None and chosen is not None and not chosen[pair]:
            continue
        written.add(key)
        decided.proposed.append(row)
        decided.pair.append(pair)
    return decided


def _updated(
    write: SparkWrite,
    conflict: OnConflict,
    old: pa.Table,
    values: pa.Table,
) -> pa.Table:
    """Return the rows that are there with the values of DO UPDATE, for all pairs."""
    rows = old
    for number, name in enumerate(conflict.sets):
        place = rows.schema.get_field_index(name)
        kind = rows.schema.field(place)
        new = cast_values(write, values.column(number), kind.type)
        rows = rows.set_column(place, kind, new)
    return rows


def _merged(proposed: pa.Table, updated: pa.Table, decided: _Decided) -> pa.Table:
    """Return the written rows: inserted ones as proposed, others as updated."""
    both = pa.concat_tables([proposed, updated.cast(proposed.schema)])
    order = [
        row if pair is None else proposed.num_rows + pair
        for row, pair in zip(decided.proposed, decided.pair, strict=True)
    ]
    return both.take(pa.array(order, pa.int64()))


def _refuse_nulls(table: TableDef, conflict: OnConflict, rows: pa.Table) -> None:
    """Raise 23502 if DO UPDATE assigns NULL to a column that is NOT NULL."""
    for name in conflict.sets:
        column = table.column(name)
        assert column is not None
        if not column.not_null or column.generated is not None:
            continue
        if pc.any(pc.is_null(rows.column(name))).as_py():
            raise UsageError(
                f'null value in column "{name}" of relation "{table.name}"'
                " violates not-null constraint",
                sqlstate="23502",
                about=About(table.namespace, table.name, column=name),
            )
