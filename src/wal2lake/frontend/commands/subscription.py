"""CREATE, ALTER and DROP SUBSCRIPTION.

CREATE, in the order of its durable steps, each undone if a later one fails:

    ask the publisher (publications, tables, definitions)   nothing durable
    create missing schemas and tables                        storage, catalog
    create the slot                                          publisher
    record the subscription and its relation states          ONE catalog transaction

As in PostgreSQL, a crash between the last two leaves a slot without a subscription, to be
dropped by hand; every other order would leave a subscription without its slot.

DROP marks the subscription first, then ends its receiver and worker, drops the slot (the
publisher waits until the walsender has let it go), and forgets it: a crash in between is
finished by repeating DROP. The tables stay, as in PostgreSQL.

Source: subscriptioncmds.c (order, texts, SQLSTATEs); reference 3.3, 3.6; traps.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import (
    ColumnDef,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.catalog.progress import ProgressFile, progress_path
from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    PublisherError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.frontend.backend import Notice
from wal2lake.frontend.commands.node import Caller, Node, require_superuser
from wal2lake.frontend.commands.table import NewTable, make_table
from wal2lake.frontend.grammar import (
    OptionSet,
    SubscriptionOptions,
    subscription_options,
)
from wal2lake.frontend.grammar.statements import (
    AlterSubscriptionEnabled,
    AlterSubscriptionRefresh,
    AlterSubscriptionSet,
    CreateSubscription,
    DropSubscription,
)
from wal2lake.model import INVALID_LSN, Lsn, Oid, ReplicaIdentity, SyncState
from wal2lake.observe import failpoint
from wal2lake.pg import Publisher, RemoteTable, Session, connect, parse_conninfo
from wal2lake.pgtypes.registry.pg_type import type_by_oid

_PREREQUISITE: Final = "55000"
_PROTOCOL_VIOLATION: Final = "08P01"
_TEXT: Final = Oid(25)

_WORKER_STOP_SECONDS: Final = 30.0
"""How long DROP waits for the receiver and the apply worker to end."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A published table and ours for it."""

    namespace: str
    name: str
    table: TableDef


def create_subscription(
    node: Node, caller: Caller, statement: CreateSubscription
) -> str:
    """CREATE SUBSCRIPTION."""
    require_superuser(caller, "create subscription")
    options = subscription_options(statement.options, OptionSet.CREATE)
    parse_conninfo(statement.conninfo)
    with node.ddl_lock:
        if node.catalog.subscription_named(statement.name) is not None:
            raise DuplicateObjectError(
                f'subscription "{statement.name}" already exists'
            )
        if not options.connect:
            _record(node, caller, statement, options, [], INVALID_LSN, whole=True)
            caller.notice(
                Notice(
                    "subscription was created, but is not connected",
                    severity="WARNING",
                    sqlstate="01000",
                    hint="To initiate replication, you must manually create the"
                    " replication slot, enable the subscription, and refresh the"
                    " subscription.",
                )
            )
            return "CREATE SUBSCRIPTION"
        with _connect(statement.name, statement.conninfo) as session:
            publisher = Publisher(session)
            _warn_of_missing(caller, publisher, statement.publications)
            made: list[TableDef] = []
            try:
                targets = _targets(
                    node,
                    caller,
                    publisher,
                    statement.publications,
                    create_tables=options.create_tables,
                    made=made,
                )
                whole = publisher.publish_everything(tuple(statement.publications))
                start = _create_slot(caller, publisher, statement, options)
                try:
                    _record(node, caller, statement, options, targets, start, whole)
                except BaseException:
                    if options.create_slot and (slot := _slot_name(statement, options)):
                        publisher.drop_slot(slot, missing_ok=True)
                    raise
            except BaseException:
                _unmake(node, made)
                raise
    node.changed()
    return "CREATE SUBSCRIPTION"


