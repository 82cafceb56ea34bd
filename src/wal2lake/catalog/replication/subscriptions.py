"""Rows of ``subscription``, of its errors and counts, ``planned_slot``, ``subscription_rel``.

In: a connection, and in writes a transaction on it. Out: records. Called by ``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, Final

from wal2lake.catalog.published import conflicts
from wal2lake.catalog.records import (
    PlannedSlot,
    Recopy,
    Subscription,
    SubscriptionError,
    SubscriptionRel,
    SubscriptionStats,
    WorkerKind,
)
from wal2lake.catalog.replication import copies
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError, UsageError
from wal2lake.model import Lsn, Oid, SyncState


def all_subscriptions(connection: sqlite3.Connection) -> list[Subscription]:
    """Return all subscriptions, by OID."""
    rows = connection.execute("select * from subscription order by oid")
    return [_subscription(r) for r in rows]


def any_option(connection: sqlite3.Connection, word: str) -> bool:
    """Whether a subscription has an option of this name, or with this value."""
    row = connection.execute(
        "select 1 from subscription where instr(options, ?) limit 1",
        (json.dumps(word),),
    ).fetchone()
    return row is not None


def subscription_by_oid(
    connection: sqlite3.Connection, oid: Oid
) -> Subscription | None:
    """Return a subscription by OID."""
    row = connection.execute(
        "select * from subscription where oid = ?", (oid,)
    ).fetchone()
    return None if row is None else _subscription(row)


def subscription_named(
    connection: sqlite3.Connection, name: str
) -> Subscription | None:
    """Return a subscription by name."""
    row = connection.execute(
        "select * from subscription where name = ?", (name,)
    ).fetchone()
    return None if row is None else _subscription(row)


def create_subscription(
    connection: sqlite3.Connection, subscription: Subscription
) -> None:
    """Create a subscription. Raises 42710 if the name is taken."""
    fields = _fields(subscription)
    names = ", ".join(fields)
    marks = ", ".join("?" * len(fields))
    try:
        connection.execute(
            f"insert into subscription ({names}) values ({marks})",
            tuple(fields.values()),
        )
    except sqlite3.IntegrityError:
        raise _taken(subscription.name) from None
    connection.execute(
        "insert into subscription_stats (subid) values (?)", (subscription.oid,)
    )


def update_subscription(
    connection: sqlite3.Connection,
    oid: Oid,
    changes: Mapping[str, Any],
    *,
    options: Mapping[str, str] | None = None,
    bump: bool,
) -> Subscription:
    """Set fields and some of the ``options``, and a new generation with ``bump``. Raises 42704 if
    the subscription is gone, 42710 if a new name is taken.

    A disabled subscription has no snapshot: copies that begin once it is enabled again need a new
    one."""
    subscription = subscription_by_oid(connection, oid)
    if subscription is None:
        raise UndefinedObjectError(f"subscription with OID {oid} is gone")
    changed = replace(subscription, **changes)
    changed = replace(changed, options={**changed.options, **(options or {})})
    if bump:
        changed = replace(changed, generation=changed.generation + 1)
    fields = _fields(changed)
    sets = ", ".join(f"{name} = ?" for name in fields)
    try:
        connection.execute(
            f"update subscription set {sets} where oid = ?", (*fields.values(), oid)
        )
    except sqlite3.IntegrityError:
        raise _taken(changed.name) from None
    if not changed.enabled:
        copies.release_snapshot(connection, oid)
    return changed


def _taken(name: str) -> DuplicateObjectError:
    return DuplicateObjectError(f'subscription "{name}" already exists')


def set_skip(connection: sqlite3.Connection, oid: Oid, lsn: Lsn) -> None:
    """Set the skip-LSN. While a transaction is being skipped, only its LSN is accepted."""
    row = connection.execute(
        "select skip_lsn, skipping from subscription where oid = ?", (oid,)
    ).fetchone()
    if row is not None and row["skipping"]:
        if row["skip_lsn"] == lsn:
            return
        raise UsageError(
            f"transaction at LSN {Lsn(row['skip_lsn'])} is being skipped",
            sqlstate="55006",
            hint="Some tables may be beyond it already. Wait until subskiplsn of"
            " pg_subscription is 0/0.",
        )
    connection.execute("update subscription set skip_lsn = ? where oid = ?", (lsn, oid))


def begin_skip(connection: sqlite3.Connection, oid: Oid, lsn: Lsn) -> bool:
    """Mark that the skip has begun. Return False if the skip-LSN is another one."""
    updated = connection.execute(
        "update subscription set skipping = 1 where oid = ? and skip_lsn = ?",
        (oid, lsn),
    )
    return updated.rowcount == 1


def clear_skip(connection: sqlite3.Connection, oid: Oid, skipped: Lsn) -> None:
    """Clear the skip-LSN of a skipped transaction. A skip-LSN set meanwhile stays."""
    connection.execute(
        "update subscription set skip_lsn = 0, skipping = 0"
        " where oid = ? and skip_lsn = ?",
        (oid, skipped),
    )


def drop_subscription(connection: sqlite3.Connection, oid: Oid) -> None:
    """Delete a subscription. Foreign keys delete its dependent rows."""
    connection.execute("delete from subscription where oid = ?", (oid,))


# ---- errors and how many -------------------------------------------------------------


def errors(connection: sqlite3.Connection) -> list[SubscriptionError]:
    """Return all errors, by subscription."""
    rows = connection.execute("select * from subscription_error order by subid, worker")
    return [
        SubscriptionError(
            Oid(r["subid"]),
            WorkerKind(r["worker"]),
            r["error"],
            r["noted_at"],
            r["sqlstate"],
        )
        for r in rows
    ]


def error_of(
    connection: sqlite3.Connection, oid: Oid, worker: WorkerKind
) -> str | None:
    """Return the error that a worker has recorded and not cleared."""
    row = connection.execute(
        "select error from subscription_error where subid = ? and worker = ?",
        (oid, worker.value),
    ).fetchone()
    return None if row is None else str(row["error"])


def note_error(
    connection: sqlite3.Connection,
    oid: Oid,
    worker: WorkerKind,
    text: str,
    sqlstate: str | None,
) -> None:
    """Replace a worker's error. Has no effect if the subscription is gone."""
    connection.execute(
        "insert into subscription_error (subid, worker, error, noted_at, sqlstate)"
        " select oid, ?, ?, ?, ? from subscription where oid = ?"
        " on conflict do update set noted_at ="
        " case error when excluded.error then noted_at else excluded.noted_at end,"
        " error = excluded.error, sqlstate = excluded.sqlstate",
        (worker.value, text, _now(), sqlstate, oid),
    )


