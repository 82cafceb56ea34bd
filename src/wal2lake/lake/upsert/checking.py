"""Computes generated columns and checks constraints of the rows that UPDATEs make.

Comes in: the events of a batch, later the rows that some of them make. Goes out: the events whose
rows must be checked, the rows with their generated columns, and the first event whose row
violates a constraint or whose generated column cannot be computed. Called by ``plan``.

PostgreSQL checks the row that an UPDATE makes of the row that it finds. If all values of an
UPDATE were sent and satisfy the constraints, then no stored row is needed. If they do not, the
UPDATE may still find no row. If values were not sent (unchanged TOAST, columns that only the
target has), then the row is known only together with the stored one. INSERTs are checked when
they are staged, where generated columns are also computed if every column that they read was sent
(``rowchanges``). What Delta demands in Spark's SQL cannot be evaluated there: INSERTs are computed
when a run is loaded, and checked as UPDATEs are.

Source: ExecSimpleRelationUpdate() in execReplication.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import StorageError
from wal2lake.lake.staging.generated import inputs_of, missing_value
from wal2lake.lake.staging.layout import (
    INSERT,
    UPDATE,
    ChangeShape,
    RowFailure,
    Seq,
)
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.lives.lives import STORED, Events, HeldRow, Lives, Mask


def watched_events(
    rules: ConflictRules, shape: ChangeShape, table: pa.Table, events: Events
) -> Mask | None:
    """Return the events whose rows must be checked; None if there are none."""
    if not rules.looks_at_rows:
        return None
    makes = np.asarray(events.op == UPDATE)
    read_columns = {name for check in rules.checks for name in check.columns}
    read_columns |= inputs_of(rules.generated)
    if rules.demands is not None:
        makes = makes | np.asarray(events.op == INSERT)
        # Computed columns are known wherever their inputs are.
        read_columns |= rules.demands.checked - rules.demands.generated
        read_columns |= rules.demands.inputs
    unknown = np.zeros(len(makes), np.bool_)
    for i, mask in events.unknown.items():
        if shape.fields[i].name in read_columns:
            unknown |= mask
    complete = makes & ~unknown
    watched: Mask = makes & unknown
    if complete.any():
        positions = np.flatnonzero(complete)
        rows = _new_rows(shape, table.take(pa.array(positions)))
        before = rows
        rows, failed = rules.computed(shape.fields, rows)
        _refuse_lost_values(rules, before, rows)
        violations = rules.violating(rows) | _missing(rules, rows)
        violations[[failure.row for failure in failed]] = True
        watched[positions] = violations
    return watched if watched.any() or rules.resolutions.chosen else None


def with_demanded(
    rules: ConflictRules, shape: ChangeShape, table: pa.Table
) -> pa.Table:
    """Compute Delta's generated columns of staged INSERTs, and of UPDATEs that send all columns
    from which they are computed. A value that cannot be computed is null; its event is watched."""
    demands = rules.demands
    if demands is None or not demands.generated or not table.num_rows:
        return table
    names = [field.name for field in shape.fields]
    op = table.column("op").to_numpy()
    unknown = np.zeros(len(op), np.bool_)
    for name in demands.inputs:
        flag = f"u{names.index(name)}"
        if flag in table.column_names:
            unknown |= pc.fill_null(table.column(flag), False).to_numpy()
    where = ((op == INSERT) | (op == UPDATE)) & ~unknown
    rows, _ = rules.computed(shape.fields, _new_rows(shape, table), where)
    for name in demands.generated:
        number = names.index(name)
        column = rows.column(number)
        place = table.schema.get_field_index(f"n{number}")
        table = table.set_column(place, table.schema.field(place), column)
        place = table.schema.get_field_index(f"u{number}")
        if place >= 0:
            flags = pa.array((op == UPDATE) & unknown)
            table = table.set_column(place, table.schema.field(place), flags)
    return table


def first_unfit_insert(
    rules: ConflictRules, shape: ChangeShape, table: pa.Table
) -> RowFailure | None:
    """Return the failure of the first INSERT into a table without a key whose row Delta
    refuses."""
    if rules.demands is None:
        return None
    rows = _new_rows(shape, table)
    unfit = first_unfit(rules, shape, table, range(table.num_rows), rows)
    if unfit is None and rules.demands.generated:
        _refuse_lost_values(rules, rows, rules.computed(shape.fields, rows)[0])
    return None if unfit is None else unfit[1]


def _refuse_lost_values(rules: ConflictRules, before: pa.Table, now: pa.Table) -> None:
    """Raise StorageError, to try again, if a column of Delta's own has a value now that could not
    be computed when the events were loaded (``with_demanded``): the row would have NULL there."""
    if rules.demands is None:
        return
    for name in rules.demands.generated:
        lost = pc.and_(pc.is_null(before.column(name)), pc.is_valid(now.column(name)))
        if pc.any(lost).as_py():
            raise StorageError(
                f'could not compute column "{name}" of relation "{rules.relation}"',
                sqlstate="57P01",
            )


def _new_rows(shape: ChangeShape, table: pa.Table) -> pa.Table:
    return pa.table(
        [table.column(f"n{i}") for i in range(len(shape.fields))],
        names=[field.name for field in shape.fields],
    )


def _missing(rules: ConflictRules, rows: pa.Table) -> Mask:
    """Mark rows in which a generated column is null that must not be."""
    missing = np.zeros(rows.num_rows, np.bool_)
    for name, _ in rules.generated:
        if name in rules.required:
            missing |= pc.is_null(rows.column(name)).to_numpy().astype(np.bool_)
    return missing


def generated_anew(
    rules: ConflictRules,
    shape: ChangeShape,
    rows: pa.Table,
    lives: Lives,
    events: Events,
) -> pa.Table:
    """Compute generated columns of rows whose values come from several events or from the stored
    row: the values that the last event has for these columns belong to another row."""
    names = rules.computes
    where = np.zeros(len(lives.last), np.bool_)
    staged = lives.last < len(events.op)
    for i, unknown in events.unknown.items():
        if shape.fields[i].name in names:
            where[staged] |= unknown[lives.last[staged]]
    return rules.computed(shape.fields, rows, where)[0]


def judged_rows(
    rules: ConflictRules, shape: ChangeShape, table: pa.Table, rows: Sequence[HeldRow]
) -> pa.Table:
    """Return the rows of ``table`` as the expression of a resolution sees them, with the
    generated columns of the rows as they would be."""
    made = np.array([row.last != STORED for row in rows], np.bool_)
    return rules.computed(shape.fields, table, made)[0]


def first_unfit(
    rules: ConflictRules,
    shape: ChangeShape,
    table: pa.Table,
    events: Sequence[int],
    rows: pa.Table,
) -> tuple[int, RowFailure] | None:
    """Return the first event whose row, in ``rows``, has a generated column that cannot be
    computed, or violates a constraint."""
    rows, failed = rules.computed(shape.fields, rows)
    good = np.ones(rows.num_rows, np.bool_)
    good[[misfit.row for misfit in failed]] = False
    missing = missing_value(rules.generated, rules.required, rules.relation, rows, good)
    failures = [*failed[:1], *(() if missing is None else (missing,))]
    first = min(failures, key=lambda misfit: misfit.row, default=None)
    violations = np.flatnonzero(rules.violating(rows) & good)
    if first is not None and not (violations.size and violations[0] < first.row):
        event = events[first.row]
        failure = _failure(table, event, first.sqlstate, first.message)
        column = first.named_column
        return event, replace(failure, column=column, hint=first.hint)
    if not violations.size:
        return None
    place = int(violations[0])
    event = events[place]
    why = rules.explained(shape.fields, rows.slice(place, 1))
    return event, _failure(table, event, why.sqlstate, why.message, why.detail)


def _failure(
    table: pa.Table, event: int, sqlstate: str, message: str, detail: str | None = None
) -> RowFailure:
    return RowFailure(
        Seq(table.column("lsn")[event].as_py(), table.column("ord")[event].as_py()),
        None,
        sqlstate,
        message,
        detail=detail,
        op=table.column("op")[event].as_py(),
    )
