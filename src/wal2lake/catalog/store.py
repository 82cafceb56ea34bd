"""The catalog's store: records in, records out, one SQLite transaction a method.

Every process opens its own; a connection belongs to the thread that made it and never
crosses a fork. A method returns only after the commit is durable (synchronous=FULL).
``change_counter`` grows with every commit of any process, so a cache can ask cheaply
whether it is stale.

Called by: commands and system views (frontend), the supervisor (launch), workers.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from wal2lake.catalog import schema
from wal2lake.catalog.records import (
    ColumnDef,
    CopyRange,
    Namespace,
    Role,
    SnapshotVector,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    TableDef,
)
from wal2lake.errors import (
    ConfigurationError,
    DuplicateObjectError,
    UndefinedObjectError,
)
from wal2lake.model import Lsn, Oid, SyncState

FILE_NAME: Final = "catalog.sqlite"

_BUSY_TIMEOUT_SECONDS: Final = 30.0

_VECTORS_KEPT: Final = 10_000
"""Published states kept per subscription for wal2lake.snapshots; a guess at a day's."""


class Catalog:
    """The durable facts of one node."""

    def __init__(self, path: Path) -> None:
        """Open an existing catalog; ConfigurationError if missing or of a newer version."""
        self._path = path
        self._local = threading.local()
        if not path.exists():
            raise ConfigurationError(
                f'catalog "{path}" does not exist',
                hint="Run wal2lake init, or check the directory given with -D.",
            )
        found = self._meta("version")
        if int(found) > schema.VERSION:
            raise ConfigurationError(
                f"catalog has version {found}, this wal2lake reads up to"
                f" {schema.VERSION}",
                hint="Install the wal2lake version that wrote it, or a later one.",
            )

    @classmethod
    def create(cls, path: Path, superuser: str, password: str | None) -> Catalog:
        """Make a new catalog with its first role and schema public."""
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            path.chmod(0o600)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            script = ["begin", *schema.DDL.split(";")]
            for statement in script:
                if statement.strip():
                    connection.execute(statement)
            system_identifier = _new_system_identifier()
            connection.executemany(
                "insert into meta values (?, ?)",
                [
                    ("version", str(schema.VERSION)),
                    ("next_oid", str(schema.FIRST_OID)),
                    ("counter", "1"),
                    ("system_identifier", str(system_identifier)),
                    ("created_at", datetime.now(UTC).isoformat()),
                ],
            )
            connection.execute(
                "insert into role values (?, ?, 1, ?)",
                (schema.SUPERUSER_OID, superuser, password),
            )
            connection.execute(
                "insert into namespace values (?, 'public', ?)",
                (schema.PUBLIC_OID, schema.SUPERUSER_OID),
            )
            connection.execute("commit")
        finally:
            connection.close()
        return cls(path)

    # ---- connection and transactions -------------------------------------------

    def _connection(self) -> sqlite3.Connection:
        owner = (os.getpid(), threading.get_ident())
        if getattr(self._local, "owner", None) != owner:
            connection = sqlite3.connect(
                self._path,
                timeout=_BUSY_TIMEOUT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            connection.row_factory = sqlite3.Row
            connection.execute("pragma synchronous = full")
            connection.execute("pragma foreign_keys = on")
            self._local.connection = connection
            self._local.owner = owner
        found: sqlite3.Connection = self._local.connection
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection()
        connection.execute("begin immediate")
        try:
            yield connection
            connection.execute(
                "update meta set value = value + 1 where key = 'counter'"
            )
            connection.execute("commit")
        except BaseException:
            connection.execute("rollback")
            raise

    def _rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        return self._connection().execute(sql, values).fetchall()

    def _meta(self, key: str) -> str:
        return str(self._rows("select value from meta where key = ?", key)[0][0])

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            del self._local.connection
            del self._local.owner

    # ---- the node ---------------------------------------------------------------

    @property
    def change_counter(self) -> int:
        """Grows with every commit; equal numbers mean nothing has changed."""
        return int(self._meta("counter"))

    @property
    def system_identifier(self) -> int:
        """This node's own, as IDENTIFY_SYSTEM would report it: 64 bits."""
        return int(self._meta("system_identifier"))

    def new_oid(self) -> Oid:
        """A number that no object of this node had before."""
        with self._transaction() as connection:
            return _take_oid(connection)

    # ---- roles and namespaces -----------------------------------------------------

    def roles(self) -> list[Role]:
        """All roles."""
        return [
            Role(Oid(r["oid"]), r["name"], bool(r["superuser"]), r["password"])
            for r in self._rows("select * from role order by oid")
        ]

    def role(self, name: str) -> Role | None:
        """One role by name."""
        return next((r for r in self.roles() if r.name == name), None)

    def namespaces(self) -> list[Namespace]:
        """All schemas of lake tables."""
        return [
            Namespace(Oid(r["oid"]), r["name"], Oid(r["owner"]))
            for r in self._rows("select * from namespace order by oid")
        ]

    def create_namespace(self, name: str, owner: Oid) -> Namespace:
        """42P06 if it exists."""
        with self._transaction() as connection:
            try:
                oid = _take_oid(connection)
                connection.execute(
                    "insert into namespace values (?, ?, ?)", (oid, name, owner)
                )
            except sqlite3.IntegrityError:
                raise DuplicateObjectError(
                    f'schema "{name}" already exists', sqlstate="42P06"
                ) from None
        return Namespace(oid, name, owner)

    def drop_namespace(self, name: str) -> None:
        """The schema must be empty; 3F000 if there is none."""
        with self._transaction() as connection:
            done = connection.execute("delete from namespace where name = ?", (name,))
            if done.rowcount == 0:
                raise UndefinedObjectError(
                    f'schema "{name}" does not exist', sqlstate="3F000"
                )

    # ---- tables ---------------------------------------------------------------------

    def tables(self) -> list[TableDef]:
        """All lake tables, by OID."""
        return [_table(r) for r in self._rows("select * from relation order by oid")]

    def table(self, namespace: str, name: str) -> TableDef | None:
        """One table by its exact names."""
        rows = self._rows(
            "select * from relation where namespace = ? and name = ?", namespace, name
        )
        return _table(rows[0]) if rows else None

    def table_by_oid(self, oid: Oid) -> TableDef | None:
        """One table by OID."""
        rows = self._rows("select * from relation where oid = ?", oid)
        return _table(rows[0]) if rows else None

    def create_table(self, table: TableDef) -> None:
        """Record a table whose storage exists; 42P07 if the name is taken."""
        with self._transaction() as connection:
            try:
                connection.execute(
                    "insert into relation values (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        table.oid,
                        table.namespace,
                        table.name,
                        table.owner,
                        table.location,
                        json.dumps([asdict(c) for c in table.columns]),
                        json.dumps(table.key),
                        table.key_name,
                    ),
                )
            except sqlite3.IntegrityError as error:
                if "FOREIGN KEY" in str(error):
                    raise UndefinedObjectError(
                        f'schema "{table.namespace}" does not exist', sqlstate="3F000"
                    ) from None
                raise DuplicateObjectError(
                    f'relation "{table.name}" already exists', sqlstate="42P07"
                ) from None

    def drop_table(self, oid: Oid) -> None:
        """Forget a table and its part in every subscription."""
        with self._transaction() as connection:
            connection.execute("delete from subscription_rel where relid = ?", (oid,))
            connection.execute("delete from relation where oid = ?", (oid,))

    # ---- subscriptions ----------------------------------------------------------------

    def subscriptions(self) -> list[Subscription]:
        """All of them, by OID."""
        rows = self._rows("select * from subscription order by oid")
        return [_subscription(r) for r in rows]

    def subscription(self, oid: Oid) -> Subscription | None:
        """One by OID."""
        rows = self._rows("select * from subscription where oid = ?", oid)
        return _subscription(rows[0]) if rows else None

    def subscription_named(self, name: str) -> Subscription | None:
        """One by name."""
        rows = self._rows("select * from subscription where name = ?", name)
        return _subscription(rows[0]) if rows else None

    def create_subscription(
        self, subscription: Subscription, rels: Sequence[SubscriptionRel]
    ) -> None:
        """Record it with its tables; 42710 if the name is taken."""
        with self._transaction() as connection:
            try:
                fields = _subscription_fields(subscription)
                names = ", ".join(fields)
                marks = ", ".join("?" * len(fields))
                connection.execute(
                    f"insert into subscription ({names}) values ({marks})",
                    tuple(fields.values()),
                )
            except sqlite3.IntegrityError:
                raise DuplicateObjectError(
                    f'subscription "{subscription.name}" already exists'
                ) from None
            for rel in rels:
                _insert_rel(connection, rel)

    def update_subscription(self, oid: Oid, **changes: Any) -> Subscription:
        """Set fields of one subscription and return it.

        A change that its workers must notice is a new ``generation``: pass
        ``bump=True``. 42704 if it is gone.
        """
        bump = bool(changes.pop("bump", False))
        with self._transaction() as connection:
            row = connection.execute(
                "select * from subscription where oid = ?", (oid,)
            ).fetchone()
            if row is None:
                raise UndefinedObjectError(f"subscription with OID {oid} is gone")
            changed = replace(_subscription(row), **changes)
            if bump:
                changed = replace(changed, generation=changed.generation + 1)
            fields = _subscription_fields(changed)
            sets = ", ".join(f"{name} = ?" for name in fields)
            connection.execute(
                f"update subscription set {sets} where oid = ?",
                (*fields.values(), oid),
            )
        return changed

    def note_error(self, oid: Oid, text: str | None) -> None:
        """Keep the newest error of a subscription's workers, or clear it."""
        rows = self._rows("select last_error from subscription where oid = ?", oid)
        if rows and rows[0][0] != text:
            with self._transaction() as connection:
                connection.execute(
                    "update subscription set last_error = ? where oid = ?", (text, oid)
                )

    def drop_subscription(self, oid: Oid) -> None:
        """Forget it, its relation states, ranges and vectors."""
        with self._transaction() as connection:
            connection.execute("delete from subscription where oid = ?", (oid,))

    # ---- relation states and copies ------------------------------------------------------

    def rels(self, subid: Oid | None = None) -> list[SubscriptionRel]:
        """Relation states of one subscription, or of all."""
        if subid is None:
            rows = self._rows("select * from subscription_rel order by subid, relid")
        else:
            rows = self._rows(
                "select * from subscription_rel where subid = ? order by relid", subid
            )
        return [_rel(r) for r in rows]

    def add_rels(self, rels: Sequence[SubscriptionRel]) -> None:
        """New tables of a subscription."""
        with self._transaction() as connection:
            for rel in rels:
                _insert_rel(connection, rel)

    def remove_rel(self, subid: Oid, relid: Oid) -> None:
        """A table leaves a subscription; its data stays."""
        with self._transaction() as connection:
            connection.execute(
                "delete from subscription_rel where subid = ? and relid = ?",
                (subid, relid),
            )

    def update_rel(self, subid: Oid, relid: Oid, **changes: Any) -> None:
        """Set fields of one relation state (a state of SyncState, an Lsn ...)."""
        values = {
            name: value.value if isinstance(value, SyncState) else value
            for name, value in changes.items()
        }
        sets = ", ".join(f"{name} = ?" for name in values)
        with self._transaction() as connection:
            connection.execute(
                f"update subscription_rel set {sets} where subid = ? and relid = ?",
                (*values.values(), subid, relid),
            )

    def record_range(self, done: CopyRange) -> None:
        """A finished range of a copy, and its rows in the table's progress."""
        size = sum(int(add["size"]) for add in json.loads(done.files))
        with self._transaction() as connection:
            connection.execute(
                "insert or replace into copy_range values (?, ?, ?, ?, ?, ?, ?)",
                (
                    done.subid,
                    done.relid,
                    done.epoch,
                    done.snapshot,
                    done.number,
                    done.rows,
                    done.files,
                ),
            )
            connection.execute(
                "update subscription_rel set rows_copied = rows_copied + ?,"
                " bytes_copied = bytes_copied + ? where subid = ? and relid = ?",
                (done.rows, size, done.subid, done.relid),
            )

    def ranges(self, subid: Oid, relid: Oid) -> list[CopyRange]:
        """The finished ranges of a table's running copy."""
        rows = self._rows(
            "select * from copy_range where subid = ? and relid = ? order by number",
            subid,
            relid,
        )
        return [
            CopyRange(
                Oid(r["subid"]),
                Oid(r["relid"]),
                r["epoch"],
                r["snapshot"],
                r["number"],
                r["rows"],
                r["files"],
            )
            for r in rows
        ]

    def forget_ranges(self, subid: Oid, relid: Oid) -> None:
        """The copy is committed, or starts again."""
        with self._transaction() as connection:
            connection.execute(
                "delete from copy_range where subid = ? and relid = ?", (subid, relid)
            )

    def hold_snapshot(self, held: SyncSnapshot) -> None:
        """A receiver holds an exported snapshot for this subscription's copies."""
        with self._transaction() as connection:
            connection.execute(
                "insert or replace into sync_snapshot values (?, ?, ?, ?, ?)",
                (
                    held.subid,
                    held.snapshot,
                    held.lsn,
                    held.holder,
                    json.dumps(held.relids),
                ),
            )

    def snapshot_held(self, subid: Oid) -> SyncSnapshot | None:
        """The snapshot that copies of this subscription may use now."""
        rows = self._rows("select * from sync_snapshot where subid = ?", subid)
        if not rows:
            return None
        r = rows[0]
        return SyncSnapshot(
            Oid(r["subid"]),
            r["snapshot"],
            Lsn(r["lsn"]),
            r["holder"],
            tuple(json.loads(r["relids"])),
        )

    def release_snapshot(self, subid: Oid) -> None:
        """The snapshot is gone, or no longer needed."""
        with self._transaction() as connection:
            connection.execute("delete from sync_snapshot where subid = ?", (subid,))

    # ---- published states -------------------------------------------------------------

    def publish(
        self,
        subid: Oid,
        reached: Lsn,
        versions: Mapping[int, int],
        *,
        participants: Collection[int] = (),
        joined: Sequence[int] = (),
    ) -> Lsn:
        """Advance the floor and publish the tables' versions, in one transaction.

        ``versions`` holds the changed tables only; the others keep theirs. Equal
        state at a new LSN moves the newest vector instead of adding one.

        The subscription's floor follows ``reached`` but never goes back, and never
        passes what a table still needs of the log: the snapshot of one that is being
        copied, the position of one that has come since the caller looked (it is not
        among ``participants``, the tables that are complete below ``reached``).

        Tables in ``joined`` take their next step to ready: f -> s at ``reached``,
        s -> r. Returns the floor.
        """
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        with self._transaction() as connection:
            connection.execute(
                "update subscription set floor = max(floor, ?) where oid = ?",
                (_bounded(connection, subid, reached, set(participants)), subid),
            )
            for relid in joined:
                connection.execute(
                    "update subscription_rel set lsn = case state when 'f' then ?"
                    " else lsn end, state = case state when 'f' then 's'"
                    " when 's' then 'r' else state end where subid = ? and relid = ?",
                    (reached, subid, relid),
                )
            row = connection.execute(
                "select * from snapshot_vector where subid = ?"
                " order by number desc limit 1",
                (subid,),
            ).fetchone()
            before = {} if row is None else _versions(row["versions"])
            merged = {**before, **{int(k): int(v) for k, v in versions.items()}}
            number = 0 if row is None else int(row["number"])
            if row is None or merged != before:
                number += 1
            else:
                now = row["committed_at"]
            connection.execute(
                "insert or replace into snapshot_vector"
                " (subid, lsn, committed_at, versions, number) values (?, ?, ?, ?, ?)",
                (subid, reached, now, json.dumps(merged), number),
            )
            connection.execute(
                "delete from snapshot_vector where subid = ? and number <= ?",
                (subid, number - _VECTORS_KEPT),
            )
            floor = connection.execute(
                "select floor from subscription where oid = ?", (subid,)
            ).fetchone()
        return Lsn(floor[0] if floor is not None else 0)

    def forget_version(self, subid: Oid, relid: Oid) -> None:
        """A table left the subscription: the newest vector no longer pins it."""
        newest = self.newest_vector(subid)
        if newest is None or int(relid) not in newest.versions:
            return
        rest = {k: v for k, v in newest.versions.items() if k != int(relid)}
        with self._transaction() as connection:
            connection.execute(
                "update snapshot_vector set versions = ? where subid = ? and number ="
                " (select max(number) from snapshot_vector where subid = ?)",
                (json.dumps(rest), subid, subid),
            )

    def newest_vector(self, subid: Oid) -> SnapshotVector | None:
        """The state that a SELECT sees."""
        rows = self._rows(
            "select * from snapshot_vector where subid = ?"
            " order by number desc limit 1",
            subid,
        )
        return _vector(rows[0]) if rows else None

    def vectors(self) -> list[SnapshotVector]:
        """All published states that are kept, oldest first."""
        rows = self._rows("select * from snapshot_vector order by subid, number")
        return [_vector(r) for r in rows]


