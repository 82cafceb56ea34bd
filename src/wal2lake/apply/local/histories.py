"""History tables beside the tables of a subscription: finding, fitting and finishing them.

In: a subscription, its tables, the cursors that their versions carry. Out: for each table the state
of its history table, with columns for all of the table's; and commits of histories that a crash has
left behind. Called by the apply worker and by copies.

A batch becomes two commits of each table:

    files of both tables written     nothing has happened
    record in the catalog            the record is void: the table's cursor is below it
    the table's commit               the record's files are committed at the next start
    the history's commit             done; the record goes when both versions are published

So the rows of a history are evaluated once, with the table's version that the batch was committed
on, and a crash between the commits neither loses nor repeats any. The columns of a history table
only grow: a column that the table drops or renames stays, one whose type changes keeps its values
under the name ``was_...``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.apply.local.altering import alter_table, field_spec
from wal2lake.catalog import (
    AddColumn,
    Catalog,
    ColumnChange,
    ColumnDef,
    PendingHistory,
    RenameColumn,
    Subscription,
    TableDef,
    plan_changes,
)
from wal2lake.lake import (
    AddedFile,
    Cursor,
    TablePort,
    TableState,
    files_from_json,
    files_to_json,
)
from wal2lake.lake.staging import HISTORY_WORD, NEW, OLD
from wal2lake.model import Lsn, Oid
from wal2lake.observe import get_logger

_WAS: Final = "was_"


@dataclass(slots=True)
class HistoryTable:
    """The history table of a participant."""

    definition: TableDef
    version: int
    """Newest version that the worker has made or read."""


def history_columns(columns: tuple[ColumnDef, ...]) -> tuple[ColumnDef, ...]:
    """Return the columns of a history table for a table with these columns."""
    facts = tuple(ColumnDef(name, Oid(oid)) for name, oid in _FACTS)
    return facts + tuple(
        _column(prefix, column) for prefix in (OLD, NEW) for column in columns
    )


_FACTS: Final = (
    ("op", 25),
    ("commit_lsn", 20),
    ("ordinal", 20),
    ("xid", 20),
    ("commit_time", 1184),
    ("origin", 25),
)
"""Names and type OIDs of the columns before those of the table; ``lake.staging.historyrows``."""


def _column(prefix: str, column: ColumnDef) -> ColumnDef:
    return ColumnDef(
        prefix + column.name,
        column.type_oid,
        column.typmod,
        column.type_name,
        domain=column.domain,
    )


def histories_of(catalog: Catalog, subscription: Subscription) -> Mapping[Oid, Oid]:
    """Map the subscription's tables to their history tables."""
    if not subscription.history:
        return {}
    return {
        feed.relid: history
        for history, feed in catalog.histories().items()
        if feed.subid == subscription.oid
    }


def fitted(
    catalog: Catalog, port: TablePort, history: TableDef, mirror: TableDef
) -> TableState:
    """Give the history table the columns that it lacks, and return its newest state.

    Called by whoever writes the history: nobody else alters it."""
    state = port.state(history.location)
    changes = _missing(history, state, mirror, port.state(mirror.location))
    if not changes:
        return state
    with port.writing(history.location):
        alter_table(catalog, port, plan_changes(history, changes))
    get_logger().info(
        "columns added to a history table",
        table=history.qualified,
        columns=[c.column.name for c in changes if isinstance(c, AddColumn)],
    )
    return port.state(history.location)


def _missing(
    history: TableDef, state: TableState, mirror: TableDef, mirror_state: TableState
) -> list[ColumnChange]:
    stored = {field.name: field.spark_ddl for field in state.fields}
    mirrored = {field.name: field.spark_ddl for field in mirror_state.fields}
    changes: list[ColumnChange] = []
    names = {column.name for column in history.columns}
    for prefix in (OLD, NEW):
        for column in mirror.columns:
            name = prefix + column.name
            if name in names:
                kinds = (field_spec(column).spark_ddl, mirrored.get(column.name))
                if stored.get(name) in kinds:
                    continue
                aside = f"{_WAS}{name}"
                number = 1
                while aside in names:
                    number += 1
                    aside = f"{_WAS}{name}_{number}"
                names.add(aside)
                changes.append(RenameColumn(name, aside))
            changes.append(AddColumn(_column(prefix, column)))
    return changes


def pending_of(
    relid: Oid, history: TableDef, cursor: Cursor, files: Sequence[AddedFile]
) -> PendingHistory:
    """Build the record of a history that is about to be committed."""
    return PendingHistory(
        relid,
        Lsn(cursor.version),
        cursor.app_id,
        history.oid,
        files_to_json(files),
    )


def finish_all(
    catalog: Catalog,
    port: TablePort,
    subid: Oid,
    relids: Collection[Oid] | None = None,
) -> None:
    """Commit the histories that a crash has left of tables that are about to leave a subscription,
    with which the records go. ``relids``: None for all tables.

    Called under the commit lock, or while no worker runs."""
    for rel in catalog.rels(subid):
        if relids is not None and rel.relid not in relids:
            continue
        table = catalog.table_by_oid(rel.relid)
        if table is not None and catalog.pending_histories(subid, rel.relid):
            state = port.state(table.location)
            port.sync(table.location, state.version)
            finish_histories(catalog, port, subid, rel.relid, state)


def finish_histories(
    catalog: Catalog, port: TablePort, subid: Oid, relid: Oid, mirror: TableState
) -> None:
    """Commit the histories of a table that a crash has left between the two commits. ``mirror``:
    the table's newest state, which is durable."""
    for pending in catalog.pending_histories(subid, relid):
        committed = mirror.cursor(pending.cursor_name)
        if committed is None or committed < pending.reached:
            # The batch was not committed, and is evaluated anew.
            continue
        history = catalog.table_by_oid(pending.history)
        if history is None:
            # It was dropped after the subscription had ceased to feed it.
            continue
        done = port.commit_files(
            history.location,
            files_from_json(pending.files),
            Cursor(pending.cursor_name, int(pending.reached)),
            operation=HISTORY_WORD,
        )
        port.sync(history.location, done.version)
        if not done.already_done:
            get_logger().info(
                "recovery of a history", table=history.qualified, lsn=pending.reached
            )
