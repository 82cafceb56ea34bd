"""The publisher half of the engine, put together.

In: the node's parts. Out: capture and walsenders that run; what replication commands use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from wal2lake.catalog import TableDef
from wal2lake.door import SessionInfo
from wal2lake.door.client import ClientConversation
from wal2lake.door.replication.commands import ReplicationCommands
from wal2lake.door.session import ReplicationRunner
from wal2lake.engine.session.lakebackend import LakeBackend
from wal2lake.errors import ConfigurationError, UndefinedObjectError
from wal2lake.lake.capture import ComparisonMemory
from wal2lake.local.concurrency.snapshots import Modes
from wal2lake.local.node import EngineParts
from wal2lake.model import Lsn, Oid
from wal2lake.observe import get_logger
from wal2lake.publish.capture.cascading.cascade import Cascade
from wal2lake.publish.capture.cascading.handing import HandingOn
from wal2lake.publish.capture.requests import Point
from wal2lake.publish.capture.statementchanges import Statements
from wal2lake.publish.capture.worker import Capture
from wal2lake.publish.limits import Limits, Room, SlotLimits
from wal2lake.publish.sending import ClientPublications
from wal2lake.publish.service import Publishing
from wal2lake.publish.slots import SlotManager, SlotUse
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.synchronous import (
    CommitWaits,
    Standbys,
    Walsender,
    parse_standbys,
)
from wal2lake.publish.walsender.page import WalsenderPositions
from wal2lake.publish.walsender.starting import Walsenders
from wal2lake.settings import Settings
from wal2lake.sql.backend import Backend, SessionContext


class PublisherHalf:
    """The publisher's half of one engine. ``start`` it when tables can be read, ``stop`` it before
    the doors close."""

    def __init__(
        self, node: EngineParts, sessions: Callable[[], Sequence[SessionInfo]]
    ) -> None:
        """``sessions``: those of the front door. ConfigurationError if a setting is wrong."""
        settings = node.settings
        self._node = node
        self._sessions = sessions
        self._standbys = parse_standbys(settings.publish.synchronous_standby_names)
        node.catalog.drop_temporary_slots()
        self.statistics = Statistics()
        self.walsenders = Walsenders(settings.run_directory, self.statistics)
        directory = settings.publish_log_directory
        memory = ComparisonMemory(
            settings.publish.capture_bytes, settings.run_directory / "capture"
        )
        self.statements = Statements(directory / "statements", node.tables, memory)
        self.capture = Capture(
            node.catalog,
            node.tables,
            self,
            directory,
            memory,
            self.statements,
            Cascade(node.catalog, node.tables, settings.log_directory, memory),
            HandingOn(node.catalog, node.tables, settings.log_directory, memory),
            settings.log.segment_bytes,
        )
        self.slots = SlotManager(
            node.catalog,
            self.capture,
            lambda: self._settings.publish.max_replication_slots,
            self.capture.report_commit,
            self.statistics,
        )
        self.limits = SlotLimits(
            self.slots,
            settings.publish_log_directory,
            self._limits,
            self.walsenders.end,
        )
        self._settings = settings
        self.publishing = Publishing(
            system_identifier=node.catalog.system_identifier,
            capture=self.capture,
            statements=self.statements,
            slots=self.slots,
            walsenders=self.walsenders,
            statistics=self.statistics,
            commits=CommitWaits(self.capture, self._streaming, self.standbys),
            catalog_path=str(settings.catalog_file),
            warehouse=settings.warehouse,
            log_directory=str(settings.publish_log_directory),
            allowed=self._allowed,
            locations=self._locations,
            export=self._export,
            withdraw=node.snapshots.withdraw,
            publications=lambda warn: ClientPublications(node.catalog, warn),
        )
        node.publishing = self.publishing
        node.committed = self.capture.report_commit

    def start(self) -> None:
        """Capture goes on where it was."""
        self.capture.start()
        if self._node.catalog.slots() or self._node.catalog.publications():
            self.walsenders.prepare()

    def stop(self) -> None:
        """Walsenders send what is there, and end."""
        self.capture.stop(10.0)
        self.walsenders.stop()

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings
        self._standbys = parse_standbys(settings.publish.synchronous_standby_names)

    def standbys(self) -> Standbys | None:
        """Standbys that commits wait for now."""
        return self._standbys

    def rooms(self) -> Sequence[tuple[SlotUse, Room]]:
        """All slots, their users, and their distance to the limit."""
        uses = self.slots.in_use()
        rooms = self.limits.rooms([use.slot for use in uses])
        return [(use, rooms[use.slot.name]) for use in uses]

    def end(self) -> Lsn | None:
        """Return the end of the publisher's log; None if it has not been opened."""
        return self.capture.end()

    def captured_at(self) -> float | None:
        """Return a time (Unix) such that every commit before it is in the log."""
        return self.capture.captured_at

    def positions(self) -> Sequence[tuple[int, str, WalsenderPositions]]:
        """Return session, slot and positions of each walsender."""
        return self.walsenders.positions()

    def _limits(self) -> Limits:
        now = self._settings.publish
        return Limits(now.max_slot_wal_keep_size, now.idle_replication_slot_timeout)

    def _streaming(self) -> Sequence[Walsender]:
        names = {session.pid: session.application_name for session in self._sessions()}
        return [
            Walsender(pid, names[pid], positions)
            for pid, _, positions in self.walsenders.positions()
            if pid in names
        ]

    def replication(
        self,
        conversation: ClientConversation,
        context: SessionContext,
        backend: Backend,
    ) -> ReplicationRunner:
        """For a session; see ``ReplicationFactory``."""
        assert isinstance(backend, LakeBackend)
        return ReplicationCommands(
            self.publishing,
            conversation,
            context.parameters,
            context.pid,
            backend.snapshots.use_versions,
            backend.fresh_check,
        )

    def _allowed(self) -> tuple[str, ...]:
        names = self._settings.publish.output_plugin_libraries.split(",")
        return tuple(name.strip() for name in names if name.strip())

    def _locations(self, point: Point) -> Mapping[str, int]:
        places = {t.oid: t.location for t in self._node.catalog.tables()}
        return {
            places[relid]: version
            for relid, version in point.versions.items()
            if relid in places
        }

    def _export(self, point: Point, pid: int) -> str:
        node = self._node
        versions = self._locations(point)
        snapshot = node.snapshots.take(node.catalog, node.tables, versions)
        return node.snapshots.export(snapshot, Modes("repeatable read", True), pid)

    # ---- CaptureHost -----------------------------------------------------------------

    def captured_tables(self) -> Sequence[TableDef]:
        """Return the tables to capture: a partitioned table, not its partition."""
        return [t for t in self._node.catalog.tables() if t.partition_of is None]

    def visible_versions(self, tables: Sequence[TableDef]) -> Mapping[Oid, int]:
        """Return the version of each table that readers see, all at one moment."""
        node = self._node
        snapshot = node.snapshots.take(node.catalog, node.tables)
        versions = {}
        for table in tables:
            try:
                versions[table.oid] = snapshot.of(table)
            except UndefinedObjectError:
                # The table was dropped meanwhile.
                continue
        return versions

    def log_grown(self) -> None:
        """Tell walsenders that the log has grown."""
        self.walsenders.grown()

    def enforce_limits(self) -> None:
        """Invalidate slots beyond a limit."""
        self.limits.enforce()


def in_force(read: Settings, before: Settings) -> Settings:
    """Return the settings that were read, with each setting that cannot change without a restart as
    it was ``before``."""
    try:
        parse_standbys(read.publish.synchronous_standby_names)
    except ConfigurationError as error:
        get_logger().error("synchronous_standby_names stays as it was", error=error)
        names = before.publish.synchronous_standby_names
        publish = replace(read.publish, synchronous_standby_names=names)
        return replace(read, publish=publish)
    return read
