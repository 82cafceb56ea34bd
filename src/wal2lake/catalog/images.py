"""Images of the catalog that leave the machine: when one is due, and how a node begins with one.

In: the catalog's file. Out: a digest of the facts that matter, which is the same while only fast
facts move; an image; an image made ready for a directory whose publisher's log is gone. Called by
``archive``.

Facts that move with each batch are left out of the digest (``_FAST``): an image may lag behind
them, because tables keep their cursors, and the node is then in the state that a crash leaves. A
table or column that is not named here counts, so a new one cannot be forgotten.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wal2lake.catalog.database import Database
from wal2lake.errors import StorageError

_FAST: Final = frozenset(
    {
        "applied_end",
        "coercion",
        "coercion_pending",
        "conflict",
        "copy_range",
        "history_pending",
        "local_commit",
        "replication_slot",
        "restart_pending",
        "snapshot_vector",
        "sqlite_sequence",
        "subscription_error",
        "subscription_stats",
        "sync_snapshot",
    }
)
"""Tables whose rows follow from the tables' commits and the log, or are counts, reports and work
that a restart begins anew. Slots are no use without the publisher's log."""

_FAST_COLUMNS: Final[Mapping[str, frozenset[str]]] = {
    "subscription": frozenset({"floor", "skipping"}),
    "subscription_rel": frozenset(
        {"rows_copied", "rows_expected", "bytes_copied", "error", "sqlstate"}
    ),
}

_FAST_KEYS: Final = ("counter", "next_xid")

_SPARE_XIDS: Final = 1 << 24
"""Transaction numbers that are skipped, since the image may lag. A guess: a node that commits
10,000 transactions a second takes half an hour for them, and the image lags by a minute."""

_SPARE_OIDS: Final = 10_000
"""OIDs that are skipped: an object made after the image has left files under its own."""


LOG_NUMBER: Final = "log_number"
"""Not an option of a subscription: number of its log, which begins anew at another slot."""


def log_number(options: Mapping[str, str]) -> int:
    """Return the number of a subscription's log."""
    return int(options.get(LOG_NUMBER, "1"))


@dataclass(frozen=True, slots=True)
class RevivedSubscription:
    """A subscription of an image."""

    oid: int
    slot_name: str
    floor: int
    log: int
    """Number of its log."""


@dataclass(frozen=True, slots=True)
class RevivedCatalog:
    """Facts about an image, and what of it a new directory cannot go on with."""

    system_identifier: int
    subscriptions: tuple[RevivedSubscription, ...]
    slots: tuple[str, ...]
    """Permanent slots of the node's own subscribers, which are removed."""


class CatalogImages:
    """Digests and images of one catalog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def digest(self) -> str:
        """Return a digest of the facts that matter."""
        digest = hashlib.sha256()
        with self._database.reading() as connection:
            connection.execute("begin")
            try:
                for table in _tables(connection):
                    digest.update(f"\n{table}\n".encode())
                    for row in connection.execute(_query(connection, table)):
                        digest.update(repr(tuple(row)).encode())
            finally:
                connection.execute("rollback")
        return digest.hexdigest()

    def copy_to(self, target: Path) -> None:
        """Copy the catalog as it is at one moment. Its writers do not wait. Raises StorageError,
        also for a copy that is damaged: it must not take the place of one that is not."""
        with self._database.reading():
            # SQLite would make it with the umask's mode.
            target.touch(0o600)
            source = sqlite3.connect(self._database.path, timeout=30)
            copy = sqlite3.connect(target)
            try:
                source.backup(copy)
                (check_result,) = copy.execute("pragma quick_check(1)").fetchone()
            finally:
                copy.close()
                source.close()
        if check_result != "ok":
            raise StorageError(
                f'catalog "{self._database.path}" is damaged',
                sqlstate="XX001",
                original=check_result,
            )


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(
        "select name from sqlite_master where type = 'table' order by name"
    )
    return [row[0] for row in rows.fetchall() if row[0] not in _FAST]


def _query(connection: sqlite3.Connection, table: str) -> str:
    fast = _FAST_COLUMNS.get(table, frozenset())
    rows = connection.execute(f'pragma table_info("{table}")').fetchall()
    names = ", ".join(f'"{row[1]}"' for row in rows if row[1] not in fast)
    where = ""
    if table == "meta":
        where = f" where key not in {_FAST_KEYS!r}"
    return f'select {names} from "{table}"{where} order by {names}'


def revive(path: Path) -> RevivedCatalog:
    """Make an image ready for a new directory: without slots, and with numbers that nobody has used
    since the image was made."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("begin immediate")
        slots = connection.execute(
            "select name from replication_slot where temporary = 0 order by name"
        ).fetchall()
        connection.execute("delete from replication_slot")
        # What became of them since is not known: one that was taken back must not be carried out.
        connection.execute("delete from local_commit")
        for key, spare in (("next_xid", _SPARE_XIDS), ("next_oid", _SPARE_OIDS)):
            connection.execute(
                "update meta set value = value + ? where key = ?", (spare, key)
            )
        (identifier,) = connection.execute(
            "select value from meta where key = 'system_identifier'"
        ).fetchone()
        subscriptions = connection.execute(
            "select oid, slot_name, floor, options from subscription order by oid"
        ).fetchall()
        connection.execute("commit")
    finally:
        connection.close()
    return RevivedCatalog(
        int(identifier),
        tuple(
            RevivedSubscription(
                int(oid), slot or "", int(floor), log_number(json.loads(options))
            )
            for oid, slot, floor, options in subscriptions
        ),
        tuple(str(name) for (name,) in slots),
    )
