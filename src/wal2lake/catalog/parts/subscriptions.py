"""``Catalog``'s methods about subscriptions as commands change them; see ``store``."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wal2lake.catalog.database import take_oid
from wal2lake.catalog.objects import comments
from wal2lake.catalog.parts.part import CatalogPart, change
from wal2lake.catalog.published import snapshot_vectors
from wal2lake.catalog.records import (
    REMOTE_TYPES,
    UNDECODED_TYPES,
    NewSource,
    PlannedSlot,
    Recopy,
    Subscription,
    SubscriptionRel,
)
from wal2lake.catalog.remote import schemas
from wal2lake.catalog.replication import copies, origins, subscriptions
from wal2lake.catalog.schema import SUBSCRIPTION_CATALOG
from wal2lake.model import INVALID_LSN, Lsn, Oid


class Subscriptions(CatalogPart):
    """Each change is one transaction, the next generation included."""

    def subscriptions(self) -> list[Subscription]:
        """All of them, by OID."""
        with self._database.reading() as connection:
            return subscriptions.all_subscriptions(connection)

    def subscription(self, oid: Oid) -> Subscription | None:
        """One by OID."""
        with self._database.reading() as connection:
            return subscriptions.subscription_by_oid(connection, oid)

    def subscription_named(self, name: str) -> Subscription | None:
        """One by name."""
        with self._database.reading() as connection:
            return subscriptions.subscription_named(connection, name)

    @change
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
        with self._database.reading() as connection:
            return subscriptions.planned_slots(connection)

    def plan_slot(self, planned: PlannedSlot) -> None:
        """Before it is made: what a crash leaves behind is known here."""
        with self._database.transaction() as transaction:
            subscriptions.plan_slot(transaction, planned)

    def forget_planned(self, planned: PlannedSlot) -> None:
        """There is no such slot, or it is not this node's to drop."""
        with self._database.transaction() as transaction:
            subscriptions.forget_planned(transaction, planned)

    @change
    def update_subscription(
        self, oid: Oid, *, bump: bool = False, **changes: Any
    ) -> Subscription:
        """Set fields of one subscription and return it.

        A change that its workers must notice is a new ``generation``: pass
        ``bump=True``. 42704 if it is gone, 42710 if a new name is taken.
        """
        with self._database.transaction() as transaction:
            return subscriptions.update_subscription(
                transaction, oid, changes, bump=bump
            )

    @change
    def set_connection(self, oid: Oid, conninfo: str) -> Subscription:
        """Another publisher, or another way to it: the next generation. No snapshot of the
        one before is taken for one of this one; 42704 if the subscription is gone."""
        with self._database.transaction() as transaction:
            copies.release_snapshot(transaction, oid)
            return subscriptions.update_subscription(
                transaction, oid, {"conninfo": conninfo}, bump=True
            )

    def set_options(self, oid: Oid, changes: Mapping[str, str]) -> Subscription:
        """Set some of a subscription's options, leaving the others; 42704 if it is gone."""
        with self._database.transaction() as transaction:
            return subscriptions.update_subscription(
                transaction, oid, {}, options=changes, bump=False
            )

    @change
    def alter_subscription(
        self,
        oid: Oid,
        *,
        options: Mapping[str, str],
        distrust: bool = False,
        **changes: Any,
    ) -> Subscription:
        """All that one ALTER SUBSCRIPTION ... SET asks for: fields, options, and the next
        generation. ``distrust``: from now on inserts must look for rows."""
        with self._database.transaction() as transaction:
            if distrust:
                subscriptions.distrust(transaction, oid, None)
            return subscriptions.update_subscription(
                transaction, oid, changes, options=options, bump=True
            )

    @change
    def set_publications(
        self,
        oid: Oid,
        publications: Sequence[str],
        *,
        added: Sequence[SubscriptionRel] = (),
        versions: Mapping[int, int] | None = None,
        removed: Collection[Oid] = (),
        distrusted: Collection[Oid] = (),
    ) -> Subscription:
        """Change a subscription's publications together with its tables: the next generation if the
        publications differ from those before. Readers see ``versions`` of the ``added`` tables.
        ``removed`` ones leave with their data; inserts into ``distrusted`` ones must look for
        rows."""
        with self._database.transaction() as transaction:
            _change_tables(transaction, oid, added, versions or {}, removed)
            subscriptions.distrust(transaction, oid, distrusted)
            before = subscriptions.subscription_by_oid(transaction, oid)
            return subscriptions.update_subscription(
                transaction,
                oid,
                {"publications": tuple(publications)},
                bump=before is not None
                and set(before.publications) != set(publications),
            )

    def copy_anew(
        self,
        oid: Oid,
        publications: Sequence[str],
        *,
        added: Sequence[SubscriptionRel] = (),
        versions: Mapping[int, int] | None = None,
        removed: Collection[Oid] = (),
        whole: Mapping[Oid, bool] | None = None,
        source: NewSource | None = None,
    ) -> Subscription:
        """Change the publications as ``set_publications`` does, and let every other table wait for
        a copy that replaces its rows; readers have these until then. The next generation, and the
        end of ``recopying``.

        ``whole`` says of tables whether inserts may be trusted after their copy; without
        it that is as it was. With a ``source`` everything begins at its slot: nothing
        that was received before counts any more, and the floor may go back. A table that
        is paused stays so: it is as it was, or, with a ``source``, waits for a copy that
        begins when it is resumed.
        """
        known = whole or {}
        changes: dict[str, Any] = {
            "publications": tuple(publications),
            "recopying": Recopy.NO,
        }
        options: dict[str, str] = {}
        with self._database.transaction() as transaction:
            before = subscriptions.rels_of(transaction, oid)
            if source is not None:
                snapshot_vectors.rebase(transaction, oid, source.start)
                schemas.rebase(transaction, oid, source.start)
                origins.set_applied(transaction, oid, INVALID_LSN)
                changes |= {
                    "floor": source.start,
                    "system_identifier": source.system_identifier,
                    "timeline": source.timeline,
                    "skip_lsn": INVALID_LSN,
                    "skipping": False,
                }
                # Of another server, perhaps, whose types and positions are others.
                options |= {REMOTE_TYPES: "", UNDECODED_TYPES: ""}
                found = subscriptions.subscription_by_oid(transaction, oid)
                if found is not None and found.two_phase != "d":
                    options["two_phase"] = "p"
            _change_tables(transaction, oid, added, versions or {}, removed)
            for rel in before:
                if rel.relid in removed:
                    continue
                trusted = known.get(rel.relid, rel.trusted)
                if rel.paused and source is None:
                    # The log has what it misses.
                    trusted = trusted and rel.trusted
                    subscriptions.update_rel(
                        transaction, oid, rel.relid, {"trusted": trusted}
                    )
                    continue
                epoch = int(take_oid(transaction))
                copies.restart(transaction, rel, epoch, trusted=trusted, paused=True)
            copies.release_snapshot(transaction, oid)
            subscriptions.clear_errors(transaction, oid)
            return subscriptions.update_subscription(
                transaction, oid, changes, options=options, bump=True
            )

    def advance_origin(self, oid: Oid, lsn: Lsn) -> None:
        """Nothing below ``lsn`` is wanted any more, in any table. Never back."""
        with self._database.transaction() as transaction:
            found = subscriptions.subscription_by_oid(transaction, oid)
            if found is not None and found.floor < lsn:
                copies.advance_paused(transaction, oid, lsn)
                snapshot_vectors.advance_apart(transaction, oid, lsn)
                origins.set_applied(transaction, oid, lsn)
                subscriptions.update_subscription(
                    transaction, oid, {"floor": lsn}, bump=True
                )

    @change
    def drop_subscription(self, oid: Oid) -> None:
        """Forget it, its relation states, ranges, vectors and comment."""
        with self._database.transaction() as transaction:
            snapshot_vectors.hand_over(transaction, oid)
            subscriptions.drop_subscription(transaction, oid)
            comments.set_comment(transaction, SUBSCRIPTION_CATALOG, oid, None)


def _change_tables(
    transaction: sqlite3.Connection,
    oid: Oid,
    added: Sequence[SubscriptionRel],
    versions: Mapping[int, int],
    removed: Collection[Oid],
) -> None:
    """Tables come to a subscription, seen at these versions, and others leave it."""
    subscriptions.add_rels(transaction, added)
    if versions:
        newest = snapshot_vectors.newest_vector(transaction, oid)
        found = subscriptions.subscription_by_oid(transaction, oid)
        floor = INVALID_LSN if found is None else found.floor
        reached = floor if newest is None else newest.lsn
        snapshot_vectors.publish(transaction, oid, reached, versions, (), ())
    for relid in removed:
        snapshot_vectors.hand_over(transaction, oid, relid)
        snapshot_vectors.forget_version(transaction, oid, relid)
        subscriptions.remove_rel(transaction, oid, relid)
