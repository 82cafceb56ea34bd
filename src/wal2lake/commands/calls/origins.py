"""pg_replication_origin_*: origins that a client replays from, and origins of subscriptions.

A client that replays another system's transactions creates an origin, sets its session up for the
origin, and states each transaction's position and time there. The commit records them in its
table and in the publisher's log, and moves the origin's position in the same durable step.

pg_replication_origin_advance moves the floor of a subscription to an LSN: all tables skip the
changes below the floor. As in PostgreSQL, the subscription must be disabled: the documented way
past a transaction that fails is to disable the subscription, to advance its origin to the finish
LSN of the transaction plus one, and to enable the subscription again. Changes below the floor are
still received and logged, but not applied.

PostgreSQL lets an origin move back, and applies what the publisher sends again. Here a transaction
is applied once: the tables' cursors and the published state are above an older origin, so moving
back would have no effect and is refused.

Source: pg_replication_origin_advance() and replorigin_advance() in origin.c.
"""

from __future__ import annotations

from typing import Final

from wal2lake.catalog import (
    Catalog,
    Progress,
    Recopy,
    ReplicationOrigin,
    Subscription,
)
from wal2lake.catalog.mapped.progress import ProgressFile
from wal2lake.commands.subscription.owner import altering
from wal2lake.commands.subscription.steps.drop import (
    WORKER_STOP_SECONDS,
    await_workers,
    refuse_dropping,
)
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.local.concurrency.activeorigins import (
    SessionOrigin,
    is_active,
)
from wal2lake.local.node import Caller
from wal2lake.local.ports import (
    HasCatalog,
    HasSettings,
    HasTables,
    SessionState,
    SubscriptionCommands,
)
from wal2lake.model import Lsn, SyncState
from wal2lake.observe import failpoint

_NAME_BYTES: Final = 512

_FUNCTION: Final = "pg_replication_origin_advance"


def create_origin(node: HasCatalog, caller: Caller, name: str) -> int:
    """Create an origin and return its number.

    42939 for a reserved name, 23505 if the origin exists."""
    if name.startswith("pg_") or name.lower() in ("any", "none"):
        raise UsageError(
            f'replication origin name "{name}" is reserved',
            sqlstate="42939",
            detail='Origin names "any", "none", and names starting with "pg_" are'
            " reserved.",
        )
    if len(name.encode()) > _NAME_BYTES:
        raise UsageError(
            "replication origin name is too long",
            sqlstate="54000",
            detail=f"Replication origin names must be no longer than {_NAME_BYTES} bytes.",
        )
    return node.catalog.create_origin(name)


def drop_origin(node: SessionState, caller: Caller, name: str) -> None:
    """Drop an origin; 42704 if it does not exist, 55006 if a session uses it."""
    origin = _created(node, name)
    user = node.origins.user_of(name)
    if user is not None:
        raise UsageError(
            f"could not drop replication origin with ID {origin.number}, in use by PID"
            f" {user}",
            sqlstate="55006",
        )
    node.catalog.drop_origin(name)


def set_up_session(node: HasCatalog, caller: Caller, name: str) -> None:
    """Record the origin in all later commits of the session."""
    _session(caller).set_up(name, _created(node, name).number)


def reset_session(node: HasCatalog, caller: Caller) -> None:
    """Stop recording an origin; 55000 if the session has none."""
    _session(caller).need()
    _session(caller).end()


def session_is_set_up(node: HasCatalog, caller: Caller) -> bool:
    """True if the session records an origin."""
    return _session(caller).name is not None


def session_progress(node: HasCatalog, caller: Caller, flush: bool) -> int | None:
    """Return the durable position of the session's origin; None before its first commit."""
    name = _session(caller).need()
    return int(_created(node, name).remote_lsn) or None


def set_up_transaction(
    node: HasCatalog, caller: Caller, lsn: int, time_us: int | None
) -> None:
    """Set the position and time that the running transaction has at the origin."""
    _session(caller).set_transaction(lsn, time_us)


