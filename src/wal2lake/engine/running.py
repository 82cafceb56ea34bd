"""The state of the running engine for system views: ``viewsource.LiveState``.

Comes in: the parts of the engine. Goes out: what they do at the moment, without a wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wal2lake.catalog import TableDef
from wal2lake.door import Listener
from wal2lake.engine.assembly import Assembly
from wal2lake.engine.publishing import PublisherHalf
from wal2lake.errors import UndefinedObjectError
from wal2lake.lake.batch import Method, Total
from wal2lake.model import Lsn, Oid
from wal2lake.publish.limits import Room
from wal2lake.publish.slots import SlotUse
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.synchronous import Standbys
from wal2lake.publish.walsender.page import WalsenderPositions
from wal2lake.sql.sysviews import ActiveSession
from wal2lake.tablesync.attempt import RunningCopy


class RunningEngine:
    """Reads the engine's parts. Safe for all threads."""

    def __init__(
        self, assembly: Assembly, publisher: PublisherHalf, listener: Listener
    ) -> None:
        self._tables = assembly.node.tables
        self._sync = assembly.node.sync
        self._batches = assembly.batches
        self._publisher = publisher
        self._listener = listener

    @property
    def statistics(self) -> Statistics:
        return self._publisher.statistics

    def sessions(self) -> Sequence[ActiveSession]:
        return self._listener.sessions()

    def copies(self, subid: Oid) -> Sequence[RunningCopy]:
        return self._sync.running(subid)

    def methods(self, cursor: str, location: str) -> Mapping[Method, Total]:
        return self._batches.methods(cursor, location)

    def slots(self) -> Sequence[tuple[SlotUse, Room]]:
        return self._publisher.rooms()

    def walsenders(self) -> Sequence[tuple[int, str, WalsenderPositions]]:
        return self._publisher.walsenders.positions()

    def standbys(self) -> Standbys | None:
        return self._publisher.standbys()

    def local_ends(self) -> Mapping[str, Lsn]:
        return self._publisher.capture.origins()

    def size_of(self, table: TableDef) -> int | None:
        try:
            files = self._tables.files(self._tables.state(table.location))
        except UndefinedObjectError:
            return None
        return None if files is None else sum(file.size for file in files)

    def signal(self, pid: int, terminate: bool) -> bool:
        if not terminate:
            return self._listener.cancel(pid)
        is_session = self._listener.terminate(pid)
        self._publisher.walsenders.end(pid)
        return is_session