# ---- rows <-> records ---------------------------------------------------------------


def _take_oid(connection: sqlite3.Connection) -> Oid:
    row = connection.execute(
        "update meta set value = value + 1 where key = 'next_oid' returning value - 1"
    ).fetchone()
    return Oid(int(row[0]))


def _bounded(
    connection: sqlite3.Connection, subid: Oid, reached: Lsn, participants: set[int]
) -> int:
    """The highest floor up to ``reached`` that every table allows."""
    held = connection.execute(
        "select lsn, relids from sync_snapshot where subid = ?", (subid,)
    ).fetchone()
    covered = set() if held is None else set(json.loads(held["relids"]))
    bound = int(reached)
    for row in connection.execute(
        "select relid, state, lsn from subscription_rel where subid = ?", (subid,)
    ):
        if row["state"] == SyncState.INIT.value or row["relid"] in participants:
            # Its snapshot is still to come, and will be above all that is logged now.
            continue
        if row["state"] == SyncState.DATASYNC.value:
            # Not covered: a snapshot is about to be taken, no lower than the floor.
            needed = int(held["lsn"]) if row["relid"] in covered else 0
        else:
            needed = int(row["lsn"] or 0)
        bound = min(bound, needed)
    return bound


def _new_system_identifier() -> int:
    # As PostgreSQL's BootStrapXLOG: seconds, microseconds and the process id, so
    # that two nodes made in the same second still differ.
    now = datetime.now(UTC)
    return int(now.timestamp()) << 32 | now.microsecond << 12 | os.getpid() & 0xFFF