def clear_error(connection: sqlite3.Connection, oid: Oid, worker: WorkerKind) -> None:
    """Clear the error of a worker."""
    connection.execute(
        "delete from subscription_error where subid = ? and worker = ?",
        (oid, worker.value),
    )


def clear_errors(connection: sqlite3.Connection, oid: Oid) -> None:
    """Clear the errors of all workers of a subscription."""
    connection.execute("delete from subscription_error where subid = ?", (oid,))


_COUNTED: Final = {
    WorkerKind.APPLY: "apply_errors",
    WorkerKind.SNAPSHOT: "sync_errors",
    WorkerKind.COPY: "sync_errors",
}
"""Columns of counted errors. Errors of the receiver are not counted, because PostgreSQL does not
count a failure to connect as an apply error."""


def count_error(connection: sqlite3.Connection, oid: Oid, worker: WorkerKind) -> None:
    """Count a failed attempt."""
    column = _COUNTED.get(worker)
    if column is not None:
        connection.execute(
            f"update subscription_stats set {column} = {column} + 1 where subid = ?",
            (oid,),
        )


def counts(worker: WorkerKind) -> bool:
    """Whether failed attempts of this kind of worker are counted."""
    return worker in _COUNTED


def stats(connection: sqlite3.Connection) -> list[SubscriptionStats]:
    """Return the statistics of all subscriptions, by OID."""
    rows = connection.execute("select * from subscription_stats order by subid")
    return [
        SubscriptionStats(
            Oid(r["subid"]),
            r["apply_errors"],
            r["sync_errors"],
            r["stats_reset"],
            conflicts.counts(r["conflicts"]),
        )
        for r in rows
    ]


