"""The thread that captures.

    tables' logs ──▶ what readers see now ──▶ transactions ──▶ segments ──▶ walsenders are told
                     (one moment)             (ordering)       (writer)

The thread looks at the tables when a session reports a commit, and every ``LOOK_SECONDS``, because
writers outside the node report nothing. Without a slot it does nothing; the first slot begins at
what is visible then.

Three kinds of transactions belong to no table's commit; their sessions hand them over, and they
follow all that is visible then: a message (pg_logical_emit_message), the empty transaction of a
definition (CREATE TABLE, GRANT), and a prepared transaction with its end. A prepared transaction
is in the log twice: with its PREPARE, and as a commit of its tables. ``handing`` hands on those of
subscriptions. ``catch_up`` captures all of now, for a new slot or a SELECT of the log's position.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from wal2lake.catalog import Catalog, ReplicationSlot, TableDef
from wal2lake.changelog import LogReader, Retention, TwoPhase
from wal2lake.errors import (
    CorruptLogError,
    Retry,
    StorageError,
    Wal2LakeError,
    words_of,
)
from wal2lake.lake import DataFile, TablePort, TableState
from wal2lake.lake.capture import (
    ComparisonMemory,
    Emitted,
    NotAsSent,
    OriginMark,
    TableCommit,
    most_changes,
    read_commit,
    row_changes,
)
from wal2lake.lake.upsert import StoredRows
from wal2lake.model import Lsn, Oid, Relation
from wal2lake.observe import RepeatedErrors, failpoint, get_logger
from wal2lake.publish.capture.cascade import Cascade
from wal2lake.publish.capture.handing import HandingOn, OtherwisePrepared
from wal2lake.publish.capture.ordering import CapturedTransaction, in_order
from wal2lake.publish.capture.relations import key_of, relation_of
from wal2lake.publish.capture.requests import CaptureRequest, Point, Preparation
from wal2lake.publish.capture.statements import Statements, count_of
from wal2lake.publish.capture.writer import Change, PublisherLogWriter
from wal2lake.publish.publications import all_published

LOOK_SECONDS: Final = 1.0
"""How soon a commit of somebody outside is found; a guess."""

_RETRY_SECONDS: Final = 5.0

_CHECK_SECONDS: Final = 0.05
"""How soon a wait for capture is ended; a guess at what a person does not notice."""

CATCH_UP_SECONDS: Final = 600.0
"""For capture to reach what is visible: another bound than a client's patience is not known."""

_EPOCH_MS: Final = 946_684_800_000
"""2000-01-01 UTC, in milliseconds since 1970."""

_NEW: Final = -1
"""The version before a table's first one."""

_ATTEMPTS: Final = 3
"""At a commit that cannot be read, for a reason that nobody expected."""

_GONE: Final = "Its log or its files were removed (VACUUM) before they were read."

Visible = Callable[[Sequence[TableDef]], Mapping[Oid, int]]
"""The version of each table that readers see, all at one moment."""