def _table(row: sqlite3.Row) -> TableDef:
    columns = tuple(
        ColumnDef(**{**c, "type_oid": Oid(c["type_oid"])})
        for c in json.loads(row["columns"])
    )
    return TableDef(
        oid=Oid(row["oid"]),
        namespace=row["namespace"],
        name=row["name"],
        owner=Oid(row["owner"]),
        columns=columns,
        key=tuple(json.loads(row["key"])),
        location=row["location"],
        key_name=row["key_name"],
    )


_ENCODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "publications": json.dumps,
    "options": json.dumps,
    "enabled": int,
    "create_tables": int,
    "dropping": int,
    "floor": int,
}


def _subscription_fields(value: Subscription) -> dict[str, Any]:
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


def _insert_rel(connection: sqlite3.Connection, rel: SubscriptionRel) -> None:
    connection.execute(
        "insert into subscription_rel values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
        ),
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


def _versions(text: str) -> dict[int, int]:
    return {int(k): int(v) for k, v in json.loads(text).items()}


def _vector(row: sqlite3.Row) -> SnapshotVector:
    return SnapshotVector(
        subid=Oid(row["subid"]),
        lsn=Lsn(row["lsn"]),
        committed_at=row["committed_at"],
        versions=_versions(row["versions"]),
    )
