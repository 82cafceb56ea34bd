"""Our table for each published one: found or created, checked, made a part of the subscription.

In: a publisher's definitions. Out: ``Target`` values, relation states, the state that readers see
until the copy. Called by CREATE and by REFRESH PUBLICATION.

Source: subscriptioncmds.c; logicalrep_rel_open() in relation.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import ColumnDef, SubscriptionRel, TableDef
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.frontend.commands.node import Caller, Node
from wal2lake.frontend.commands.table import NewTable, make_table
from wal2lake.model import INVALID_LSN, Oid, ReplicaIdentity, SyncState
from wal2lake.pg import Publisher, RemoteTable
from wal2lake.pgtypes.registry.pg_type import type_by_oid

_PREREQUISITE: Final = "55000"
_TEXT: Final = Oid(25)


@dataclass(frozen=True, slots=True)
class Target:
    """A published table and ours for it."""

    namespace: str
    name: str
    table: TableDef


def find_targets(
    node: Node,
    caller: Caller,
    publisher: Publisher,
    publications: Sequence[str],
    *,
    create_tables: bool,
    made: list[TableDef],
) -> list[Target]:
    """Our table for each published one, created if allowed; appends to ``made``."""
    names = tuple(publications)
    targets = []
    for namespace, name in publisher.published_tables(names):
        table = node.catalog.table(namespace, name)
        if table is None:
            if not create_tables:
                raise UndefinedObjectError(
                    f'relation "{namespace}.{name}" does not exist',
                    sqlstate="42P01",
                    hint="Create the table, or use create_tables = true.",
                )
            table = _create_like(node, caller, publisher.table(namespace, name, names))
            made.append(table)
        else:
            _check_matches(table, publisher.table(namespace, name, names))
        targets.append(Target(namespace, name, table))
    return targets


def _check_matches(table: TableDef, remote: RemoteTable) -> None:
    names = {c.name for c in table.columns}
    missing = [c.name for c in remote.columns if c.name not in names]
    if missing:
        plural = "columns" if len(missing) > 1 else "column"
        shown = ", ".join(f'"{n}"' for n in missing)
        raise UsageError(
            f'logical replication target relation "{table.qualified}" is missing'
            f" replicated {plural}: {shown}",
            sqlstate=_PREREQUISITE,
            hint="Add the column to the table, or drop the table and let the"
            " subscription create it.",
        )


def _create_like(node: Node, caller: Caller, remote: RemoteTable) -> TableDef:
    """A table from the publisher's definition, and its schema."""
    if remote.namespace not in {n.name for n in node.catalog.namespaces()}:
        node.catalog.create_namespace(remote.namespace, caller.role.oid)
    columns = []
    for column in remote.columns:
        known = type_by_oid(int(column.type_oid)) is not None
        columns.append(
            ColumnDef(
                name=column.name,
                type_oid=column.type_oid if known else _TEXT,
                typmod=column.typmod if known else -1,
                type_name=None if known else column.type_name,
                not_null=column.not_null,
                default=_portable_default(column.default),
            )
        )
    present = {c.name for c in columns}
    key = remote.key
    if remote.identity is ReplicaIdentity.INDEX and remote.identity_key:
        # UPDATE and DELETE name the row by this index, so it is the key here.
        key = remote.identity_key
    return make_table(
        node,
        caller,
        NewTable(
            remote.namespace,
            remote.name,
            tuple(columns),
            key if set(key) <= present else (),
            dimensions=tuple(c.dimensions for c in remote.columns),
        ),
    )


def _portable_default(expression: str | None) -> str | None:
    """A default that this node can compute; sequences stay at the publisher."""
    if expression is None or "nextval(" in expression:
        return None
    return expression


def drop_made(node: Node, made: Sequence[TableDef]) -> None:
    """Undo the tables of a command that failed."""
    for table in made:
        node.catalog.drop_table(table.oid)
        node.tables.drop(table.location)


def new_rel(
    node: Node, subid: Oid, target: Target, *, copy_data: bool, whole: bool
) -> SubscriptionRel:
    """The first relation state of a table; ``whole``: all operations are published."""
    # Rows that were there before are not the publisher's, and rows whose DELETE is not
    # published stay: in both cases inserts must look for them.
    empty = node.tables.state(target.table.location).version == 0
    return SubscriptionRel(
        subid=subid,
        relid=target.table.oid,
        remote_namespace=target.namespace,
        remote_name=target.name,
        state=SyncState.INIT if copy_data else SyncState.READY,
        lsn=None,
        epoch=int(node.catalog.new_oid()),
        trusted=empty and copy_data and whole,
    )


def present_versions(node: Node, targets: Sequence[Target]) -> dict[int, int]:
    """Each table as it is now: what readers see until it joins with its copy."""
    return {
        int(t.table.oid): node.tables.state(t.table.location).version for t in targets
    }


def publish_present(node: Node, subid: Oid, targets: Sequence[Target]) -> None:
    """Readers see tables that a subscription takes in as they are now."""
    versions = present_versions(node, targets)
    with node.locks.of(subid):
        newest = node.catalog.newest_vector(subid)
        subscription = node.catalog.subscription(subid)
        floor = subscription.floor if subscription is not None else INVALID_LSN
        node.catalog.publish(subid, newest.lsn if newest else floor, versions)