class Capture:
    """Captures the commits of one node. ``start`` it, ``stop`` it; the rest may be called from any
    thread."""

    def __init__(
        self,
        catalog: Catalog,
        tables: TablePort,
        visible: Visible,
        wanted: Callable[[], Sequence[TableDef]],
        directory: Path,
        memory: ComparisonMemory,
        statements: Statements,
        cascade: Cascade,
        handing: HandingOn,
        segment_bytes: int,
        sealed: Callable[[], None],
        enforce: Callable[[], None] = lambda: None,
    ) -> None:
        """``wanted``: the tables that anybody needs captured, none while there is no slot.
        ``sealed`` is told when the log has grown; ``enforce`` invalidates slots that hold too much
        of it."""
        self._enforce = enforce
        self._failed: Counter[tuple[Oid, int]] = Counter()
        """How often a commit could not be read, by table and version."""
        self._catalog = catalog
        self._tables = tables
        self._visible = visible
        self._wanted = wanted
        self._directory = directory
        self._memory = memory
        self._statements = statements
        self._cascade = cascade
        self._handing = handing
        self._written_down: list[str] = []
        """Entries that are not needed any more once the transaction is sealed."""
        self._segment_bytes = segment_bytes
        self._sealed = sealed
        self._log = get_logger().bind(worker="capture")
        self._repeated = RepeatedErrors()
        self._wake = threading.Condition()
        self._asked: list[CaptureRequest] = []
        self._told = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._writer: PublisherLogWriter | None = None
        self._retention = Retention(directory, history_bytes=0)
        self._idle = not catalog.slots()
        """Nobody needs what was committed so far."""
        self._definitions = -1
        """The catalog's change that was looked at last."""
        self._noted = True
        """True if definitions recorded for old positions may be trimmed."""

    def start(self) -> None:
        """Begin. Sessions take numbers only after that: the log of an earlier version has some."""
        if self._directory.is_dir():
            # A log that cannot be read is reported by the thread, which opens it.
            with suppress(Wal2LakeError):
                newest = LogReader(self._directory).newest()
                if newest is not None and newest.captured is not None:
                    self._catalog.xids.begin_above(newest.captured.last_xid)
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End between two transactions; what is not sealed is captured again."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_seconds)

    def tell(self) -> None:
        """Something was committed."""
        with self._wake:
            self._told = True
            self._wake.notify()

    def catch_up(
        self, timeout_seconds: float, check: Callable[[], None] = lambda: None
    ) -> Point:
        """Capture all that is visible now; raises what went wrong, or TimeoutError. ``check``,
        called meanwhile, may end the wait."""
        return self._ask(CaptureRequest(), timeout_seconds, check)

    def emit(
        self,
        messages: Sequence[Emitted],
        *,
        transactional: bool,
        origin: OriginMark | None = None,
        statements: str = "",
        xid: int | None = None,
    ) -> Lsn:
        """Log messages behind all that is visible now; durable on return. Where the last one
        is. While there is no slot nobody could read them, so nothing is kept. ``transactional``:
        they are one transaction, which ``statements`` has more of, and whose number is ``xid``;
        else each belongs to none."""
        request = CaptureRequest(messages, transactional, origin, statements, xid=xid)
        point = self._ask(request, CATCH_UP_SECONDS)
        return point.lsn if request.lsn is None else request.lsn

    def defined(self, check: Callable[[], None], xid: int | None = None) -> None:
        """Log the transaction of a definition, in which decoders find nothing, behind all that is
        visible now; while there is no slot nothing is kept. ``check`` may end the wait."""
        self._ask(CaptureRequest(defines=True, xid=xid), CATCH_UP_SECONDS, check)

    def prepare(self, preparation: Preparation) -> TwoPhase | None:
        """Log a transaction that is prepared, once; durable on return. None: while there is no
        slot nobody can be told of it."""
        request = CaptureRequest(preparation=preparation)
        self._ask(request, CATCH_UP_SECONDS)
        return request.two_phase

    def commit_prepared(
        self, number: int, messages: Sequence[Emitted], xid: int | None
    ) -> None:
        """Log the end of one that has written no table, once."""
        self._ask(CaptureRequest(messages, commits=number, xid=xid), CATCH_UP_SECONDS)

    def roll_back_prepared(self, number: int) -> None:
        """Log the end of a prepared transaction, once, if its PREPARE is there."""
        self._ask(CaptureRequest(rolls_back=number), CATCH_UP_SECONDS)

    def _ask(
        self,
        request: CaptureRequest,
        timeout_seconds: float,
        check: Callable[[], None] = lambda: None,
    ) -> Point:
        with self._wake:
            self._asked.append(request)
            self._wake.notify()
        deadline = time.monotonic() + timeout_seconds
        while not request.done.wait(_CHECK_SECONDS):
            check()
            if self._stopping and not self._thread.is_alive():
                raise StorageError("the node is shutting down", sqlstate="57P01")
            if time.monotonic() > deadline:
                raise TimeoutError("the change log of the publisher is busy")
        if request.error is not None:
            raise request.error
        assert request.point is not None
        return request.point

    def catch_up_for_long(self) -> Point:
        """The same, as long as it may take."""
        return self.catch_up(CATCH_UP_SECONDS)

    def end(self) -> Lsn | None:
        """Where the log ends now; None: it has not been opened."""
        writer = self._writer
        return None if writer is None else writer.sealed

    def origins(self) -> dict[str, Lsn]:
        """By origin where its last transaction ends here, of those captured since the start."""
        writer = self._writer
        return {} if writer is None else dict(writer.origins)

    # ---- the thread ------------------------------------------------------------------

    def _run(self) -> None:
        pause = LOOK_SECONDS
        while True:
            with self._wake:
                if not (self._told or self._asked or self._stopping):
                    self._wake.wait(pause)
                if self._stopping:
                    return
                self._told = False
                asked, self._asked = self._asked, []
            try:
                point = self._look(asked)
                pause = LOOK_SECONDS
                self._repeated.passed(self._log)
                for one in asked:
                    one.point = point
            except Exception as error:
                pause = _RETRY_SECONDS
                # What was read again is read again: the log and its state are as at the start.
                self._writer = None
                self._written_down = []
                for one in asked:
                    one.error = error
                self._repeated.say(self._log, "capture stopped", error)
            finally:
                for one in asked:
                    one.done.set()

    def _look(self, asked: Sequence[CaptureRequest]) -> Point | None:
        slots = self._catalog.slots()
        self._idle = self._idle or not slots
        if not slots and not asked:
            if self._writer is not None:
                # Of a slot that is gone.
                self._trim(slots, self._writer)
            return None
        writer = self._writer or self._open()
        wanted = self._wanted()
        reached = self._handing.reached()
        visible = self._visible(wanted)
        by_oid = {table.oid: table for table in wanted}
        if self._idle:
            # The first slot begins at what is visible, and so do all tables.
            now = {int(k): v for k, v in visible.items()}
            # To whoever comes now all that is prepared is new when it commits.
            writer.prepared, writer.handed_on = {}, {}
            if writer.versions != now:
                writer.versions = now
                writer.seal(note=True)
            self._idle = not slots
        # Behind the look: what was changed by a command that had ended is known to it.
        self._note(writer)
        self._handing.end(writer, _now_us())
        # A table that came later is captured from its beginning.
        before = {relid: writer.versions.get(int(relid), _NEW) for relid in visible}
        try:
            commits = {
                relid: self._commits(by_oid[relid], before[relid], version)
                for relid, version in visible.items()
                if version > before[relid]
            }
            for transaction in in_order(commits, self._catalog.system_identifier):
                self._capture(transaction, by_oid, writer)
        except _Unreadable as error:
            self._pass_over(slots, error, visible[error.table.oid])
            return self._look(asked)
        joined = _NEW in before.values()
        # What is visible of a table may go back, when another subscription takes it.
        writer.versions = {int(k): max(v, before[k]) for k, v in visible.items()}
        self._handing.settle(writer, reached, _now_us())
        if any(slot.two_phase for slot in slots):
            self._handing.hand_on(writer, by_oid, visible, reached, self._by_partition)
        for one in asked if slots else ():
            self._serve(one, by_oid, writer)
        failpoint("capture.read")
        if writer.seal(note=joined) is not None:
            failpoint("capture.sealed")
            self._sealed()
        self._statements.drop(self._written_down)
        self._written_down = []
        self._statements.drop_left()
        if slots:
            self._enforce()
        self._trim(self._catalog.slots(), writer)
        state = {relid: max(v, before[relid]) for relid, v in visible.items()}
        return Point(writer.sealed, state)

    def _open(self) -> PublisherLogWriter:
        """Where the log ends; what was noted for beyond that did not happen."""
        try:
            writer = self._opened()
        except CorruptLogError as error:
            if any(
                s.confirmed_lsn for s in self._catalog.slots() if not s.invalidation
            ):
                raise
            # A slot that is being made begins behind all that is there.
            writer = self._opened(unread=True)
            writer.seal(note=True)
            self._idle = True
            self._log.warning("a damaged log that no slot needs is left", error=error)
        self._writer = writer
        self._catalog.forget_definitions(writer.end)
        self._definitions = -1
        self._noted = True
        return writer

    def _opened(self, *, unread: bool = False) -> PublisherLogWriter:
        return PublisherLogWriter(
            self._directory, self._segment_bytes, self._catalog.xids, unread=unread
        )

    def _note(self, writer: PublisherLogWriter) -> None:
        """Record what may be published, if it has changed."""
        counter = self._catalog.change_counter
        if counter != self._definitions:
            if self._catalog.note_definitions(writer.end):
                self._noted = True
            self._definitions = counter

    def _serve(
        self,
        request: CaptureRequest,
        tables: Mapping[Oid, TableDef],
        writer: PublisherLogWriter,
    ) -> None:
        now = _now_us()
        if request.preparation is not None:
            request.two_phase = self._prepare(request.preparation, tables, writer)
            return
        if request.rolls_back is not None:
            writer.roll_back(request.rolls_back, now)
            return
        if request.defines:
            writer.empty(now, request.xid)
            return
        number = request.commits
        if request.transactional or number is not None:
            mark = request.origin
            told = self._in_turn(request.statements, tables)
            if told is None:
                told = list(request.messages)
            writer.transaction(
                now if mark is None or mark.time_us is None else mark.time_us,
                None if mark is None else (mark.name, Lsn(mark.lsn)),
                iter(told),
                count_of(told),
                {},
                prepared=number,
                xid=request.xid,
            )
            request.lsn = writer.end
            return
        for message in request.messages:
            request.lsn = writer.message(message)

    def _prepare(
        self,
        one: Preparation,
        tables: Mapping[Oid, TableDef],
        writer: PublisherLogWriter,
    ) -> TwoPhase:
        found = CapturedTransaction(
            tuple(c for c in one.commits if c[0] in tables), None
        )
        return writer.prepare(
            one.number,
            one.gid,
            one.time_us,
            self._changes(found, tables, one.messages),
            self._at_most(found, tables) + len(one.messages),
            one.xid,
        )

    def _pass_over(
        self, slots: Sequence[ReplicationSlot], error: _Unreadable, version: int
    ) -> None:
        """Invalidate the slots that need a commit which cannot be read; the others go on. Commits
        that were added in this look are read again."""
        table = error.table
        published = all_published(
            self._catalog.publications(),
            self._catalog.tables(),
            self._catalog.namespaces(),
        )
        names = {
            name
            for one in published
            for name in (one.table.oid, one.table.partition_of)
        }
        self._log.error("a commit cannot be captured", error=error)
        for slot in slots:
            # Other plugins are not asked what they send.
            if slot.plugin != "pgoutput" or table.oid in names:
                self._catalog.invalidate_slot(slot.name, "wal_removed")
        writer = self._open()
        writer.versions[int(table.oid)] = version
        writer.seal(note=True)

    def _trim(
        self, slots: Sequence[ReplicationSlot], writer: PublisherLogWriter
    ) -> None:
        """Remove the segments that no slot needs any more; a slot that is just being made needs
        all."""
        needed = [slot.restart_lsn for slot in slots if slot.invalidation is None]
        lowest = min(needed, default=writer.sealed)
        self._retention.trim(lowest)
        if self._noted:
            self._noted = self._catalog.trim_definitions(lowest)

    def _commits(self, table: TableDef, first: int, last: int) -> list[TableCommit]:
        found = []
        read = self._tables.actions(table.location, first + 1, last)
        for version, actions in enumerate(read, first + 1):
            if not actions:
                raise _Unreadable(table, version, _GONE)
            commit = read_commit(version, actions)
            if commit.changes_rows:
                found.append(commit)
        return found

    def _capture(
        self,
        transaction: CapturedTransaction,
        tables: Mapping[Oid, TableDef],
        writer: PublisherLogWriter,
    ) -> None:
        versions = {int(relid): commit.version for relid, commit in transaction.commits}
        if self._cascaded(transaction, tables, writer, versions):
            return
        if transaction.parts:
            # A table that is in it twice has two differences, one after the other.
            for part in transaction.parts:
                self._capture(part, tables, writer)
            return
        self._withdraw(writer, [relid for relid, _ in transaction.commits])
        told = self._by_statement(transaction, tables)
        time_us = transaction.origin_time_us
        if time_us is None:
            time_us = (transaction.time_ms - _EPOCH_MS) * 1000
        if told is None:
            messages = transaction.messages
            changes = self._changes(transaction, tables, messages)
            at_most = self._at_most(transaction, tables) + len(messages)
        else:
            changes, at_most = iter(told), count_of(told)
        writer.transaction(
            time_us,
            transaction.origin,
            changes,
            at_most,
            versions,
            prepared=transaction.prepared,
            xid=transaction.xid,
        )

    def _cascaded(
        self,
        transaction: CapturedTransaction,
        tables: Mapping[Oid, TableDef],
        writer: PublisherLogWriter,
        versions: Mapping[int, int],
    ) -> bool:
        """A subscription's batch as the transactions that it is of, if it is just those."""
        try:
            found = self._cascade.read(transaction, tables, self._by_partition)
            if found is None or transaction.origin is None:
                return False
            name, source = transaction.origin[0], transaction.source
            assert source is not None
            self._withdraw(
                writer, [relid for relid, _ in transaction.commits], source.subid
            )
            ends, found = self._handing.ending(writer, source.subid, source.end, found)
            writer.replay(found.transactions, name, found.changes, versions, ends)
        except OtherwisePrepared as other:
            for one in other.transactions:
                writer.withdraw(one, _now_us())
            return self._cascaded(transaction, tables, writer, versions)
        except NotAsSent as reason:
            self._log.debug("a batch is sent on as one transaction", reason=str(reason))
            return False
        except CorruptLogError as error:
            # What it had applied may go at any time.
            self._log.debug("a batch is sent on as one transaction", error=error)
            return False
        except Exception as error:
            # No table is in doubt, and the difference is in none of the files that are.
            said = error if isinstance(error, Wal2LakeError) else None
            self._log.warning(
                "a batch is sent on as one transaction, for its log cannot be read",
                error=said,
                exc_info=None if said else error,
            )
            return False
        return True

    def _withdraw(
        self,
        writer: PublisherLogWriter,
        tables: Sequence[Oid],
        subid: Oid | None = None,
    ) -> None:
        """Roll back what was handed on of these tables by others than ``subid``."""
        for one in self._handing.in_the_way(writer, tables, subid):
            writer.withdraw(one, _now_us())

    def _by_statement(
        self, transaction: CapturedTransaction, tables: Mapping[Oid, TableDef]
    ) -> list[Change | Emitted] | None:
        """Return the changes of the transaction's statements one after the other, if they were
        written down."""
        names = (commit.more.statements for _, commit in transaction.commits)
        emptied = {relid for relid, commit in transaction.commits if commit.truncates}
        name = next((name for name in names if name), "")
        return self._in_turn(name, tables, emptied)

    def _in_turn(
        self,
        name: str,
        tables: Mapping[Oid, TableDef],
        emptied: Collection[Oid] = (),
    ) -> list[Change | Emitted] | None:
        found = self._statements.read(name) if name else None
        if found is None:
            return None
        self._written_down.append(name)
        truncated = {
            one[0].relid
            for one in found
            if not isinstance(one, Emitted) and isinstance(one[1], int)
        }
        if not truncated <= set(emptied):
            # Rows that somebody else has added before a crash was made up for are still there.
            return None
        return [
            (self._by_partition(tables[one[0].relid], one[0]), one[1])
            if not isinstance(one, Emitted) and one[0].relid in tables
            else one
            for one in found
        ]

    def _changes(
        self,
        transaction: CapturedTransaction,
        tables: Mapping[Oid, TableDef],
        messages: Sequence[Emitted],
    ) -> Iterator[Change | Emitted]:
        """The difference that it makes. When its messages were emitted is not known then: they
        come first."""
        yield from messages
        found, truncated = [], []
        for relid, commit in transaction.commits:
            table = self._catalog.table_at(tables[relid], commit.version)
            with self._reading(table, commit):
                state = self._tables.state_at(table.location, commit.version)
            relation = self._by_partition(table, relation_of(table, state))
            if commit.truncates:
                truncated.append((relation, commit.more.truncate_options))
            found.append((table, commit, state, relation))
        # Of all tables first: those with the same options are one TRUNCATE to subscribers.
        yield from sorted(truncated, key=lambda one: one[1])
        for table, commit, state, relation in found:
            key = key_of(table, relation)
            with self._reading(table, commit):
                for batch in row_changes(state, commit, relation, key, self._memory):
                    yield relation, batch

    def _at_most(
        self, transaction: CapturedTransaction, tables: Mapping[Oid, TableDef]
    ) -> int:
        """How many changes it can be."""
        found = 0
        for relid, commit in transaction.commits:
            table = self._catalog.table_at(tables[relid], commit.version)
            with self._reading(table, commit):
                state = self._tables.state_at(table.location, commit.version)
                found += most_changes(commit, partial(_count, state))
        return found

    @contextmanager
    def _reading(self, table: TableDef, commit: TableCommit) -> Iterator[None]:
        """Around reading a commit: _Unreadable if that will never succeed. What nobody expected
        (a foreign writer's types, a fault of ours) is tried again first: one table must not hold
        up all others for good."""
        try:
            yield
        except Exception as error:
            if _is_gone(error):
                raise _Unreadable(table, commit.version, _GONE) from error
            if isinstance(error, OSError | MemoryError):
                raise
            if isinstance(error, Wal2LakeError) and error.retry is Retry.LATER:
                raise
            key = table.oid, commit.version
            self._failed[key] += 1
            if self._failed[key] < _ATTEMPTS:
                raise
            known = isinstance(error, Wal2LakeError)
            detail = f"Reading it failed {_ATTEMPTS} times"
            raise _Unreadable(
                table,
                commit.version,
                f"{detail}: {error}." if known else f"{detail}.",
                words_of(error),
            ) from error

    def _by_partition(self, table: TableDef, relation: Relation) -> Relation:
        """The log has partitions, as PostgreSQL's: what is published of the partitioned table
        is known when it is sent."""
        if table.partition_key is None:
            return relation
        for one in self._catalog.tables():
            if one.partition_of == table.oid:
                return replace(
                    relation, relid=one.oid, namespace=one.namespace, name=one.name
                )
        return relation


def _now_us() -> int:
    """Since 2000-01-01 UTC."""
    return (int(time.time() * 1000) - _EPOCH_MS) * 1000


def _count(state: TableState, file: DataFile) -> int:
    return StoredRows(state, [file]).count()


def _is_gone(error: BaseException | None) -> bool:
    """A file is not there any more, rather than out of reach for now."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return True
        if isinstance(error, StorageError) and error.sqlstate == "58P01":
            return True
        error = error.__cause__
    return False


class _Unreadable(StorageError):
    """A commit of a table, or files that it is about, are not there any more, or are not as
    anybody expects them."""

    def __init__(
        self, table: TableDef, version: int, detail: str, original: str | None = None
    ) -> None:
        super().__init__(
            f'version {version} of table "{table.qualified}" cannot be captured',
            sqlstate="58P01",
            detail=detail,
            hint="Drop the slots that were invalidated, and copy the tables again.",
            original=original,
        )
        self.table = table
