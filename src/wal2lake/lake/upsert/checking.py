"""Generated columns and CHECK constraints of the rows that UPDATEs make.

Comes in: the events of a batch, and then the rows that some of them have made. Goes out: which
events have to be looked at, the rows with their generated columns, and the first event whose row
cannot have them or violates a constraint. Called by ``plan.py``.

PostgreSQL checks the row that an UPDATE makes of the one that it finds. An UPDATE all of whose
values are sent, and good, needs no look at anything else; one that is not good may find no row,
and one with values that are not sent (unchanged TOAST, columns of the target's own) becomes a row
only when its own is known. INSERTs are checked when they are staged, and so are generated columns
computed that read nothing that was not sent (``rowchanges``).

Source: ExecSimpleRelationUpdate() in execReplication.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.staging.changes import UPDATE, ChangeShape, RowFailure, Seq
from wal2lake.lake.staging.checks import explained, violating
from wal2lake.lake.staging.generated import computed, inputs_of, missing_value
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.lives.lives import STORED, Events, HeldRow, Lives, Mask


def watched_events(
    rules: ConflictRules, shape: ChangeShape, table: pa.Table, events: Events
) -> Mask | None:
    """The events whose rows have to be looked at; None: none."""
    if not rules.looks_at_rows:
        return None
    updates = np.asarray(events.op == UPDATE)
    wanted = {name for check in rules.checks for name in check.columns}
    wanted |= inputs_of(rules.generated)
    unknown = np.zeros(len(updates), np.bool_)
    for i, mask in events.unknown.items():
        if shape.fields[i].name in wanted:
            unknown |= mask
    known = updates & ~unknown
    watched: Mask = updates & unknown
    if known.any():
        at = np.flatnonzero(known)
        rows = _new_rows(shape, table.take(pa.array(at)))
        rows, failed = computed(rules.generated, shape.fields, rows)
        wrong = violating(rules.checks, rows) | _missing(rules, rows)
        wrong[[one.row for one in failed]] = True
        watched[at] = wrong
    return watched if watched.any() or rules.resolutions.chosen else None


def _new_rows(shape: ChangeShape, table: pa.Table) -> pa.Table:
    return pa.table(
        [table.column(f"n{i}") for i in range(len(shape.fields))],
        names=[field.name for field in shape.fields],
    )


def _missing(rules: ConflictRules, rows: pa.Table) -> Mask:
    """Rows in which a generated column is null that must not be."""
    found = np.zeros(rows.num_rows, np.bool_)
    for name, _ in rules.generated:
        if name in rules.required:
            found |= pc.is_null(rows.column(name)).to_numpy().astype(np.bool_)
    return found


def generated_anew(
    rules: ConflictRules,
    shape: ChangeShape,
    rows: pa.Table,
    lives: Lives,
    events: Events,
) -> pa.Table:
    """The rows to be written with generated columns where they have values of several events, or of
    the stored row: what their last event says of these columns is not of them."""
    names = {name for name, _ in rules.generated}
    where = np.zeros(len(lives.last), np.bool_)
    staged = lives.last < len(events.op)
    for i, unknown in events.unknown.items():
        if shape.fields[i].name in names:
            where[staged] |= unknown[lives.last[staged]]
    return computed(rules.generated, shape.fields, rows, where)[0]


def judged_rows(
    rules: ConflictRules, shape: ChangeShape, table: pa.Table, rows: Sequence[HeldRow]
) -> pa.Table:
    """The rows, which are in ``table``, as an expression of a conflict's resolution sees them:
    generated columns are of the row as it would be."""
    made = np.array([row.last != STORED for row in rows], np.bool_)
    return computed(rules.generated, shape.fields, table, made)[0]


def first_unfit(
    rules: ConflictRules,
    shape: ChangeShape,
    table: pa.Table,
    events: Sequence[int],
    rows: pa.Table,
) -> tuple[int, RowFailure] | None:
    """The first of the events whose row, in ``rows``, has a generated column that cannot be, or
    violates a constraint."""
    rows, failed = computed(rules.generated, shape.fields, rows)
    good = np.ones(rows.num_rows, np.bool_)
    good[[one.row for one in failed]] = False
    missing = missing_value(rules.generated, rules.required, rules.relation, rows, good)
    found = [*failed[:1], *(() if missing is None else (missing,))]
    first = min(found, key=lambda one: one.row, default=None)
    at = np.flatnonzero(violating(rules.checks, rows) & good)
    if first is not None and not (at.size and at[0] < first.row):
        event = events[first.row]
        failure = _failure(table, event, first.sqlstate, first.message)
        column = first.column if first.hint is None else None
        return event, replace(failure, column=column, hint=first.hint)
    if not at.size:
        return None
    place = int(at[0])
    event = events[place]
    why = explained(rules.checks, rules.relation, shape.fields, rows.slice(place, 1))
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
