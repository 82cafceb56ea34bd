"""``Catalog``'s methods about subscriptions, as commands change them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from wal2lake.catalog.database import take_oid
from wal2lake.catalog.images import LOG_NUMBER, log_number
from wal2lake.catalog.objects import comments, tables
from wal2lake.catalog.parts.copies import copy_anew, leave
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
from wal2lake.catalog.remote.schemas import LookedAt
from wal2lake.catalog.replication import copies, origins, subscriptions
from wal2lake.catalog.schema import SUBSCRIPTION_CATALOG
from wal2lake.model import INVALID_LSN, Lsn, Oid


class Subscriptions(CatalogPart):
    """Subscriptions. Each change is one transaction, the new generation included."""

    def subscriptions(self) -> list[Subscription]:
        """Return all subscriptions, by OID."""
        with self._database.reading() as connection:
            return subscriptions.all_subscriptions(connection)

    def mentions(self, word: str) -> bool:
        """Whether an option of a subscription or a storage parameter of a table has this name or
        this value. Costs far less than reading them all."""
        with self._database.reading() as connection:
            return subscriptions.any_option(connection, word) or tables.any_parameter(
                connection, word
            )

    def subscription(self, oid: Oid) -> Subscription | None:
        """Return a subscription by OID."""
        with self._database.reading() as connection:
            return subscriptions.subscription_by_oid(connection, oid)

    def subscription_named(self, name: str) -> Subscription | None:
        """Return a subscription by name."""
        with self._database.reading() as connection:
            return subscriptions.subscription_named(connection, name)

    @change
    def create_subscription(
        self,
        subscription: Subscription,
        rels: Sequence[SubscriptionRel],
        versions: Mapping[int, int] | None = None,
    ) -> None:
        """Record a subscription with its tables. Raises 42710 if the name is taken.

        In the same transaction, ``versions`` of the tables become visible, and the slot is no
        longer a planned one.
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
        """Return the slots that CREATE SUBSCRIPTION is creating, or was creating at a crash."""
        with self._database.reading() as connection:
            return subscriptions.planned_slots(connection)

    def plan_slot(self, planned: PlannedSlot) -> None:
        """Record a slot before it is created, so that a slot left by a crash is known."""
        with self._database.transaction() as transaction:
            subscriptions.plan_slot(transaction, planned)

    def forget_planned(self, planned: PlannedSlot) -> None:
        """Delete the record of a planned slot that does not exist or must not be dropped by this
        node."""
        with self._database.transaction() as transaction:
            subscriptions.forget_planned(transaction, planned)

    @change
    def update_subscription(
        self, oid: Oid, *, bump: bool = False, **changes: Any
    ) -> Subscription:
        """Set fields of one subscription and return it.

        A change that the workers must notice needs a new ``generation``: pass ``bump=True``. Raises
        42704 if the subscription is gone, 42710 if a new name is taken.
        """
        with self._database.transaction() as transaction:
            return subscriptions.update_subscription(
                transaction, oid, changes, bump=bump
            )

    @change
    def set_connection(self, oid: Oid, conninfo: str) -> Subscription:
        """Set the connection string, with a new generation. The snapshot of the old publisher is
        released, so that no copy uses it. Raises 42704 if the subscription is gone."""
        with self._database.transaction() as transaction:
            copies.release_snapshot(transaction, oid)
            return subscriptions.update_subscription(
                transaction, oid, {"conninfo": conninfo}, bump=True
            )

    def set_options(self, oid: Oid, changes: Mapping[str, str]) -> Subscription:
        """Set some of a subscription's options. Raises 42704 if it is gone."""
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
        """Carry out an ALTER SUBSCRIPTION ... SET: fields, options, and a new generation.
        ``distrust``: from now on, inserts must look for existing rows."""
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
        looked: LookedAt | None = None,
    ) -> Subscription:
        """Change a subscription's publications together with its tables, with a new generation if
        the publications differ. Readers see ``versions`` of the ``added`` tables. ``removed``
        tables keep their data. Inserts into ``distrusted`` tables must look for existing rows.
        ``looked``: what else follows from a look of ``auto_refresh``."""
        with self._database.transaction() as transaction:
            _change_tables(transaction, oid, added, versions or {}, removed)
            if looked is not None:
                _record_look(transaction, oid, looked)
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
        heals: bool = False,
    ) -> Subscription:
        """Change the publications as ``set_publications`` does, and let every other table wait for
        a copy that replaces its rows. Until then readers see the old rows. Sets a new generation
        and ends ``recopying``.

        ``whole``: whether inserts into a table may be trusted after its copy; other tables keep
        their value. With a ``source``, everything begins at its slot: changes received before do
        not count any more, and the floor may go back. Paused tables stay paused: without a
        ``source`` they do not change; with a ``source`` they wait for a copy that begins when they
        are resumed. ``heals``: copies write differing rows only, where they can.
        """
        changes: dict[str, Any] = {
            "publications": tuple(publications),
            "recopying": Recopy.NO,
        }
        options = {copies.HEALS: ""}
        with self._database.transaction() as transaction:
            before = subscriptions.rels_of(transaction, oid)
            if source is not None:
                fields, noted = _begin_at(transaction, oid, source)
                changes |= fields
                options |= noted
            _change_tables(transaction, oid, added, versions or {}, removed)
            for rel in before:
                if rel.relid not in removed:
                    trusted = (whole or {}).get(rel.relid, rel.trusted)
                    _copy_anew(transaction, rel, source, trusted=trusted, heals=heals)
            copies.release_snapshot(transaction, oid)
            subscriptions.clear_errors(transaction, oid)
            return subscriptions.update_subscription(
                transaction, oid, changes, options=options, bump=True
            )

    def advance_origin(self, oid: Oid, lsn: Lsn) -> None:
        """Advance the origin: no table needs changes below ``lsn``. Never goes back."""
        with self._database.transaction() as transaction:
            subscription = subscriptions.subscription_by_oid(transaction, oid)
            if subscription is not None and subscription.floor < lsn:
                copies.advance_paused(transaction, oid, lsn)
                snapshot_vectors.advance_apart(transaction, oid, lsn)
                origins.set_applied(transaction, oid, lsn)
                subscriptions.update_subscription(
                    transaction, oid, {"floor": lsn}, bump=True
                )

    @change
    def drop_subscription(self, oid: Oid) -> None:
        """Delete a subscription with its relation states, ranges, vectors and comment."""
        with self._database.transaction() as transaction:
            snapshot_vectors.hand_over(transaction, oid)
            subscriptions.drop_subscription(transaction, oid)
            comments.set_comment(transaction, SUBSCRIPTION_CATALOG, oid, None)


