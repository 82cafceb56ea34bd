"""The apply worker of one subscription: sealed segments into table commits.

    segments ─▶ choose ─▶ divide by table ─▶ check ─▶ stage ─▶ (cut?) ─▶ commit ─▶ publish
                                                       all tables      all tables   floor
                                                       in parallel     in parallel  + vector

A loop over batches. What a crash leaves behind is found again from durable facts alone:
each table's cursor is in its own last commit, the floor in the catalog, the changes in
the log. A table that had committed when the crash came has a cursor above the floor and
skips what it has; the vector was not published, so no reader saw it alone. Its version is
published with the others', once they have caught up with it.

Positions. A table's position is the higher of its cursor and the floor. A table that was just
copied joins with its cursor S; the batch starts at the lowest position, so it catches up
while the others skip. It turns visible (f -> s -> r) with the first vector whose LSN has
reached S.

What the worker knows of a table (``_Table``), and who changes it:

    fact         set                                       cleared, or moved on
    cursor       _refresh: read from the table             _commit: end of the batch
    version      _refresh: the newest found                _commit: the one made; _stage and
                                                           _publish: the newest, under the lock
    trusted      catalog, on the way in; _refresh, if all  _distrust, before a vector has what
                 above the published version is ours       others wrote; DML; REFRESH
    unpublished  _refresh: the found version is not the    _publish
                 vector's, or the cursor is above the
                 floor; _commit
    ready        catalog: the second vector that has it    a new epoch (the table left and came)

A version of others (an outside OPTIMIZE, a write at the front door whose session died) is thus
published by the next worker. While one runs, the front door publishes its own writes, unless
the table's cursor is above the vector or its copy has not joined: then ``_publish`` does it,
which looks at such tables again under the commit lock.

A power loss. What it tore above the published version is undone when a worker first sees the
table, once: no power loss comes in between. A copy that ended with a torn commit (tablesync
found the cursor in it) is without a cursor then, and is made again.

Errors. A value, constraint or mapping that fails is located (commit LSN, ordinal): the batch is cut
below that transaction, what is before it is applied, and the error is reported with
PostgreSQL's context and the finish LSN; the worker tries again after
wal_retrieve_retry_interval. Other subscriptions are other workers.

Source: DESIGN 6 (Apply), invariants 1, 2, 6; worker.c.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from wal2lake.apply.batch import Batch, RelationName, TableChanges, choose, divide
from wal2lake.apply.relationmap import error_context
from wal2lake.apply.targets import Failure, check_others, check_targets
from wal2lake.catalog import (
    Catalog,
    ProgressFile,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.changelog import LogReader, Manifest
from wal2lake.errors import ApplyError, Wal2LakeError
from wal2lake.lake import CommitConflict, Cursor, TablePort, TableState
from wal2lake.lake.batchport import BatchPort, Staged, StageRequest
from wal2lake.lake.staging.changes import RowFailure
from wal2lake.lake.staging.convert import Rules
from wal2lake.lake.staging.logrows import LogSource, LsnRange
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe import failpoint, get_logger
from wal2lake.pgtypes import (
    COPIED_ANEW,
    RemoteTypes,
    ValuePolicies,
    remedy,
    remote_types_from_json,
)
from wal2lake.settings import Settings

_POLL_SECONDS: Final = 0.02
"""How soon a new segment is noticed; small beside a table commit's 200 ms."""

_PARALLEL_TABLES: Final = 4
"""Tables of one batch that Spark works on at once: their driver-side steps overlap."""

_UNPUBLISHED_COMMITS: Final = 8
"""More than a crash can leave of ours: a commit and a compaction for each attempt."""

_JOINING: Final = (SyncState.FINISHEDCOPY, SyncState.SYNCDONE, SyncState.READY)


def _hint(table: TableDef, failure: RowFailure) -> str:
    column = None if failure.column is None else table.column(failure.column)
    if column is None:
        return (
            "Transactions before this one have been applied. Delete the row that has"
            f" this key here, or {COPIED_ANEW}."
        )
    what = remedy(
        failure.sqlstate,
        (table.namespace, table.name, column.name),
        nullable=not column.not_null,
        in_key=column.name in table.key,
    )
    return f"Transactions before this one have been applied. {what}"


