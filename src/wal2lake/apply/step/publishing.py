"""Publishes the apply worker's commits: floor, vector and states as one.

In: the position that a batch has reached. Out: one SQLite transaction, after which readers see all
tables of the subscription at that position; then the word ``applied``, which feedback and the log's
retention read. Called by the worker's thread, under the commit lock.

Source: DESIGN 6 (Apply), invariants 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from wal2lake.apply.participants import Participants
from wal2lake.apply.skipping import Skip
from wal2lake.apply.step.restarts import pending_restarts
from wal2lake.catalog import Catalog, ProgressFile
from wal2lake.lake import TablePort
from wal2lake.lake.staging import ColumnDefaults
from wal2lake.model import Lsn, Oid
from wal2lake.observe import failpoint


class VectorPublisher:
    """Publishes positions of one subscription."""

    def __init__(
        self,
        catalog: Catalog,
        subid: Oid,
        tables: Participants,
        port: TablePort,
        progress: ProgressFile,
        defaults: ColumnDefaults,
        published: Callable[[], None],
    ) -> None:
        """``published`` is called when readers see a new version."""
        self._catalog = catalog
        self._subid = subid
        self._tables = tables
        self._port = port
        self._progress = progress
        self._defaults = defaults
        self._published = published

    def decided(self, floor: Lsn) -> Lsn:
        """Return the position below which every transaction has been applied or rightly skipped."""
        vector = self._catalog.newest_vector(self._subid)
        return floor if vector is None else Lsn(max(floor, vector.lsn))

    def publish(
        self,
        reached: Lsn,
        committed: Collection[Oid] = (),
        skip: Skip | None = None,
        applied: Lsn | None = None,
    ) -> bool:
        """Publish the position ``reached``.

        The caller has committed to the tables ``committed`` under the commit lock. The others were
        read without the lock: a session may have written them since, and may have died before it
        synced its version. So they are read and synced here. ``applied``: end of the last
        transaction that this publishes.

        Returns False and publishes nothing if a visible table or the newest vector is ahead of
        ``reached``: other tables are still catching up.
        """
        if any(t.visible and t.cursor > reached for t in self._tables):
            return False
        vector = self._catalog.newest_vector(self._subid)
        if vector is not None and reached < vector.lsn:
            return False
        unseen = self._tables.unseen(reached)
        versions: dict[int, int] = {}
        for table in unseen:
            if table.rel.relid not in committed:
                version = self._tables.read_state(table).version
                self._port.sync(table.definition.location, version)
            versions[int(table.rel.relid)] = table.version
            if table.history is not None:
                versions[int(table.history.definition.oid)] = table.history.version
        skipped = skip.decided(reached) if skip is not None else None
        sequences, voided = pending_restarts(
            self._catalog, self._port, self._subid, reached
        )
        with self._defaults.restarting(sequences):
            floor = self._catalog.publish(
                self._subid,
                reached,
                versions,
                participants=[int(t.rel.relid) for t in self._tables],
                joined=[int(t.rel.relid) for t in unseen if not t.ready],
                skipped=skipped,
                voided=voided,
                applied=applied,
            )
        if skip is not None and skipped is not None:
            skip.report()
        for table in unseen:
            table.unpublished = False
        failpoint("apply.vector_recorded")
        self._progress.set(applied=floor)
        self._published()
        return True