def _record_look(transaction: sqlite3.Connection, oid: Oid, looked: LookedAt) -> None:
    """Record how tables are published, which of them are copied again, and what is noted."""
    for relid in looked.copied_again:
        copy_anew(transaction, oid, relid)
    for relid, seen in looked.seen_as.items():
        subscriptions.update_rel(transaction, oid, relid, {"seen_as": seen})
    for relid, changes in looked.noted.items():
        schemas.note_changes(transaction, oid, relid, looked.lsn, changes)


def _begin_at(
    transaction: sqlite3.Connection, oid: Oid, source: NewSource
) -> tuple[dict[str, Any], dict[str, str]]:
    """Begin at a new source's slot. Return the subscription's new fields and options."""
    snapshot_vectors.rebase(transaction, oid, source.start)
    schemas.rebase(transaction, oid, source.start)
    origins.set_applied(transaction, oid, INVALID_LSN)
    fields = {
        "floor": source.start,
        "system_identifier": source.system_identifier,
        "timeline": source.timeline,
        "skip_lsn": INVALID_LSN,
        "skipping": False,
    }
    # The new source may be another server, with other types and positions.
    options = {REMOTE_TYPES: "", UNDECODED_TYPES: ""}
    subscription = subscriptions.subscription_by_oid(transaction, oid)
    if subscription is not None and subscription.two_phase != "d":
        options["two_phase"] = "p"
    if subscription is not None:
        options[LOG_NUMBER] = str(log_number(subscription.options) + 1)
    return fields, options


def _copy_anew(
    transaction: sqlite3.Connection,
    rel: SubscriptionRel,
    source: NewSource | None,
    *,
    trusted: bool,
    heals: bool,
) -> None:
    """Let a table wait for a copy. Without a new source, a paused table does not change: the log
    has the changes that it misses."""
    if rel.paused and source is None:
        changes = {"trusted": trusted and rel.trusted}
        subscriptions.update_rel(transaction, rel.subid, rel.relid, changes)
        return
    epoch = int(take_oid(transaction))
    copies.restart(transaction, rel, epoch, trusted=trusted, paused=True, heals=heals)


def _change_tables(
    transaction: sqlite3.Connection,
    oid: Oid,
    added: Sequence[SubscriptionRel],
    versions: Mapping[int, int],
    removed: Collection[Oid],
) -> None:
    """Add tables to a subscription, visible at ``versions``, and remove others."""
    subscriptions.add_rels(transaction, added)
    if versions:
        newest = snapshot_vectors.newest_vector(transaction, oid)
        subscription = subscriptions.subscription_by_oid(transaction, oid)
        floor = INVALID_LSN if subscription is None else subscription.floor
        reached = floor if newest is None else newest.lsn
        snapshot_vectors.publish(transaction, oid, reached, versions, (), ())
    leave(transaction, oid, removed)
