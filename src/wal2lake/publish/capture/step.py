"""One look of capture: adds everything that readers see now to the publisher's log.

    tables' logs ──▶ what readers see now ──▶ transactions ──▶ segments ──▶ slots' limits, trimming
                     (one moment)             (ordering,       (writer)
                                               recorder)

In: requests of sessions. Out: sealed segments; the end of the log, with the versions of the tables
that it has; the results of the requests. While there is no slot, a look does nothing; the first
slot begins at the state that is visible then.

Called by the capture thread (``worker``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from wal2lake.catalog import Catalog, ReplicationSlot, TableDef
from wal2lake.changelog import Retention
from wal2lake.errors import CorruptLogError
from wal2lake.model import Lsn, Oid
from wal2lake.observe import failpoint, get_logger
from wal2lake.publish.capture.cascading.handing import HandingOn
from wal2lake.publish.capture.ordering import in_order
from wal2lake.publish.capture.recorder import (
    TransactionRecorder,
    UnreadableCommitError,
    since_2000_us,
)
from wal2lake.publish.capture.requests import CaptureRequest, Point
from wal2lake.publish.capture.statementchanges import count_of
from wal2lake.publish.capture.writer import PublisherLogWriter
from wal2lake.publish.published import all_published

_NEW: Final = -1
"""The version before a table's first one."""


class CaptureHost(Protocol):
    """The engine, as capture uses it."""

    def captured_tables(self) -> Sequence[TableDef]:
        """Return the tables to capture."""
        ...

    def visible_versions(self, tables: Sequence[TableDef]) -> Mapping[Oid, int]:
        """Return the version of each table that readers see, all at one moment."""
        ...

    def log_grown(self) -> None:
        """Tell walsenders that the log has grown."""
        ...

    def enforce_limits(self) -> None:
        """Invalidate slots that hold too much of the log, or that are idle for too long."""
        ...


