"""Pause, resume and re-copy of one table of a subscription, while the other tables go on.

    call             the table                                    the other tables
    -------------    -----------------------------------------    ------------------------------
    pause_table      stays at its position, in state f; the       continue
                     changes that it misses stay in the log
    resume_table     catches up from there, in batches of its     wait while the table catches up
                     own, and joins with the first vector that
                     it has reached (f -> s -> r)
    recopy_table     returns to i in a new epoch: a copy          continue
                     replaces its rows, at whatever position
                     it was, paused or not
    REFRESH with     stays paused; if the log of what it missed   are copied
     recopy = true   is gone, resume_table has it copied, from i

Until the table joins again it is not in the common snapshot: the vector holds its position
(``apart``), a SELECT of the table warns about it, and past states don't include the table. Readers
see the rows that the table had when it left.

A pause is one catalog transaction under the subscription's commit lock: no batch is running then,
and the next batch is divided without the table. A crash leaves the pause done or not done. The
position is the LSN at which the table's remaining changes begin (``apply.participants``): the
vector's LSN, or the table's own cursor if a crash has left the cursor ahead. The newest version is
made durable first, since readers see it from then on.

PostgreSQL has no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from wal2lake.catalog import (
    Recopy,
    SnapshotVector,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.commands.subscription.blocks import outside_block
from wal2lake.commands.subscription.owner import altering
from wal2lake.commands.subscription.steps.drop import (
    end_copies,
    refuse_dropping,
)
from wal2lake.commands.subscription.steps.recopy import check_recopy
from wal2lake.commands.tables.past import format_moment
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.local.node import Caller
from wal2lake.local.ports import Definitions, HasCatalog, HasTables, TableDefinitions
from wal2lake.model import INVALID_LSN, Lsn, Oid, SyncState
from wal2lake.observe import failpoint
from wal2lake.sql.backend import Notice

_PREREQUISITE: Final = "55000"

_STREAMED: Final = (SyncState.FINISHEDCOPY, SyncState.SYNCDONE, SyncState.READY)


def pause_table(
    node: TableDefinitions, caller: Caller, relid: Oid, subscription: str | None = None
) -> None:
    """wal2lake.pause_table; 55000 for a table that is being copied."""
    with _member(node, caller, "pause_table", relid, subscription) as (sub, rel, table):
        if rel.paused:
            caller.notice(Notice(f'table "{table.qualified}" is paused already'))
            return
        with node.locks.of(sub.oid):
            rel = _reread_rel(node, rel, table)
            position, version = _position(node, sub, rel, table)
            node.catalog.pause_table(sub.oid, rel.relid, position, version)
        failpoint("pause.recorded")
        node.changed()
        caller.notice(Notice(f'table "{table.qualified}" is paused at {position}'))


def resume_table(
    node: Definitions, caller: Caller, relid: Oid, subscription: str | None = None
) -> None:
    """wal2lake.resume_table."""
    with _member(node, caller, "resume_table", relid, subscription) as (
        sub,
        rel,
        table,
    ):
        if not rel.paused:
            caller.notice(Notice(f'table "{table.qualified}" is not paused'))
            return
        node.catalog.resume_table(sub.oid, rel.relid)
        failpoint("resume.recorded")
        node.changed()
        if rel.state is SyncState.INIT:
            caller.notice(Notice(f'table "{table.qualified}" will be copied again'))


def recopy_table(
    node: TableDefinitions, caller: Caller, relid: Oid, subscription: str | None = None
) -> None:
    """wal2lake.recopy_table: REFRESH PUBLICATION WITH (recopy = true) for one table."""
    with _member(node, caller, "recopy_table", relid, subscription) as (
        sub,
        rel,
        table,
    ):
        check_recopy(node, sub, [rel.relid])
        with node.locks.of(sub.oid):
            _reread_rel(node, rel, table)
            node.catalog.copy_table_anew(sub.oid, rel.relid)
        failpoint("recopy.table_recorded")
        node.changed()
        caller.notice(Notice(f'table "{table.qualified}" will be copied again'))
        end_copies(node, caller, sub, [rel.relid])


def warn_apart(
    node: HasCatalog,
    caller: Caller,
    table: TableDef,
    vector: SnapshotVector,
    relid: Oid,
) -> None:
    """Warn the reader of a table that is at another position than its subscription."""
    sub = node.catalog.subscription(vector.subid)
    rel = next((r for r in node.catalog.rels(vector.subid) if r.relid == relid), None)
    if sub is None or rel is None:
        return
    hint = None
    if rel.paused_at is not None:
        since = format_moment(datetime.fromisoformat(rel.paused_at))
        why = f"It has been paused since {since}."
        hint = f"SELECT wal2lake.resume_table({int(table.oid)}) lets it catch up."
    elif rel.state in (SyncState.INIT, SyncState.DATASYNC) or not rel.rejoins:
        why = "It is being copied again."
    else:
        why = "It is catching up."
    caller.notice(
        Notice(
            f'table "{table.qualified}" stands at {vector.apart[int(relid)]}, apart from'
            f' the other tables of subscription "{sub.name}"',
            severity="WARNING",
            sqlstate="01000",
            detail=f"{why} The others are at {vector.lsn}.",
            hint=hint,
        )
    )


@contextmanager
def _member(
    node: Definitions, caller: Caller, function: str, relid: Oid, name: str | None
) -> Iterator[tuple[Subscription, SubscriptionRel, TableDef]]:
    """Yield the table's entry in a subscription, locked for the caller, who may alter it."""
    table = node.catalog.table_by_oid(Oid(relid))
    if table is None:
        raise UndefinedObjectError(
            f"relation with OID {int(relid)} does not exist", sqlstate="42P01"
        )
    named = _subscription_of(node, table, name)
    outside_block(caller, f"wal2lake.{function}()")
    with altering(node, caller, named, connects=False) as sub:
        refuse_dropping(sub)
        if sub.recopying is not Recopy.NO:
            raise UsageError(
                f'tables of subscription "{sub.name}" are about to be copied anew',
                sqlstate=_PREREQUISITE,
                hint="Wait until the ALTER SUBSCRIPTION has ended.",
            )
        yield sub, _rel(node, sub.oid, table), table


