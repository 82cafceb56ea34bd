"""The catalog's store: records in, records out, one SQLite transaction a method.

Every process opens its own; a connection belongs to the thread that made it and never
crosses a fork. A method returns only after the commit is durable (synchronous=FULL).
``change_counter`` grows with every commit of any process, so a cache can ask cheaply
whether it is stale.

Here is what callers may rely on, and where transactions begin and end; the SQL of each table is in
the module of its name (``roles``, ``tables``, ``subscriptions``, ``copies``, ``published``).

Called by: commands and system views (frontend), the supervisor (launch), workers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from wal2lake.catalog import copies, roles, subscriptions, tables
from wal2lake.catalog.database import Database, create_database, take_oid
from wal2lake.catalog.published import coercions, snapshot_vectors
from wal2lake.catalog.records import (
    CoercionTotal,
    CopyRange,
    Namespace,
    PlannedSlot,
    Role,
    SnapshotVector,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    TableDef,
)
from wal2lake.model import Coercion, Lsn, Oid


class Catalog:
    """The durable facts of one node."""

    def __init__(self, path: Path, *, migrate: bool = False) -> None:
        """Open an existing catalog; ConfigurationError if missing or of another version.
        ``migrate``: bring an older one up to date (who starts the node does)."""
        self._database = Database(path, migrate=migrate)

    @classmethod
    def create(cls, path: Path, superuser: str, password: str | None) -> Catalog:
        """Make a new catalog with its first role and schema public."""
        create_database(path, superuser, password)
        return cls(path)

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()

    # ---- the node ---------------------------------------------------------------

    @property
    def change_counter(self) -> int:
        """Grows with every commit; equal numbers mean nothing has changed."""
        return int(self._database.meta("counter"))

    @property
    def system_identifier(self) -> int:
        """This node's own, as IDENTIFY_SYSTEM would report it: 64 bits."""
        return int(self._database.meta("system_identifier"))

    def new_oid(self) -> Oid:
        """A number that no object of this node had before."""
        with self._database.transaction() as transaction:
            return take_oid(transaction)

    # ---- roles and namespaces --------------------------------------------------------

    def roles(self) -> list[Role]:
        """All roles."""
        return roles.all_roles(self._database.connection())

    def role(self, name: str) -> Role | None:
        """One role by name."""
        return next((r for r in self.roles() if r.name == name), None)

    def namespaces(self) -> list[Namespace]:
        """All schemas of lake tables."""
        return roles.all_namespaces(self._database.connection())

    def create_namespace(self, name: str, owner: Oid) -> Namespace:
        """42P06 if it exists."""
        with self._database.transaction() as transaction:
            return roles.create_namespace(transaction, name, owner)

    def drop_namespace(self, name: str) -> None:
        """The schema must be empty; 3F000 if there is none."""
        with self._database.transaction() as transaction:
            roles.drop_namespace(transaction, name)

    # ---- tables ----------------------------------------------------------------------

    def tables(self) -> list[TableDef]:
        """All lake tables, by OID."""
        return tables.all_tables(self._database.connection())

    def table(self, namespace: str, name: str) -> TableDef | None:
        """One table by its exact names."""
        return tables.table_named(self._database.connection(), namespace, name)

    def table_by_oid(self, oid: Oid) -> TableDef | None:
        """One table by OID."""
        return tables.table_by_oid(self._database.connection(), oid)

    def create_table(self, table: TableDef) -> None:
        """Record a table whose storage exists; 42P07 if the name is taken."""
        with self._database.transaction() as transaction:
            tables.create_table(transaction, table)

    def drop_table(self, oid: Oid) -> None:
        """Forget a table and its part in every subscription."""
        with self._database.transaction() as transaction:
            tables.drop_table(transaction, oid)

    # ---- subscriptions ---------------------------------------------------------------

    def subscriptions(self) -> list[Subscription]:
        """All of them, by OID."""
        return subscriptions.all_subscriptions(self._database.connection())

    def subscription(self, oid: Oid) -> Subscription | None:
        """One by OID."""
        return subscriptions.subscription_by_oid(self._database.connection(), oid)

    def subscription_named(self, name: str) -> Subscription | None:
        """One by name."""
        return subscriptions.subscription_named(self._database.connection(), name)

    def create_subscription(
        self,
        subscription: Subscription,
        rels: Sequence[SubscriptionRel],
        versions: Mapping[int, int] | None = None,
    ) -> None:
        """Record it with its tables; 42710 if the name is taken.

        Readers see ``versions`` of the tables from now on, and the slot is no longer a
        planned one: both in the same transaction.
        """
        with self._database.transaction() as transaction:
            subscriptions.create_subscription(transaction, subscription)
            subscriptions.add_rels(transaction, rels)
            subscriptions.forget_planned_slot(
                transaction, subscription.slot_name, subscription.conninfo
            )
            if versions is not None:
                snapshot_vectors.publish(
                    transaction, subscription.oid, subscription.floor, versions, (), ()
                )

    def planned_slots(self) -> list[PlannedSlot]:
        """Slots that CREATE SUBSCRIPTION makes now, or was making at a crash."""
        return subscriptions.planned_slots(self._database.connection())

    def plan_slot(self, planned: PlannedSlot) -> None:
        """Before it is made: what a crash leaves behind is known here."""
        with self._database.transaction() as transaction:
            subscriptions.plan_slot(transaction, planned)

    def forget_planned(self, planned: PlannedSlot) -> None:
        """There is no such slot, or it is not this node's to drop."""
        with self._database.transaction() as transaction:
            subscriptions.forget_planned(transaction, planned)

    def update_subscription(
        self, oid: Oid, *, bump: bool = False, **changes: Any
    ) -> Subscription:
        """Set fields of one subscription and return it.

        A change that its workers must notice is a new ``generation``: pass
        ``bump=True``. 42704 if it is gone.
        """
        with self._database.transaction() as transaction:
            return subscriptions.update_subscription(
                transaction, oid, changes, bump=bump
            )

    def set_options(self, oid: Oid, changes: Mapping[str, str]) -> Subscription:
        """Set some of a subscription's options, leaving the others; 42704 if it is gone."""
        with self._database.transaction() as transaction:
            found = subscriptions.subscription_by_oid(transaction, oid)
            options = {**(found.options if found else {}), **changes}
            return subscriptions.update_subscription(
                transaction, oid, {"options": options}, bump=False
            )

    def note_error(self, oid: Oid, text: str | None) -> None:
        """Keep the newest error of a subscription's workers, or clear it."""
        known = self.subscription(oid)
        if known is not None and known.last_error != text:
            with self._database.transaction() as transaction:
                subscriptions.set_last_error(transaction, oid, text)

    def drop_subscription(self, oid: Oid) -> None:
        """Forget it, its relation states, ranges and vectors."""
        with self._database.transaction() as transaction:
            snapshot_vectors.hand_over(transaction, oid)
            subscriptions.drop_subscription(transaction, oid)

    # ---- relation states and copies --------------------------------------------------

    def rels(self, subid: Oid | None = None) -> list[SubscriptionRel]:
        """Relation states of one subscription, or of all."""
        return subscriptions.rels_of(self._database.connection(), subid)

    def add_rels(self, rels: Sequence[SubscriptionRel]) -> None:
        """New tables of a subscription."""
        with self._database.transaction() as transaction:
            subscriptions.add_rels(transaction, rels)

    def remove_rel(self, subid: Oid, relid: Oid) -> None:
        """A table leaves a subscription; its data stays."""
        with self._database.transaction() as transaction:
            snapshot_vectors.hand_over(transaction, subid, relid)
            subscriptions.remove_rel(transaction, subid, relid)

    def update_rel(self, subid: Oid, relid: Oid, **changes: Any) -> None:
        """Set fields of one relation state (a state of SyncState, an Lsn ...)."""
        with self._database.transaction() as transaction:
            subscriptions.update_rel(transaction, subid, relid, changes)

    def begin_copies(self, started: Sequence[SubscriptionRel]) -> None:
        """Attempts begin: ``copy_plan``, ``rows_expected`` and ``lsn`` (the S that their
        commits may have) are stored, ranges that are not of the plan's snapshot are void.
        """
        with self._database.transaction() as transaction:
            for rel in started:
                copies.begin_copy(transaction, rel)

    def record_ranges(self, done: Sequence[CopyRange]) -> None:
        """Finished ranges of copies, and their rows in the tables' progress."""
        with self._database.transaction() as transaction:
            for one in done:
                copies.record_range(transaction, one)

    def ranges(self, subid: Oid, relid: Oid) -> list[CopyRange]:
        """The finished ranges of a table's running copy."""
        return copies.ranges(self._database.connection(), subid, relid)

    def end_attempts(
        self, ended: Sequence[tuple[SubscriptionRel, str | None, bool]]
    ) -> None:
        """Copies that have not reached f, each with its error (None: the one it has stays)
        and whether its commit may have been made all the same: the floor still waits for
        that one's S."""
        with self._database.transaction() as transaction:
            for rel, error, made in ended:
                copies.end_attempt(transaction, rel, error, made=made)

    def finish_copies(self, copied: Sequence[SubscriptionRel]) -> set[Oid]:
        """Copies are committed (d -> f), each with its S as ``lsn``: what their ranges have
        changed is known, and the ranges are forgotten.

        Returns the tables that were waiting for just that: one that has left meanwhile,
        or has come back in another epoch, is as it is.
        """
        finished = set()
        with self._database.transaction() as transaction:
            for rel in copied:
                if copies.finish_copy(transaction, rel):
                    finished.add(rel.relid)
        return finished

    def hold_snapshot(self, held: SyncSnapshot) -> None:
        """A receiver holds an exported snapshot for this subscription's copies."""
        with self._database.transaction() as transaction:
            copies.hold_snapshot(transaction, held)

    def snapshot_held(self, subid: Oid) -> SyncSnapshot | None:
        """The snapshot that copies of this subscription may use now."""
        return copies.snapshot_held(self._database.connection(), subid)

    def release_snapshot(self, subid: Oid) -> None:
        """The snapshot is gone, or no longer needed."""
        with self._database.transaction() as transaction:
            copies.release_snapshot(transaction, subid)

    # ---- published states ------------------------------------------------------------

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
        with self._database.transaction() as transaction:
            coercions.publish(transaction, subid, reached)
            return snapshot_vectors.publish(
                transaction, subid, reached, versions, participants, joined
            )

    def expect_coercions(
        self,
        subid: Oid,
        reached: Lsn,
        positions: Mapping[Oid, Lsn],
        found: Mapping[Oid, Sequence[Coercion]],
    ) -> None:
        """Before the tables of a batch that ends at ``reached`` commit: what policies have
        changed in it. ``positions``: of each of its tables; what was expected above them
        has not come to pass. ``publish`` adds it to the totals."""
        if any(found.values()) or coercions.any_pending(
            self._database.connection(), subid
        ):
            with self._database.transaction() as transaction:
                coercions.expect(transaction, subid, reached, positions, found)

    def coercions(self) -> list[CoercionTotal]:
        """What value policies have changed in published states."""
        return coercions.totals(self._database.connection())

    def forget_version(self, subid: Oid, relid: Oid) -> None:
        """A table left the subscription: the newest vector no longer pins it."""
        newest = self.newest_vector(subid)
        if newest is not None and int(relid) in newest.versions:
            with self._database.transaction() as transaction:
                snapshot_vectors.forget_version(transaction, subid, relid)

    def newest_vector(self, subid: Oid) -> SnapshotVector | None:
        """The state that a SELECT sees."""
        return snapshot_vectors.newest_vector(self._database.connection(), subid)

    def vectors(self) -> list[SnapshotVector]:
        """All published states that are kept, oldest first."""
        return snapshot_vectors.all_vectors(self._database.connection())