def reset_stats(connection: sqlite3.Connection, oid: Oid | None) -> None:
    """Reset the statistics of one subscription, or of all if ``oid`` is None."""
    connection.execute(
        "update subscription_stats set apply_errors = 0, sync_errors = 0,"
        " conflicts = '{}', stats_reset = ? where ? is null or subid = ?",
        (_now(), oid, oid),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


# ---- slots in the making -------------------------------------------------------------


def planned_slots(connection: sqlite3.Connection) -> list[PlannedSlot]:
    """Return all planned slots."""
    rows = connection.execute("select * from planned_slot order by slot_name, conninfo")
    return [
        PlannedSlot(
            r["slot_name"],
            r["conninfo"],
            r["subname"],
            Lsn(r["lsn"]),
            bool(r["must_use_password"]),
        )
        for r in rows
    ]


def plan_slot(connection: sqlite3.Connection, planned: PlannedSlot) -> None:
    """Record a planned slot, in place of an older plan for the same slot."""
    connection.execute(
        "insert or replace into planned_slot"
        " (slot_name, conninfo, subname, lsn, must_use_password)"
        " values (?, ?, ?, ?, ?)",
        (
            planned.slot_name,
            planned.conninfo,
            planned.subname,
            int(planned.lsn),
            int(planned.must_use_password),
        ),
    )


def forget_planned(connection: sqlite3.Connection, planned: PlannedSlot) -> None:
    """Delete the plan of a slot that does not exist, or is of no concern."""
    forget_planned_slot(connection, planned.slot_name, planned.conninfo)


def forget_planned_slot(
    connection: sqlite3.Connection, slot_name: str | None, conninfo: str
) -> None:
    """Delete the plan of a slot that a subscription owns now."""
    connection.execute(
        "delete from planned_slot where slot_name = ? and conninfo = ?",
        (slot_name, conninfo),
    )


# ---- relation states ----------------------------------------------------------------


def rels_of(connection: sqlite3.Connection, subid: Oid | None) -> list[SubscriptionRel]:
    """Return the tables of one subscription, or of all."""
    if subid is None:
        rows = all_rel_rows(connection)
    else:
        rows = connection.execute(
            "select * from subscription_rel where subid = ? order by relid", (subid,)
        )
    return [rel_of_row(r) for r in rows]


def all_rel_rows(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Return the rows of the tables of all subscriptions, for ``rel_of_row``."""
    return connection.execute("select * from subscription_rel order by subid, relid")


def add_rels(connection: sqlite3.Connection, added: Sequence[SubscriptionRel]) -> None:
    """Add tables to subscriptions."""
    connection.executemany(
        "insert into subscription_rel (subid, relid, remote_namespace, remote_name, state,"
        " lsn, epoch, rows_copied, rows_expected, bytes_copied, error, copy_plan, trusted,"
        " replaces, begins, seen_as)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                rel.subid,
                rel.relid,
                rel.remote_namespace,
                rel.remote_name,
                rel.state.value,
                rel.lsn,
                rel.epoch,
                rel.rows_copied,
                rel.rows_expected,
                rel.bytes_copied,
                rel.error,
                rel.copy_plan,
                int(rel.trusted),
                int(rel.replaces),
                rel.begins,
                rel.seen_as,
            )
            for rel in added
        ],
    )


def update_rel(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, changes: Mapping[str, Any]
) -> None:
    """Set fields of a relation state (a SyncState, an Lsn ...)."""
    values = {
        name: value.value if isinstance(value, SyncState) else value
        for name, value in changes.items()
    }
    sets = ", ".join(f"{name} = ?" for name in values)
    connection.execute(
        f"update subscription_rel set {sets} where subid = ? and relid = ?",
        (*values.values(), subid, relid),
    )


def take_remote_name(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, name: tuple[str, str]
) -> None:
    """Set a table's new name at the publisher. Rows are matched by name, so each name has one
    table: the table that had this name gets the old name."""
    connection.execute(
        "update subscription_rel set (remote_namespace, remote_name) ="
        " (select remote_namespace, remote_name from subscription_rel"
        " where subid = ?1 and relid = ?2)"
        " where subid = ?1 and relid <> ?2 and remote_namespace = ?3"
        " and remote_name = ?4",
        (subid, relid, *name),
    )
    named = {"remote_namespace": name[0], "remote_name": name[1]}
    update_rel(connection, subid, relid, named)


def distrust(
    connection: sqlite3.Connection, subid: Oid, relids: Collection[Oid] | None
) -> None:
    """Let inserts look for existing rows from now on, in these tables or in all."""
    for rel in rels_of(connection, subid):
        if rel.trusted and (relids is None or rel.relid in relids):
            update_rel(connection, subid, rel.relid, {"trusted": 0})


def remove_rel(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """Remove a table from a subscription."""
    connection.execute(
        "delete from subscription_rel where subid = ? and relid = ?", (subid, relid)
    )


# ---- rows <-> records ---------------------------------------------------------------


_ENCODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "publications": json.dumps,
    "options": json.dumps,
    "enabled": int,
    "create_tables": int,
    "dropping": int,
    "floor": int,
    "skip_lsn": int,
    "skipping": int,
    "recopying": lambda how: how.value,
}


def _fields(value: Subscription) -> dict[str, Any]:
    return {
        name: _ENCODERS.get(name, lambda v: v)(field)
        for name, field in asdict(value).items()
    }


def _subscription(row: sqlite3.Row) -> Subscription:
    return Subscription(
        oid=Oid(row["oid"]),
        name=row["name"],
        owner=Oid(row["owner"]),
        enabled=bool(row["enabled"]),
        conninfo=row["conninfo"],
        slot_name=row["slot_name"],
        publications=tuple(json.loads(row["publications"])),
        synchronous_commit=row["synchronous_commit"],
        create_tables=bool(row["create_tables"]),
        generation=row["generation"],
        floor=Lsn(row["floor"]),
        system_identifier=row["system_identifier"],
        timeline=row["timeline"],
        dropping=bool(row["dropping"]),
        options=json.loads(row["options"]),
        skip_lsn=Lsn(row["skip_lsn"]),
        skipping=bool(row["skipping"]),
        recopying=Recopy(row["recopying"]),
    )


def rel_of_row(row: sqlite3.Row) -> SubscriptionRel:
    """Return a table of a subscription from its row."""
    return SubscriptionRel(
        subid=Oid(row["subid"]),
        relid=Oid(row["relid"]),
        remote_namespace=row["remote_namespace"],
        remote_name=row["remote_name"],
        state=SyncState(row["state"]),
        lsn=None if row["lsn"] is None else Lsn(row["lsn"]),
        epoch=row["epoch"],
        rows_copied=row["rows_copied"],
        rows_expected=row["rows_expected"],
        bytes_copied=row["bytes_copied"],
        error=row["error"],
        sqlstate=row["sqlstate"],
        copy_plan=row["copy_plan"],
        trusted=bool(row["trusted"]),
        replaces=bool(row["replaces"]),
        heals=bool(row["heals"]),
        paused_at=row["paused_at"],
        rejoins=bool(row["rejoins"]),
        copied_from=None if row["copied_from"] is None else Oid(row["copied_from"]),
        begins=None if row["begins"] is None else Lsn(row["begins"]),
        published_as=row["published_as"],
        seen_as=row["seen_as"],
    )