@dataclass(slots=True)
class _Table:
    """One participating table, as this worker knows it."""

    rel: SubscriptionRel
    definition: TableDef
    cursor: Lsn
    """0: no commit of ours carries one (copy_data = false)."""
    version: int
    """The newest Delta version that the worker has made or found."""
    trusted: bool
    """Every version since the copy is ours."""
    unpublished: bool
    """No vector has ``version``, or the floor is not at ``cursor`` yet; as far as we know."""

    @property
    def visible(self) -> bool:
        """In a vector already: no later one may show less of it than of the others."""
        return self.rel.state in (SyncState.SYNCDONE, SyncState.READY)

    @property
    def ready(self) -> bool:
        """Published already; others wait for a vector that reaches their cursor."""
        return self.rel.state is SyncState.READY


class ApplyWorker:
    """Runs in its own thread from ``start`` until ``stop``."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        subid: Oid,
        tables: TablePort,
        batches: BatchPort,
        progress: ProgressFile,
        commit_lock: threading.RLock,
    ) -> None:
        """``commit_lock`` is held while tables commit and the vector is published:
        writers at the front door hold it too, so that a vector is never torn."""
        self._catalog = catalog
        self._settings = settings
        self._subid = subid
        self._port = tables
        self._batches = batches
        self._progress = progress
        self._commit_lock = commit_lock
        self._node = catalog.system_identifier
        directory = settings.log_directory / str(int(subid))
        # The receiver may come later than we do.
        directory.mkdir(parents=True, exist_ok=True)
        self._reader = LogReader(directory)
        self._tables: dict[Oid, _Table] = {}
        self._recovered: set[str] = set()
        self._copying = False
        """Locations that were looked at for what a power loss tore."""
        self._seen_change = -1
        self._idle_at: tuple[Lsn, int] | None = None
        """Sealed position and catalog state at which there was nothing to do."""
        self._stop = threading.Event()
        self._events = get_logger()
        self._pool = ThreadPoolExecutor(_PARALLEL_TABLES, f"apply-{int(subid)}")
        self._thread = threading.Thread(
            target=self._run, name=f"apply-{int(subid)}", daemon=True
        )

    # ---- life ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """End after the batch in hand; False if that takes longer than the time."""
        self._stop.set()
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self._pool.shutdown(wait=False)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        retry = self._settings.subscription.wal_retrieve_retry_interval_ms / 1000
        self._events.info(
            f"logical replication apply worker for subscription {self._subid}"
            " has started"
        )
        while not self._stop.is_set():
            try:
                if not self._step():
                    self._stop.wait(_POLL_SECONDS)
            except Wal2LakeError as error:
                self._catalog.note_error(self._subid, error.describe())
                self._events.error("apply stopped", error=error)
                self._tables.clear()
                self._seen_change = -1
                self._stop.wait(retry)
            except Exception as error:
                self._catalog.note_error(self._subid, f"internal error: {error!r}")
                self._events.error("apply failed", exc_info=error)
                self._tables.clear()
                self._seen_change = -1
                self._stop.wait(retry)

    # ---- one batch ---------------------------------------------------------------------

    def _step(self) -> bool:
        """Apply the next batch; False if there was nothing to do."""
        # In this order: what is sealed now is in the listing that follows.
        sealed = Lsn(self._progress.word("sealed"))
        change = self._catalog.change_counter
        if (sealed, change) == self._idle_at:
            return False
        subscription = self._catalog.subscription(self._subid)
        if subscription is None:
            return False
        if change != self._seen_change:
            self._refresh(subscription)
            self._seen_change = change
        floor = subscription.floor
        decided = self._decided(floor)
        start = min(
            (max(t.cursor, floor) for t in self._tables.values()), default=decided
        )
        # A table may join above what has been looked at, which holds other relations.
        start = min(start, decided)
        waiting = self._reader.above(start)
        if not waiting:
            worked = self._settle(subscription, max(sealed, start))
            self._idle_at = None if worked else (sealed, change)
            return worked
        self._idle_at = None
        limits = self._settings.apply
        # A table that was ahead when a crash came must not be passed by a vector that
        # lacks what it already has: the batch reaches at least as far as the table.
        ahead = max(
            (t.cursor for t in self._tables.values() if t.visible), default=floor
        )
        chosen = choose(
            waiting,
            max_bytes=limits.batch_bytes,
            max_rows=limits.batch_rows,
            at_least=ahead,
        )
        end = chosen[-1].sealed_lsn
        batch = divide(chosen, positions=self._positions(floor), end=end)
        self._apply(subscription, batch)
        return True

    def _refresh(self, subscription: Subscription) -> None:
        """Take over relation states, and read the cursors of tables that are new."""
        known = self._tables
        self._tables = {}
        vector = self._catalog.newest_vector(self._subid)
        published = vector.versions if vector is not None else {}
        floor = subscription.floor
        rels = self._catalog.rels(self._subid)
        self._copying = self._is_copying(rels)
        for rel in rels:
            definition = self._catalog.table_by_oid(rel.relid)
            if definition is None:
                continue
            expected = published.get(int(rel.relid))
            # Tables that wait for their copy, too: it may have been torn as it ended.
            self._recover(definition, expected)
            if rel.state not in _JOINING:
                continue
            before = known.get(rel.relid)
            if before is not None and before.rel.epoch == rel.epoch:
                before.rel, before.definition = rel, definition
                before.trusted = before.trusted and rel.trusted
                self._tables[rel.relid] = before
                continue
            state = self._port.state(definition.location)
            name = rel.cursor_name(self._node)
            cursor = state.cursor(name)
            if cursor is None and rel.state is SyncState.FINISHEDCOPY:
                self._copy_again(definition)
                continue
            table = _Table(
                rel,
                definition,
                Lsn(cursor or 0),
                state.version,
                trusted=rel.trusted,
                unpublished=state.version != expected or (cursor or 0) > floor,
            )
            if rel.trusted and not self._is_ours(
                definition.location, expected, state.version, name
            ):
                self._distrust(table)
            self._tables[rel.relid] = table

    def _is_copying(self, rels: Sequence[SubscriptionRel]) -> bool:
        """Are there copies under the held snapshot that go well? Those that are done wait for
        them: what was copied at one moment is first seen at one moment."""
        held = self._catalog.snapshot_held(self._subid)
        return held is not None and any(
            rel.state is SyncState.DATASYNC
            and rel.error is None
            and int(rel.relid) in held.relids
            for rel in rels
        )

    def _recover(self, definition: TableDef, published: int | None) -> None:
        """Undo what a power loss tore above the published version, once.

        Nothing is undone where nothing was published: all that is there came before us.
        """
        if definition.location in self._recovered:
            return
        if published is not None:
            removed = self._port.recover(definition.location, published)
            if removed:
                self._events.warning(
                    "removed versions that a power loss left incomplete",
                    table=definition.qualified,
                    versions=list(removed),
                )
        self._recovered.add(definition.location)

    def _copy_again(self, definition: TableDef) -> None:
        """The commit that ended its copy has not survived.

        Back to d, where it came from, and not to i: the floor waits for it all the time,
        and a snapshot that is held for it still can be used.
        """
        self._events.warning(
            "copy starts again: its commit was lost", table=definition.qualified
        )
        self._catalog.update_rel(self._subid, definition.oid, state=SyncState.DATASYNC)

    def _is_ours(
        self, location: str, published: int | None, found: int, name: str
    ) -> bool:
        """Has nobody else written what a start finds above the published version?

        A crash leaves a batch's commit there, and perhaps a compaction. None: never
        published, just copied.
        """
        if published is None or found == published:
            return True
        if not published < found <= published + _UNPUBLISHED_COMMITS:
            return False
        writers = self._port.writers(location, published + 1, found)
        return all(name in one for one in writers)

    def _positions(self, floor: Lsn) -> Mapping[RelationName, tuple[Oid, Lsn]]:
        return {
            (t.rel.remote_namespace, t.rel.remote_name): (
                relid,
                Lsn(max(t.cursor, floor)),
            )
            for relid, t in self._tables.items()
        }

    def _decided(self, floor: Lsn) -> Lsn:
        """Below it every transaction has been applied, or skipped where it may be."""
        vector = self._catalog.newest_vector(self._subid)
        return floor if vector is None else Lsn(max(floor, vector.lsn))

    def _settle(self, subscription: Subscription, reached: Lsn) -> bool:
        """Nothing to apply below ``reached``: let copied tables join, and publish what
        had been committed when a crash came."""
        if not self._unseen(reached):
            if self._progress.word("applied") < subscription.floor:
                self._progress.set(applied=subscription.floor)
            return False
        with self._commit_lock:
            return self._publish(reached)

    def _apply(self, subscription: Subscription, batch: Batch) -> None:
        failure = self._attempt(subscription, batch, cut=None)
        if failure is not None:
            if failure.cut > subscription.floor or self._unseen(failure.cut):
                self._attempt(subscription, batch, cut=failure.cut)
            raise failure.error
        if batch.tables:
            self._catalog.note_error(self._subid, None)

    def _attempt(
        self, subscription: Subscription, batch: Batch, cut: Lsn | None
    ) -> Failure | None:
        """Stage all; commit all and publish if nothing failed."""
        reached = batch.end if cut is None else cut
        parts = [t for t in batch.tables if t.position < reached]
        if cut is not None:
            # The floor is enough for a table that has nothing below the cut.
            parts = [p for p in parts if any(f.min_commit_lsn < cut for f in p.files)]
        failures = check_targets(
            self._catalog,
            self._reader,
            parts,
            origin=f"pg_{subscription.oid}",
            cut=cut,
        )
        failures += check_others(
            self._catalog,
            self._reader,
            batch.others,
            subid=self._subid,
            position=self._decided(subscription.floor),
            cut=cut,
        )
        if failures:
            return min(failures, key=lambda f: f.cut)
        with self._commit_lock:
            staged = self._stage_all(subscription, parts, cut)
            failure = self._first_failure(subscription, batch, parts, staged)
            if failure is not None:
                for one in staged:
                    self._batches.discard(one)
                return failure
            failpoint("apply.staged")
            try:
                self._catalog.expect_coercions(
                    self._subid,
                    reached,
                    {part.relid: part.position for part in parts},
                    {p.relid: s.coercions for p, s in zip(parts, staged, strict=True)},
                )
            except BaseException:
                for one in staged:
                    self._batches.discard(one)
                raise
            self._commit_all(parts, staged, reached)
            failpoint("apply.tables_committed")
            self._publish(reached, committed=[part.relid for part in parts])
        return None

    def _stage_all(
        self, subscription: Subscription, parts: list[TableChanges], cut: Lsn | None
    ) -> list[Staged]:
        types = remote_types_from_json(subscription.remote_types)
        policies = ValuePolicies.parse(subscription.value_policies)
        running = [
            self._pool.submit(self._stage, part, cut, types, policies) for part in parts
        ]
        wait(running)
        if any(one.exception() is not None for one in running):
            for one in running:
                if one.exception() is None:
                    self._batches.discard(one.result())
        return [one.result() for one in running]

    def _stage(
        self,
        part: TableChanges,
        cut: Lsn | None,
        types: RemoteTypes,
        policies: ValuePolicies,
    ) -> Staged:
        known = self._tables[part.relid]
        state = self._look(known)
        definition = known.definition
        request = StageRequest(
            namespace=definition.namespace,
            name=definition.name,
            state=state,
            key=definition.key,
            constraint=definition.key_name or f"{definition.name}_pkey",
            sources=[
                LogSource(
                    str(self._reader.path(f.file)),
                    f.relation,
                    f.rows,
                    f.commit_lsn,
                    f.rolled_back,
                )
                for f in part.files
            ],
            span=LsnRange(part.position, cut),
            append=part.insert_only and (known.trusted or not definition.key),
            trusted=known.trusted,
            types=types,
            rules=Rules(
                policies,
                frozenset(c.name for c in definition.columns if c.not_null),
                frozenset(definition.key),
                self._settings.apply.max_value_bytes,
            ),
        )
        return self._batches.stage(request)

    def _look(self, table: _Table) -> TableState:
        """The table as it is; under the commit lock it is ours or somebody else's."""
        state = self._port.state(table.definition.location)
        if state.version != table.version:
            table.version = state.version
            self._distrust(table)
        return state

    def _distrust(self, table: _Table) -> None:
        """Somebody else has written it: inserts may meet rows that are not ours."""
        table.trusted = False
        if table.rel.trusted:
            self._catalog.update_rel(self._subid, table.rel.relid, trusted=False)

    def _first_failure(
        self,
        subscription: Subscription,
        batch: Batch,
        parts: list[TableChanges],
        staged: list[Staged],
    ) -> Failure | None:
        found: list[Failure] = []
        for part, one in zip(parts, staged, strict=True):
            for failure in one.failures:
                at = Lsn(failure.seq.commit_lsn)
                definition = self._tables[part.relid].definition
                error = ApplyError(
                    failure.message,
                    sqlstate=failure.sqlstate,
                    context=error_context(
                        origin=f"pg_{subscription.oid}",
                        relation=definition.qualified,
                        column=failure.column,
                        finish_lsn=at,
                    ),
                    hint=_hint(definition, failure),
                )
                found.append(Failure(at, error))
        return min(found, key=lambda f: f.cut, default=None)

    def _commit_all(
        self, parts: list[TableChanges], staged: list[Staged], reached: Lsn
    ) -> None:
        """Commit every table; the first error once all of them have ended."""
        running = [
            self._pool.submit(self._commit, part, one, reached)
            for part, one in zip(parts, staged, strict=True)
        ]
        wait(running)
        for one in running:
            one.result()

    def _commit(self, part: TableChanges, staged: Staged, reached: Lsn) -> None:
        known = self._tables[part.relid]
        name = known.rel.cursor_name(self._node)
        try:
            done = self._batches.commit(staged, Cursor(name, int(reached)))
        except CommitConflict:
            self._batches.discard(staged)
            raise
        known.cursor, known.version, known.unpublished = reached, done.version, True
        if done.interlopers:
            self._distrust(known)
        failpoint("apply.table_committed")

    def _unseen(self, reached: Lsn) -> list[_Table]:
        """Tables at or below ``reached`` whose version readers do not have yet."""
        return [
            t
            for t in self._tables.values()
            if t.cursor <= reached
            and (t.unpublished or not t.ready)
            and not (self._copying and t.rel.state is SyncState.FINISHEDCOPY)
        ]

    def _publish(self, reached: Lsn, committed: Collection[Oid] = ()) -> bool:
        """Floor, vector, states; then the word that feedback and retention watch.

        The caller holds the commit lock, and has committed to the tables ``committed``
        under it. The others were read without it: the front door may have written them
        since, and whoever made their newest version may have died before its sync.

        False, and nothing, if a table that readers see is ahead of ``reached``.
        """
        if any(t.visible and t.cursor > reached for t in self._tables.values()):
            return False
        unseen = self._unseen(reached)
        for table in unseen:
            if table.rel.relid not in committed:
                version = self._look(table).version
                self._port.sync(table.definition.location, version)
        floor = self._catalog.publish(
            self._subid,
            reached,
            {int(t.rel.relid): t.version for t in unseen},
            participants=[int(relid) for relid in self._tables],
            joined=[int(t.rel.relid) for t in unseen if not t.ready],
        )
        for table in unseen:
            table.unpublished = False
        failpoint("apply.vector_recorded")
        self._progress.set(applied=floor)
        return True

    def waiting_segments(self) -> list[Manifest]:
        """For status: what is sealed above the floor."""
        subscription = self._catalog.subscription(self._subid)
        return [] if subscription is None else self._reader.above(subscription.floor)
