"""CHECK constraints of the rows that UPDATEs make.

Comes in: the events of a batch, and then the rows that some of them have made. Goes out: which
events have to be looked at, and the first that violates a constraint. Called by ``plan.py``.

PostgreSQL checks the row that an UPDATE makes of the one that it finds. An UPDATE all of whose
values are sent, and good, needs no look at anything else; one that is not good may find no row,
and one with values that are not sent (unchanged TOAST, columns of the target's own) becomes a row
only when its own is known. INSERTs are checked when they are staged.

Source: ExecSimpleRelationUpdate() in execReplication.c.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from wal2lake.lake.staging.changes import UPDATE, ChangeShape, RowFailure, Seq
from wal2lake.lake.staging.checks import explained, violating
from wal2lake.lake.upsert.judging import Rules
from wal2lake.lake.upsert.lives import Events, Mask


def watched_events(
    rules: Rules, shape: ChangeShape, table: pa.Table, events: Events
) -> Mask | None:
    """The events whose rows have to be looked at; None: none."""
    if not rules.checks:
        return None
    updates = np.asarray(events.op == UPDATE)
    wanted = {name for check in rules.checks for name in check.columns}
    unknown = np.zeros(len(updates), np.bool_)
    for i, mask in events.unknown.items():
        if shape.fields[i].name in wanted:
            unknown |= mask
    known = updates & ~unknown
    watched: Mask = updates & unknown
    if known.any():
        at = np.flatnonzero(known)
        rows = _new_rows(shape, table.take(pa.array(at)))
        watched[at] = violating(rules.checks, rows)
    return watched if watched.any() or rules.resolutions.chosen else None


def _new_rows(shape: ChangeShape, table: pa.Table) -> pa.Table:
    return pa.table(
        [table.column(f"n{i}") for i in range(len(shape.fields))],
        names=[field.name for field in shape.fields],
    )


def first_unfit(
    rules: Rules,
    shape: ChangeShape,
    table: pa.Table,
    events: Sequence[int],
    rows: pa.Table,
) -> tuple[int, RowFailure] | None:
    """The first of the events whose row, in ``rows``, violates a constraint."""
    at = np.flatnonzero(violating(rules.checks, rows))
    if not at.size:
        return None
    place = int(at[0])
    event = events[place]
    why = explained(rules.checks, rules.relation, shape.fields, rows.slice(place, 1))
    failure = RowFailure(
        Seq(table.column("lsn")[event].as_py(), table.column("ord")[event].as_py()),
        None,
        why.sqlstate,
        why.message,
        detail=why.detail,
        op=table.column("op")[event].as_py(),
    )
    return event, failure