def _connect(name: str, conninfo: str) -> Session:
    try:
        return connect(conninfo, application_name=name, replication=True)
    except PublisherError as error:
        raise PublisherError(
            f'subscription "{name}" could not connect to the publisher:'
            f" {error.message}",
            sqlstate=error.sqlstate,
            hint="Check host, port, user and password in the connection string, and"
            " pg_hba.conf on the publisher.",
        ) from None


def _warn_of_missing(
    caller: Caller, publisher: Publisher, names: Sequence[str]
) -> None:
    there = publisher.existing_publications(tuple(names))
    missing = [n for n in names if n not in there]
    if not missing:
        return
    shown = ", ".join(f'"{n}"' for n in missing)
    text = (
        f"publication {shown} does not exist on the publisher"
        if len(missing) == 1
        else f"publications {shown} do not exist on the publisher"
    )
    caller.notice(Notice(text, severity="WARNING", sqlstate="42704"))


def _slot_name(
    statement: CreateSubscription, options: SubscriptionOptions
) -> str | None:
    if "slot_name" in options.given:
        return options.slot_name
    return statement.name


def _create_slot(
    caller: Caller,
    publisher: Publisher,
    statement: CreateSubscription,
    options: SubscriptionOptions,
) -> Lsn:
    slot = _slot_name(statement, options)
    if not options.create_slot or slot is None:
        return INVALID_LSN
    try:
        created = publisher.create_slot(slot)
    except PublisherError as error:
        raise PublisherError(
            f'could not create replication slot "{slot}": ERROR:  {error.message}',
            sqlstate=_PROTOCOL_VIOLATION,
            detail=error.detail,
            hint=error.hint or _slot_hint(error.sqlstate),
        ) from None
    caller.notice(Notice(f'created replication slot "{slot}" on publisher'))
    failpoint("subscription.slot_created")
    return created.consistent_point


def _slot_hint(sqlstate: str) -> str | None:
    return {
        "42710": "Drop the slot on the publisher, choose another slot_name, or use"
        " create_slot = false to take it over.",
        "53400": 'Free one or increase "max_replication_slots" on the publisher.',
        "55000": 'Set "wal_level" to "logical" on the publisher and restart it.',
    }.get(sqlstate)


def _record(
    node: Node,
    caller: Caller,
    statement: CreateSubscription,
    options: SubscriptionOptions,
    targets: Sequence[_Target],
    start: Lsn,
    whole: bool,
) -> None:
    oid = node.catalog.new_oid()
    enabled = options.enabled and options.connect
    subscription = Subscription(
        oid=oid,
        name=statement.name,
        owner=caller.role.oid,
        enabled=enabled,
        conninfo=statement.conninfo,
        slot_name=_slot_name(statement, options),
        publications=tuple(statement.publications),
        synchronous_commit=options.synchronous_commit,
        create_tables=options.create_tables,
        floor=start,
        options={
            "password_required": str(options.password_required).lower(),
            "run_as_owner": str(options.run_as_owner).lower(),
            "origin": options.origin,
        },
    )
    rels = [
        _new_rel(node, oid, target, copy_data=options.copy_data, whole=whole)
        for target in targets
    ]
    node.catalog.create_subscription(subscription, rels)
    _publish_present(node, oid, targets)
    failpoint("subscription.recorded")


def _unmake(node: Node, made: Sequence[TableDef]) -> None:
    """Undo the tables of a command that failed."""
    for table in made:
        node.catalog.drop_table(table.oid)
        node.tables.drop(table.location)


def _new_rel(
    node: Node, subid: Oid, target: _Target, *, copy_data: bool, whole: bool
) -> SubscriptionRel:
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


def _publish_present(node: Node, subid: Oid, targets: Sequence[_Target]) -> None:
    """Readers see each table as it is now, until it joins with its copy."""
    versions = {
        int(t.table.oid): node.tables.state(t.table.location).version for t in targets
    }
    with node.locks.of(subid):
        newest = node.catalog.newest_vector(subid)
        subscription = node.catalog.subscription(subid)
        floor = subscription.floor if subscription is not None else INVALID_LSN
        node.catalog.publish(subid, newest.lsn if newest else floor, versions)