def _subscription_of(node: HasCatalog, table: TableDef, name: str | None) -> str:
    """Return ``name``, or the name of the only subscription that has the table."""
    if name is not None:
        return name
    places = node.catalog.sharing(table)
    subids = {rel.subid for rel in node.catalog.rels() if rel.relid in places}
    names = [s.name for s in node.catalog.subscriptions() if s.oid in subids]
    if not names:
        raise UsageError(
            f'table "{table.qualified}" is in no subscription', sqlstate=_PREREQUISITE
        )
    if len(names) > 1:
        raise UsageError(
            f'table "{table.qualified}" is in more than one subscription',
            sqlstate=_PREREQUISITE,
            detail="They are: " + ", ".join(f'"{subname}"' for subname in names) + ".",
            hint="Name one of them as the second argument.",
        )
    return names[0]


def _rel(node: HasCatalog, subid: Oid, table: TableDef) -> SubscriptionRel:
    places = node.catalog.sharing(table)
    for rel in node.catalog.rels(subid):
        if rel.relid in places:
            return rel
    subscription = node.catalog.subscription(subid)
    shown = "" if subscription is None else subscription.name
    raise UsageError(
        f'table "{table.qualified}" is not in subscription "{shown}"',
        sqlstate=_PREREQUISITE,
    )


def _reread_rel(
    node: HasCatalog, rel: SubscriptionRel, table: TableDef
) -> SubscriptionRel:
    """Read the entry again, now that the locks keep others from changing it."""
    if node.catalog.table_by_oid(table.oid) is None:
        raise UndefinedObjectError(
            f'relation "{table.qualified}" does not exist', sqlstate="42P01"
        )
    return _rel(node, rel.subid, table)


def _position(
    node: HasTables, sub: Subscription, rel: SubscriptionRel, table: TableDef
) -> tuple[Lsn, int]:
    """Return the position of the table's next change, and its newest version.

    The version is durable on return."""
    waits = rel.state is SyncState.FINISHEDCOPY
    if rel.state not in _STREAMED:
        raise _being_copied(table)
    vector = node.catalog.newest_vector(sub.oid)
    published = None if vector is None else vector.versions.get(int(rel.relid))
    with node.tables.writing(table.location):
        if published is not None:
            # Remove a version that a power failure has torn, if no worker has done so yet.
            node.tables.recover(table.location, published)
        state = node.tables.state(table.location)
        node.tables.sync(table.location, state.version)
    cursor = state.cursor(rel.cursor_name(node.catalog.system_identifier))
    if waits and cursor is None and not rel.rejoins:
        # The copy's last version was torn: the apply worker will restart the copy.
        raise _being_copied(table)
    now = node.catalog.subscription(sub.oid) or sub
    reached = rel.lsn if waits else (None if vector is None else vector.lsn)
    position = Lsn(max(cursor or 0, now.floor, reached or INVALID_LSN))
    return position, state.version


def _being_copied(table: TableDef) -> UsageError:
    return UsageError(
        f'table "{table.qualified}" cannot be paused while it is being copied',
        sqlstate=_PREREQUISITE,
        hint="Its copy holds no other table up. wal2lake.sync_progress shows it.",
    )
