"""``Catalog``'s methods about replication slots and origins."""

from __future__ import annotations

import sqlite3

from wal2lake.catalog.parts.part import CatalogPart
from wal2lake.catalog.records import ReplicationOrigin, ReplicationSlot
from wal2lake.catalog.replication import origins, subscriptions
from wal2lake.errors import DuplicateObjectError
from wal2lake.model import Lsn, Oid


class Slots(CatalogPart):
    """Slots of the publisher's log, whose positions only grow; origins of replayed transactions."""

    def slots(self) -> list[ReplicationSlot]:
        """Return all slots, by name."""
        with self._database.reading() as connection:
            rows = connection.execute("select * from replication_slot order by name")
            return [_slot(row) for row in rows]

    def slot(self, name: str) -> ReplicationSlot | None:
        """Return a slot by name."""
        with self._database.reading() as connection:
            row = connection.execute(
                "select * from replication_slot where name = ?", (name,)
            ).fetchone()
            return None if row is None else _slot(row)

    def create_slot(self, slot: ReplicationSlot) -> None:
        """Create a slot. Raises 42710 if the name is taken."""
        with self._database.transaction() as transaction:
            try:
                transaction.execute(
                    "insert into replication_slot (name, plugin, temporary, two_phase,"
                    " failover, restart_lsn, confirmed_lsn, two_phase_at)"
                    " values (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        slot.name,
                        slot.plugin,
                        slot.temporary,
                        slot.two_phase,
                        slot.failover,
                        slot.restart_lsn,
                        slot.confirmed_lsn,
                        slot.two_phase_at,
                    ),
                )
            except sqlite3.IntegrityError:
                raise DuplicateObjectError(
                    f'replication slot "{slot.name}" already exists', sqlstate="42710"
                ) from None

    def drop_slot(self, name: str) -> bool:
        """Drop a slot. Return whether it existed."""
        with self._database.transaction() as transaction:
            deleted = transaction.execute(
                "delete from replication_slot where name = ?", (name,)
            )
            return deleted.rowcount > 0

    def drop_temporary_slots(self, session: int | None = None) -> None:
        """Drop the temporary slots of a session that has ended. None for all temporary slots of
        earlier engines, and slots whose creation a crash interrupted."""
        with self._database.transaction() as transaction:
            transaction.execute(
                "delete from replication_slot where temporary <> 0"
                " and (? is null or temporary = ?)"
                " or ? is null and confirmed_lsn = 0",
                (session, session, session),
            )

    def confirm_slot(self, name: str, lsn: Lsn) -> None:
        """Record that the slot's client has everything below ``lsn``."""
        with self._database.transaction() as transaction:
            transaction.execute(
                "update replication_slot set confirmed_lsn = max(confirmed_lsn, ?),"
                " restart_lsn = max(restart_lsn, ?) where name = ?",
                (lsn, lsn, name),
            )

    def alter_slot(
        self,
        name: str,
        *,
        failover: bool | None = None,
        two_phase: bool | None = None,
        two_phase_at: Lsn | None = None,
    ) -> None:
        """Set options of a slot; None to keep a value."""
        with self._database.transaction() as transaction:
            transaction.execute(
                "update replication_slot set failover = coalesce(?, failover),"
                " two_phase = coalesce(?, two_phase),"
                " two_phase_at = coalesce(?, two_phase_at) where name = ?",
                (failover, two_phase, two_phase_at, name),
            )

    def create_origin(self, name: str) -> int:
        """Carry out pg_replication_origin_create. Return the origin's number. Raises 23505 if the
        name exists."""
        with self._database.transaction() as transaction:
            return origins.create(transaction, name)

    def drop_origin(self, name: str) -> None:
        """Drop an origin. Raises 42704 if it does not exist."""
        with self._database.transaction() as transaction:
            origins.drop(transaction, name)

    def origins(self) -> list[ReplicationOrigin]:
        """Return the created origins. Each subscription has an origin besides these."""
        with self._database.reading() as connection:
            return origins.all_of_them(connection)

    def applied_ends(self) -> dict[Oid, Lsn]:
        """Return the positions of subscriptions' origins. 0 or missing if nothing was applied."""
        with self._database.reading() as connection:
            return origins.applied(connection)

    def origin_numbers(self) -> dict[str, int]:
        """Return the numbers of all origins in pg_replication_origin, by name."""
        with self._database.reading() as connection:
            subs = subscriptions.all_subscriptions(connection)
            created = origins.all_of_them(connection)
        numbers = {f"pg_{origin.oid}": number for number, origin in enumerate(subs, 1)}
        return numbers | {origin.name: origin.number for origin in created}

    def move_origin(self, name: str, lsn: Lsn, *, back: bool = False) -> None:
        """Set an origin's position to ``lsn``. A lower position is set only with ``back``."""
        with self._database.transaction() as transaction:
            origins.advance(transaction, name, lsn, back=back)

    def begin_two_phase(self, name: str, lsn: Lsn) -> None:
        """Enable two_phase for a slot from ``lsn`` on, unless it is enabled already."""
        with self._database.transaction() as transaction:
            transaction.execute(
                "update replication_slot set two_phase = 1, two_phase_at = ?"
                " where name = ? and not two_phase",
                (lsn, name),
            )

    def invalidate_slot(
        self, name: str, reason: str, restart_lsn: Lsn | None = None
    ) -> bool:
        """Invalidate a slot; with ``restart_lsn``, only if its restart_lsn is that. Return whether
        it was invalidated."""
        with self._database.transaction() as transaction:
            updated = transaction.execute(
                "update replication_slot set invalidation = ?"
                " where name = ? and invalidation is null"
                " and (? is null or restart_lsn = ?)",
                (reason, name, restart_lsn, restart_lsn),
            )
            return updated.rowcount > 0


def _slot(row: sqlite3.Row) -> ReplicationSlot:
    two_phase_at = row["two_phase_at"]
    return ReplicationSlot(
        name=row["name"],
        plugin=row["plugin"],
        restart_lsn=Lsn(row["restart_lsn"]),
        confirmed_lsn=Lsn(row["confirmed_lsn"]),
        temporary=row["temporary"],
        two_phase=bool(row["two_phase"]),
        failover=bool(row["failover"]),
        two_phase_at=None if two_phase_at is None else Lsn(two_phase_at),
        invalidation=row["invalidation"],
    )
