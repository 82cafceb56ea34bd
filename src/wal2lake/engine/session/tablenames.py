"""Resolves the table names of one statement.

Takes a statement's transaction, its snapshot, and the point in the past that its session reads, if
any. Returns a ``Resolver``. Called by ``lakebackend``, once for each statement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wal2lake.catalog import TableDef
from wal2lake.commands import calls
from wal2lake.commands.tables.past import PastVersions
from wal2lake.local.concurrency.snapshots import Snapshot
from wal2lake.local.node import Caller, need_table
from wal2lake.local.ports import HasTables
from wal2lake.local.transaction.local import LocalTransaction
from wal2lake.model import Oid
from wal2lake.sql.query.translate import Resolver, TableRef

Used = dict[Oid, tuple[TableDef, str]]
"""Tables that a statement names, and the privileges that it needs on them."""


def table_names(
    node: HasTables,
    transaction: LocalTransaction,
    caller: Caller,
    begin: Callable[[], Snapshot],
    past: PastVersions | None,
    used: Used | None,
    *,
    newest: bool,
) -> Resolver:
    """Return a resolver that shows all tables at one moment.

    Tables that the transaction has written are shown with its writes. If the session reads the
    past, all tables are shown as of then. ``begin`` takes the snapshot once a table is named.
    Tables are added to ``used``. ``newest``: use the tables' present columns, whatever is
    published."""
    catalog, tables = node.catalog, node.tables
    moment: Snapshot | None = None

    def resolve(schema: str | None, name: str) -> TableRef:
        nonlocal moment
        table = need_table(catalog, caller, schema, name)
        if used is not None:
            used.setdefault(table.oid, (table, "r"))
        if past is not None:
            version = past.of(table)
            return as_stored(TableRef(catalog.table_at(table, version), version))
        if moment is None:
            moment = begin()
        apart = moment.apart(*catalog.sharing(table))
        if apart is not None and used is not None and used[table.oid][0] is table:
            calls.warn_apart(node, caller, table, *apart)
        ref = transaction.ref(table, moment)
        if newest:
            place = ref.table.location
            ref = replace(ref, table=replace(table, location=place))
        return as_stored(ref)

    def as_stored(ref: TableRef) -> TableRef:
        place, version = ref.table.location, ref.version
        state = (
            tables.state(place) if version is None else tables.state_at(place, version)
        )
        stored = [field.name for field in state.fields]
        same = stored == [column.name for column in ref.table.columns]
        return ref if same else replace(ref, narrows=True)

    return resolve