# ---- tables ----------------------------------------------------------------------------


def _targets(
    node: Node,
    caller: Caller,
    publisher: Publisher,
    publications: Sequence[str],
    *,
    create_tables: bool,
    made: list[TableDef],
) -> list[_Target]:
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
        targets.append(_Target(namespace, name, table))
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


# ---- ALTER -----------------------------------------------------------------------------


def need_subscription(node: Node, name: str) -> Subscription:
    """42704 if there is none."""
    found = node.catalog.subscription_named(name)
    if found is None:
        raise UndefinedObjectError(f'subscription "{name}" does not exist')
    return found


def alter_enabled(
    node: Node, caller: Caller, statement: AlterSubscriptionEnabled
) -> str:
    """ALTER SUBSCRIPTION ... ENABLE | DISABLE."""
    require_superuser(caller, "alter subscription")
    subscription = need_subscription(node, statement.name)
    if statement.enabled and subscription.slot_name is None:
        raise UsageError(
            "cannot enable subscription that does not have a slot name",
            sqlstate=_PREREQUISITE,
        )
    node.catalog.update_subscription(
        subscription.oid, enabled=statement.enabled, bump=True
    )
    node.changed()
    return "ALTER SUBSCRIPTION"


def alter_refresh(
    node: Node, caller: Caller, statement: AlterSubscriptionRefresh
) -> str:
    """ALTER SUBSCRIPTION ... REFRESH PUBLICATION."""
    require_superuser(caller, "alter subscription")
    options = subscription_options(statement.options, OptionSet.REFRESH)
    subscription = need_subscription(node, statement.name)
    if not subscription.enabled:
        raise UsageError(
            "ALTER SUBSCRIPTION ... REFRESH PUBLICATION is not allowed for disabled"
            " subscriptions",
            sqlstate=_PREREQUISITE,
        )
    with (
        node.ddl_lock,
        _connect(subscription.name, subscription.conninfo) as session,
    ):
        publisher = Publisher(session)
        whole = publisher.publish_everything(subscription.publications)
        made: list[TableDef] = []
        try:
            targets = _targets(
                node,
                caller,
                publisher,
                subscription.publications,
                create_tables=subscription.create_tables,
                made=made,
            )
        except BaseException:
            _unmake(node, made)
            raise
        with node.locks.of(subscription.oid):
            known = {r.relid: r for r in node.catalog.rels(subscription.oid)}
            present = {t.table.oid for t in targets}
            new = [t for t in targets if t.table.oid not in known]
            node.catalog.add_rels(
                [
                    _new_rel(
                        node,
                        subscription.oid,
                        t,
                        copy_data=options.copy_data,
                        whole=whole,
                    )
                    for t in new
                ]
            )
            if not whole:
                for relid in known:
                    node.catalog.update_rel(subscription.oid, relid, trusted=False)
            _publish_present(node, subscription.oid, new)
            for relid in known.keys() - present:
                node.catalog.remove_rel(subscription.oid, relid)
                node.catalog.forget_version(subscription.oid, relid)
    node.changed()
    return "ALTER SUBSCRIPTION"


def alter_set(node: Node, caller: Caller, statement: AlterSubscriptionSet) -> str:
    """ALTER SUBSCRIPTION ... SET (options)."""
    require_superuser(caller, "alter subscription")
    options = subscription_options(statement.options, OptionSet.SET)
    subscription = need_subscription(node, statement.name)
    changes: dict[str, object] = {}
    if "slot_name" in options.given:
        if subscription.enabled and options.slot_name is None:
            raise UsageError(
                "cannot set slot_name = NONE for enabled subscription",
                sqlstate=_PREREQUISITE,
            )
        changes["slot_name"] = options.slot_name
    if "synchronous_commit" in options.given:
        changes["synchronous_commit"] = options.synchronous_commit
    if "create_tables" in options.given:
        changes["create_tables"] = options.create_tables
    node.catalog.update_subscription(subscription.oid, **changes, bump=True)
    node.changed()
    return "ALTER SUBSCRIPTION"