class CaptureStep:
    """Makes the looks of one node's capture. Used by the capture thread."""

    def __init__(
        self,
        catalog: Catalog,
        host: CaptureHost,
        recorder: TransactionRecorder,
        handing: HandingOn,
        directory: Path,
        segment_bytes: int,
    ) -> None:
        """``directory``: the publisher's log."""
        self._catalog = catalog
        self._host = host
        self._recorder = recorder
        self._handing = handing
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._retention = Retention(directory, history_bytes=0)
        self._idle = not catalog.slots()
        """Whether no slot needs the commits so far."""
        self._definitions = -1
        """Change counter of the catalog when definitions were last recorded."""
        self._may_trim_definitions = True
        """True if definitions recorded for old positions may be trimmed."""
        self._log = get_logger().bind(worker="capture")
        self.writer: PublisherLogWriter | None = None
        """The log's writer; None until a look opens it. Other threads may read its positions."""

    def reset(self) -> None:
        """Forget everything that was added since the last seal. It is captured again."""
        self.writer = None
        self._recorder.forget()

    def look(self, requests: Sequence[CaptureRequest]) -> Point | None:
        """Capture everything visible now, and serve requests. Return the end of the log; None if
        there is neither a slot nor a request."""
        slots = self._catalog.slots()
        self._idle = self._idle or not slots
        if not slots and not requests:
            if self.writer is not None:
                # Segments of a dropped slot may be left.
                self._trim(slots, self.writer)
            return None
        writer = self.writer or self._open()
        captured = self._host.captured_tables()
        reached = self._handing.reached()
        visible = self._host.visible_versions(captured)
        by_oid = {table.oid: table for table in captured}
        if self._idle:
            self._begin_at(visible, writer)
            self._idle = not slots
        # After the versions were read: a command that had ended by then has changed the catalog.
        self._record_definitions(writer)
        self._handing.end(writer, since_2000_us())
        # A new table is captured from its first version.
        before = {relid: writer.versions.get(int(relid), _NEW) for relid in visible}
        try:
            self._capture(by_oid, before, visible, writer)
        except UnreadableCommitError as error:
            self._pass_over(slots, error, visible[error.table.oid])
            return self.look(requests)
        # The visible version may go back, when another subscription takes the table.
        state = {relid: max(v, before[relid]) for relid, v in visible.items()}
        writer.versions = {int(relid): version for relid, version in state.items()}
        self._handing.settle(writer, reached, since_2000_us())
        if any(slot.two_phase for slot in slots):
            self._handing.hand_on(
                writer, by_oid, visible, reached, self._recorder.by_partition
            )
        for request in requests if slots else ():
            self._serve(request, by_oid, writer)
        self._seal(writer, slots, note=_NEW in before.values())
        return Point(writer.sealed, state)

    def _begin_at(self, visible: Mapping[Oid, int], writer: PublisherLogWriter) -> None:
        """Begin at the visible state, because no slot needs anything before it."""
        versions = {int(relid): version for relid, version in visible.items()}
        # For a new slot, transactions that are prepared now are new when they commit.
        writer.prepared, writer.handed_on = {}, {}
        if writer.versions != versions:
            writer.versions = versions
            writer.seal(note=True)

    def _capture(
        self,
        tables: Mapping[Oid, TableDef],
        before: Mapping[Oid, int],
        visible: Mapping[Oid, int],
        writer: PublisherLogWriter,
    ) -> None:
        commits = {
            relid: self._recorder.read_commits(tables[relid], before[relid], version)
            for relid, version in visible.items()
            if version > before[relid]
        }
        for transaction in in_order(commits, self._catalog.system_identifier):
            self._recorder.record(transaction, tables, writer)

    def _seal(
        self,
        writer: PublisherLogWriter,
        slots: Sequence[ReplicationSlot],
        *,
        note: bool,
    ) -> None:
        """Make everything added durable and visible, then remove what is not needed any more."""
        failpoint("capture.read")
        if writer.seal(note=note) is not None:
            failpoint("capture.sealed")
            self._host.log_grown()
        self._recorder.drop_used_statements()
        if slots:
            self._host.enforce_limits()
        self._trim(self._catalog.slots(), writer)

    # ---- the log ---------------------------------------------------------------------

    def _open(self) -> PublisherLogWriter:
        """Open the log at its end, and forget definitions recorded beyond the end."""
        try:
            writer = self._opened()
        except CorruptLogError as error:
            if any(
                s.confirmed_lsn for s in self._catalog.slots() if not s.invalidation
            ):
                raise
            # A slot that is being created begins after everything in the log.
            writer = self._opened(unread=True)
            writer.seal(note=True)
            self._idle = True
            self._log.warning("a damaged log that no slot needs is left", error=error)
        self.writer = writer
        self._catalog.forget_definitions(writer.end)
        self._definitions = -1
        self._may_trim_definitions = True
        return writer

    def _opened(self, *, unread: bool = False) -> PublisherLogWriter:
        return PublisherLogWriter(
            self._directory, self._segment_bytes, self._catalog.xids, unread=unread
        )

    def _record_definitions(self, writer: PublisherLogWriter) -> None:
        """Record definitions of tables and publications, if the catalog has changed."""
        counter = self._catalog.change_counter
        if counter != self._definitions:
            if self._catalog.note_definitions(writer.end):
                self._may_trim_definitions = True
            self._definitions = counter

    def _trim(
        self, slots: Sequence[ReplicationSlot], writer: PublisherLogWriter
    ) -> None:
        """Remove segments that no slot needs any more. A slot that is being created needs all of
        them."""
        needed = [slot.restart_lsn for slot in slots if slot.invalidation is None]
        lowest = min(needed, default=writer.sealed)
        self._retention.trim(lowest)
        if self._may_trim_definitions:
            self._may_trim_definitions = self._catalog.trim_definitions(lowest)

    # ---- requests, and commits that cannot be read -------------------------------------

    def _serve(
        self,
        request: CaptureRequest,
        tables: Mapping[Oid, TableDef],
        writer: PublisherLogWriter,
    ) -> None:
        now_us = since_2000_us()
        if request.preparation is not None:
            request.two_phase = self._recorder.prepare(
                request.preparation, tables, writer
            )
            return
        if request.rolls_back is not None:
            writer.roll_back(request.rolls_back, now_us)
            return
        if request.defines:
            writer.empty(now_us, request.xid)
            return
        number = request.commits
        if request.transactional or number is not None:
            mark = request.origin
            entries = self._recorder.read_statements(request.statements, tables)
            if entries is None:
                entries = list(request.messages)
            writer.transaction(
                now_us if mark is None or mark.time_us is None else mark.time_us,
                None if mark is None else (mark.name, Lsn(mark.lsn)),
                iter(entries),
                count_of(entries),
                {},
                prepared=number,
                xid=request.xid,
            )
            request.lsn = writer.end
            return
        for message in request.messages:
            request.lsn = writer.message(message)

    def _pass_over(
        self,
        slots: Sequence[ReplicationSlot],
        error: UnreadableCommitError,
        version: int,
    ) -> None:
        """Invalidate the slots that need a commit which cannot be read. The other slots go on.
        Commits that were added in this look are read again."""
        table = error.table
        published = all_published(
            self._catalog.publications(),
            self._catalog.tables(),
            self._catalog.namespaces(),
        )
        relids = {
            relid
            for relation in published
            for relid in (relation.table.oid, relation.table.partition_of)
        }
        self._log.error("a commit cannot be captured", error=error)
        for slot in slots:
            # Other plugins may send any table.
            if slot.plugin != "pgoutput" or table.oid in relids:
                self._catalog.invalidate_slot(slot.name, "wal_removed")
        writer = self._open()
        writer.versions[int(table.oid)] = version
        writer.seal(note=True)
