"""Rows of ``subscription``, ``planned_slot`` and ``subscription_rel``.

In: a connection, and in writes a transaction on it. Out: ``Subscription``, ``PlannedSlot`` and
``SubscriptionRel``. Called by ``store``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from wal2lake.catalog.records import PlannedSlot, Subscription, SubscriptionRel
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError
from wal2lake.model import Lsn, Oid, SyncState


def all_subscriptions(connection: sqlite3.Connection) -> list[Subscription]:
    """All of them, by OID."""
    rows = connection.execute("select * from subscription order by oid")
    return [_subscription(r) for r in rows]


def subscription_by_oid(
    connection: sqlite3.Connection, oid: Oid
) -> Subscription | None:
    """One by OID."""
    row = connection.execute(
        "select * from subscription where oid = ?", (oid,)
    ).fetchone()
    return None if row is None else _subscription(row)


def subscription_named(
    connection: sqlite3.Connection, name: str
) -> Subscription | None:
    """One by name."""
    row = connection.execute(
        "select * from subscription where name = ?", (name,)
    ).fetchone()
    return None if row is None else _subscription(row)


def create_subscription(
    connection: sqlite3.Connection, subscription: Subscription
) -> None:
    """42710 if the name is taken."""
    fields = _fields(subscription)
    names = ", ".join(fields)
    marks = ", ".join("?" * len(fields))
    try:
        connection.execute(
            f"insert into subscription ({names}) values ({marks})",
            tuple(fields.values()),
        )
    except sqlite3.IntegrityError:
        raise DuplicateObjectError(
            f'subscription "{subscription.name}" already exists'
        ) from None


def update_subscription(
    connection: sqlite3.Connection, oid: Oid, changes: Mapping[str, Any], *, bump: bool
) -> Subscription:
    """Set fields, and the next generation with ``bump``; 42704 if it is gone."""
    found = subscription_by_oid(connection, oid)
    if found is None:
        raise UndefinedObjectError(f"subscription with OID {oid} is gone")
    changed = replace(found, **changes)
    if bump:
        changed = replace(changed, generation=changed.generation + 1)
    fields = _fields(changed)
    sets = ", ".join(f"{name} = ?" for name in fields)
    connection.execute(
        f"update subscription set {sets} where oid = ?", (*fields.values(), oid)
    )
    return changed


def set_last_error(connection: sqlite3.Connection, oid: Oid, text: str | None) -> None:
    """Keep an error, or clear it."""
    connection.execute(
        "update subscription set last_error = ? where oid = ?", (text, oid)
    )


def drop_subscription(connection: sqlite3.Connection, oid: Oid) -> None:
    """Its relation states, ranges, snapshot and vectors go with it (by foreign key)."""
    connection.execute("delete from subscription where oid = ?", (oid,))


# ---- slots in the making -------------------------------------------------------------


def planned_slots(connection: sqlite3.Connection) -> list[PlannedSlot]:
    """All of them."""
    rows = connection.execute("select * from planned_slot order by slot_name, conninfo")
    return [
        PlannedSlot(r["slot_name"], r["conninfo"], r["subname"], Lsn(r["lsn"]))
        for r in rows
    ]


def plan_slot(connection: sqlite3.Connection, planned: PlannedSlot) -> None:
    """It takes the place of an older plan for the same slot."""
    connection.execute(
        "insert or replace into planned_slot values (?, ?, ?, ?)",
        (planned.slot_name, planned.conninfo, planned.subname, int(planned.lsn)),
    )


def forget_planned(connection: sqlite3.Connection, planned: PlannedSlot) -> None:
    """The slot is not there, or is nobody's concern."""
    forget_planned_slot(connection, planned.slot_name, planned.conninfo)


def forget_planned_slot(
    connection: sqlite3.Connection, slot_name: str | None, conninfo: str
) -> None:
    """A subscription owns it now."""
    connection.execute(
        "delete from planned_slot where slot_name = ? and conninfo = ?",
        (slot_name, conninfo),
    )


# ---- relation states ----------------------------------------------------------------


def rels_of(connection: sqlite3.Connection, subid: Oid | None) -> list[SubscriptionRel]:
    """Of one subscription, or of all."""
    if subid is None:
        rows = connection.execute(
            "select * from subscription_rel order by subid, relid"
        )
    else:
        rows = connection.execute(
            "select * from subscription_rel where subid = ? order by relid", (subid,)
        )
    return [_rel(r) for r in rows]


def add_rels(connection: sqlite3.Connection, added: Sequence[SubscriptionRel]) -> None:
    """New tables of subscriptions."""
    connection.executemany(
        "insert into subscription_rel values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            )
            for rel in added
        ],
    )


def update_rel(
    connection: sqlite3.Connection, subid: Oid, relid: Oid, changes: Mapping[str, Any]
) -> None:
    """Set fields (a state of SyncState, an Lsn ...)."""
    values = {
        name: value.value if isinstance(value, SyncState) else value
        for name, value in changes.items()
    }
    sets = ", ".join(f"{name} = ?" for name in values)
    connection.execute(
        f"update subscription_rel set {sets} where subid = ? and relid = ?",
        (*values.values(), subid, relid),
    )


def remove_rel(connection: sqlite3.Connection, subid: Oid, relid: Oid) -> None:
    """A table leaves a subscription."""
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
        last_error=row["last_error"],
        dropping=bool(row["dropping"]),
        options=json.loads(row["options"]),
    )


def _rel(row: sqlite3.Row) -> SubscriptionRel:
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
        copy_plan=row["copy_plan"],
        trusted=bool(row["trusted"]),
    )