def alter_later(form: str) -> FeatureNotSupportedError:
    """A form that the grammar knows and this version does not execute."""
    return FeatureNotSupportedError(
        f"ALTER SUBSCRIPTION ... {form} is not supported by this version",
        hint="Drop the subscription and create it again.",
    )


# ---- DROP ------------------------------------------------------------------------------


def drop_subscription(node: Node, caller: Caller, statement: DropSubscription) -> str:
    """DROP SUBSCRIPTION."""
    require_superuser(caller, "drop subscription")
    subscription = node.catalog.subscription_named(statement.name)
    if subscription is None:
        text = f'subscription "{statement.name}" does not exist'
        if not statement.if_exists:
            raise UndefinedObjectError(text)
        caller.notice(Notice(f"{text}, skipping"))
        return "DROP SUBSCRIPTION"
    was_enabled = subscription.enabled
    node.catalog.update_subscription(
        subscription.oid, enabled=False, dropping=True, bump=True
    )
    node.changed()
    try:
        _await_workers(node, subscription)
        if subscription.slot_name is not None:
            _drop_slots(caller, subscription)
    except BaseException:
        node.catalog.update_subscription(
            subscription.oid, enabled=was_enabled, dropping=False, bump=True
        )
        node.changed()
        raise
    failpoint("subscription.slot_dropped")
    node.catalog.drop_subscription(subscription.oid)
    shutil.rmtree(
        node.settings.log_directory / str(int(subscription.oid)), ignore_errors=True
    )
    progress_path(node.settings.run_directory, subscription.oid).unlink(missing_ok=True)
    node.changed()
    return "DROP SUBSCRIPTION"


def _await_workers(node: Node, subscription: Subscription) -> None:
    """Wait until neither the receiver nor the apply worker is at work."""
    deadline = time.monotonic() + _WORKER_STOP_SECONDS
    with ProgressFile(node.settings.run_directory, subscription.oid) as progress:
        while (alive := _runs(progress.word("receiver_pid"))) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.02)
        if alive:
            raise UsageError(
                f'walreceiver of subscription "{subscription.name}" does not end',
                sqlstate="55006",
                hint="Try again; see the node's log.",
            )
    if not node.apply.halt(subscription.oid, max(0.0, deadline - time.monotonic())):
        raise UsageError(
            f'apply worker of subscription "{subscription.name}" is busy',
            sqlstate="55006",
            hint="Try again when its present batch is done.",
        )


def _runs(pid: int) -> bool:
    """A receiver that was killed has left its pid behind."""
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _drop_slots(caller: Caller, subscription: Subscription) -> None:
    slot = str(subscription.slot_name)
    try:
        session = connect(
            subscription.conninfo,
            application_name=subscription.name,
            replication=True,
        )
    except PublisherError as error:
        raise PublisherError(
            "could not connect to publisher when attempting to drop replication slot"
            f' "{slot}": {error.message}',
            sqlstate=error.sqlstate,
            hint="Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and"
            " then use ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate"
            " it from the slot.",
        ) from None
    with session:
        try:
            dropped = Publisher(session).drop_slot(
                slot, missing_ok=subscription.dropping
            )
        except PublisherError as error:
            raise PublisherError(
                f'could not drop replication slot "{slot}" on publisher: ERROR: '
                f" {error.message}",
                sqlstate=error.sqlstate,
                detail=error.detail,
                hint=error.hint,
            ) from None
    if dropped:
        caller.notice(Notice(f'dropped replication slot "{slot}" on publisher'))
