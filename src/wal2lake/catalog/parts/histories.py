"""``Catalog``'s methods about history tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from wal2lake.catalog.objects import histories as tables
from wal2lake.catalog.objects.historyrecords import HistoryFeed, PendingHistory
from wal2lake.catalog.parts.part import CatalogPart, change
from wal2lake.catalog.published import histories, snapshot_vectors
from wal2lake.model import INVALID_LSN, Oid


class Histories(CatalogPart):
    """The part of the catalog about history tables."""

    _feeds: tuple[int, Mapping[Oid, HistoryFeed]] | None
    """Cached value, and the change counter before it was read."""

    def histories(self) -> Mapping[Oid, HistoryFeed]:
        """Return the history tables that a subscription feeds, by OID."""
        change, cached = self.change_counter, self._feeds
        if cached is not None and cached[0] == change:
            return cached[1]
        with self._database.reading() as connection:
            feeds = tables.feeds(connection)
        # If a later change was read, the counter differs and the value is read again.
        self._feeds = change, feeds
        return feeds

    @change
    def link_history(self, oid: Oid, mirror: Oid) -> None:
        """Let a history table have the changes of the table ``mirror`` from now on."""
        with self._database.transaction() as transaction:
            tables.link(transaction, oid, mirror)

    def show_histories(
        self, subid: Oid, versions: Mapping[int, int], ended: Collection[Oid] = ()
    ) -> None:
        """Publish versions of new history tables, at the newest vector's LSN. Histories that have
        ``ended`` leave the newest vector, so that it holds no version of them."""
        with self._database.transaction() as transaction:
            for oid in ended:
                snapshot_vectors.forget_version(transaction, subid, oid)
            newest = snapshot_vectors.newest_vector(transaction, subid)
            if newest is not None and versions:
                snapshot_vectors.publish(
                    transaction, subid, newest.lsn, versions, (), ()
                )

    def pending_histories(self, subid: Oid, relid: Oid) -> list[PendingHistory]:
        """Return the histories of commits to a table that may not be published yet, in order."""
        with self._database.reading() as connection:
            return histories.pending(connection, subid, relid)

    def files_of_history(self, history: Oid) -> list[str]:
        """Return, as JSON, the files of a history table that may not belong to a version yet."""
        with self._database.reading() as connection:
            return histories.files_of(connection, history)

    def expect_history(self, subid: Oid, pending: Sequence[PendingHistory]) -> None:
        """Record the history of copies, before they are committed. Earlier entries of their tables
        are of attempts that were not made, because the caller has finished those that were."""
        nothing = {entry.relid: INVALID_LSN for entry in pending}
        with self._database.transaction() as transaction:
            histories.expect(transaction, subid, nothing, pending)
        self._secure()
