"""Records at which moments all mirrors agree, and what they show, for the Iceberg catalog.

Comes in: the states that a round shows, the mirrors that it has written or could not write. Goes
out: ``run/iceberg``, which the web process reads. Called by ``worker``.

A round that was cut short has no moment: the next one's includes its snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from wal2lake.catalog import MirrorMoment, MomentWriter, ShownTables, SnapshotVector
from wal2lake.lake.iceberg import ShownMirror
from wal2lake.local.mirrors.wanted import WantedMirror
from wal2lake.local.retention.holders import TablePlace
from wal2lake.model import Lsn, Oid
from wal2lake.observe import failpoint


class RoundMoments:
    """The moments of the worker's rounds; for its thread."""

    def __init__(self, directory: Path, clock_ms: Callable[[], int]) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._moments = MomentWriter(directory)
        self._tables = ShownTables(directory)
        self._clock_ms = clock_ms
        self._written: dict[Oid, str] = {}
        self._number: int | None = None
        self._began_ms = 0

    def begin(self) -> None:
        """Begin a round, before the published states are read."""
        self._number = None
        self._began_ms = self._clock_ms()

    def number(self) -> int:
        """Return the number for the snapshots of this round. OSError if that cannot be recorded."""
        if self._number is None:
            self._number = self._moments.begin(self._began_ms)
        return self._number

    def show(self, place: TablePlace, shown: ShownMirror) -> None:
        """Write what a mirror shows, if that is new. OSError."""
        storage = storage_of(place)
        if self._written.get(storage) != shown.path:
            self._tables.write(storage, shown.path, shown.metadata, shown.moments)
            self._written[storage] = shown.path

    def hide(self, place: TablePlace) -> None:
        """Remove what a mirror showed that is no longer there. OSError."""
        storage = storage_of(place)
        self._written.pop(storage, None)
        self._tables.remove(storage)

    def complete(
        self,
        vectors: Mapping[Oid, SnapshotVector],
        wanted: Collection[WantedMirror],
        behind: Iterable[TablePlace],
        oldest_ms: int,
    ) -> None:
        """Record the moment of a round that is done. ``behind`` has the tables whose mirrors do not
        show it. Moments that were replaced before ``oldest_ms`` go. OSError."""
        left = frozenset(map(storage_of, behind))
        mirrored = frozenset(storage_of(mirror.place) for mirror in wanted)
        self._tables.remove_others(mirrored)
        self._written = {k: v for k, v in self._written.items() if k in mirrored}
        shown = _states_of(vectors, wanted)
        newest = self._moments.newest
        if newest is None or self._moments.has_begun or newest.behind != left:
            newest = None
        positions = _positions(shown, newest)
        if newest is None or positions is None:
            if not wanted and self._moments.newest is None:
                return
            positions = _positions(shown, None) or {}
            number, since = self.number(), self._since(shown, wanted)
        else:
            number, since = newest.number, newest.since_ms
        self._moments.complete(
            MirrorMoment(number, since, self._began_ms, positions, left), oldest_ms
        )
        failpoint("moment.recorded")

    def _since(
        self, shown: Mapping[Oid, SnapshotVector], wanted: Collection[WantedMirror]
    ) -> int:
        """Return when the newest state was published. Of a table without a source it is only known
        when it was read."""
        if not shown or any(mirror.version is None for mirror in wanted):
            return self._began_ms
        newest = max(
            int(datetime.fromisoformat(vector.committed_at).timestamp() * 1000)
            for vector in shown.values()
        )
        return min(newest, self._began_ms)


def storage_of(place: TablePlace) -> Oid:
    """Return the OID that all names of a table share."""
    return place.tables[0].storage


def _states_of(
    vectors: Mapping[Oid, SnapshotVector], wanted: Collection[WantedMirror]
) -> dict[Oid, SnapshotVector]:
    """Return the states that name a mirrored table."""
    relids = {int(relid) for mirror in wanted for relid in mirror.place.relids}
    return {
        subid: vector
        for subid, vector in vectors.items()
        if not relids.isdisjoint(vector.versions)
    }


def _positions(
    shown: Mapping[Oid, SnapshotVector], newest: MirrorMoment | None
) -> dict[Oid, tuple[Lsn, Lsn]] | None:
    """Return where the moment begins and ends in each subscription; None if ``newest`` does not
    hold there: other subscriptions, or another source's WAL."""
    if newest is None:
        return {
            subid: (vector.since or vector.lsn, vector.lsn)
            for subid, vector in shown.items()
        }
    if newest.positions.keys() != shown.keys():
        return None
    positions = {}
    for subid, vector in shown.items():
        first, last = newest.positions[subid]
        if vector.lsn < last:
            return None
        positions[subid] = first, vector.lsn
    return positions