def reset_transaction(node: HasCatalog, caller: Caller) -> None:
    """Clear the transaction's position; succeeds without an origin, too, as in PostgreSQL."""
    origin = _session(caller)
    if origin.name is not None:
        origin.set_transaction(0, None)


def _session(caller: Caller) -> SessionOrigin:
    assert caller.origin is not None
    return caller.origin


def _created(node: HasCatalog, name: str) -> ReplicationOrigin:
    for origin in node.catalog.origins():
        if origin.name == name:
            return origin
    number, sub = _origin(node.catalog, name)
    raise UsageError(
        f'replication origin with ID {number} is in use by subscription "{sub.name}"',
        sqlstate="55006",
    )


def advance_origin(
    node: SubscriptionCommands, caller: Caller, name: str, lsn: int
) -> None:
    """Move an origin; durable on return.

    42704 and 55006 as PostgreSQL; 55000 for a position that a subscription cannot move to."""
    for origin in node.catalog.origins():
        if origin.name == name:
            user = node.origins.user_of(name)
            if user is not None:
                raise is_active(origin.number, user)
            node.catalog.move_origin(name, Lsn(lsn), back=True)
            return
    number, owner = _origin(node.catalog, name)
    with altering(node, caller, owner.name) as sub:
        refuse_dropping(sub)
        if sub.enabled or sub.recopying is not Recopy.NO:
            raise _in_use(node, sub, number)
        await_workers(node, sub, WORKER_STOP_SECONDS, caller.check)
        with node.locks.of(sub.oid):
            now = node.catalog.subscription(sub.oid) or sub
            if lsn < now.floor:
                raise UsageError(
                    f'replication origin "{name}" cannot go back to {Lsn(lsn)}',
                    sqlstate="55000",
                    detail=f"All tables have the changes below {now.floor}, which would not"
                    " be applied again.",
                    hint="wal2lake.recopy_table() copies a table again, and ALTER"
                    " SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true) all.",
                )
            _check_even(node, now, Lsn(lsn))
            node.catalog.advance_origin(sub.oid, Lsn(lsn))
        failpoint("origin.advanced")
        node.changed()


def _origin(catalog: Catalog, name: str) -> tuple[int, Subscription]:
    """Return the number of an origin, as pg_replication_origin has it, and its subscription."""
    for number, sub in enumerate(catalog.subscriptions(), 1):
        if name == f"pg_{sub.oid}":
            return number, sub
    raise UndefinedObjectError(f'replication origin "{name}" does not exist')


def _in_use(node: HasSettings, sub: Subscription, number: int) -> UsageError:
    with ProgressFile(node.settings.run_directory, sub.oid) as file:
        progress: Progress = file.read()
    pid = progress.receiver_pid or progress.engine_pid
    return UsageError(
        f"replication origin with ID {number} is already active for PID {pid}",
        sqlstate="55006",
        hint=f'ALTER SUBSCRIPTION "{sub.name}" DISABLE ends it.',
    )


def _check_even(node: HasTables, sub: Subscription, lsn: Lsn) -> None:
    """Refuse to advance past changes that some tables have and others would never get."""
    vector = node.catalog.newest_vector(sub.oid)
    if vector is None or lsn <= vector.lsn:
        return
    for rel in node.catalog.rels(sub.oid):
        table = node.catalog.table_by_oid(rel.relid)
        if table is None or rel.state not in (SyncState.SYNCDONE, SyncState.READY):
            continue
        state = node.tables.state(table.location)
        cursor = state.cursor(rel.cursor_name(node.catalog.system_identifier))
        if cursor is not None and cursor > vector.lsn:
            raise UsageError(
                f'replication origin "pg_{sub.oid}" cannot be advanced now',
                sqlstate="55000",
                detail=f'Table "{table.qualified}" has changes up to {Lsn(cursor)}, which'
                " the other tables lack after a crash.",
                hint="Enable the subscription until all tables have them.",
            )
