"""The tablesync workers of all subscriptions copy waiting tables.

    state   set by                               durable then
    i       CREATE SUBSCRIPTION, REFRESH         the table's entry in the catalog
    d       the receiver's snapshot keeper       the floor waits for this table's snapshot
            (and the apply worker, for a copy
            torn by a power loss)
    (d)     this module, at an attempt's begin   its plan, and the S that its commit may have
    (d)     this module, per range               the range's files, fsynced; its row in copy_range
    f       this module                          ONE commit: all files, cursor S
    s, r    the apply worker                     see apply.step.nextbatch

A copy needs a snapshot that the receiver holds and that covers the table. One query reads the
publisher's descriptions of all waiting tables. Then workers, at most
max_sync_workers_per_subscription for each subscription, take groups of tables (``plan.groups``) and
copy them (``group``). A table whose copy fails releases its worker at once. Its error is recorded
in the catalog, and it is tried again later, alone, after tables that failed less often.

Finished ranges are recorded with the snapshot's name, so that after a crash of the engine only the
other ranges are read. When the snapshot is lost, its ranges are void (a row updated since would be
in two ranges or in none), and the copy starts again. VACUUM removes files that were written for it.

Crash points: a commit that is not recorded in the catalog is found by the table's cursor and is not
repeated. The floor has not passed its S, even if later snapshots were taken, because the catalog
recorded the S before the commit began.

Commands end copies by ``halt``. They change the catalog first, so that no new attempt begins (each
attempt reads the catalog again after it is registered here). When ``halt`` has returned, the
present attempts commit nothing more.

Source: tablesync.c (the states); DESIGN 6 (Table synchronisation).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from wal2lake.apply.schema.follow import TableAlteration
from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, SyncSnapshot
from wal2lake.errors import PublisherError, sqlstate_of
from wal2lake.lake import Executors, TablePort
from wal2lake.lake.batch import BatchPort
from wal2lake.lake.staging import NO_DEFAULTS, ColumnDefaults
from wal2lake.model import Oid, SyncState
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.observe.telemetry import Telemetry
from wal2lake.pg import Publisher, RemoteTable, Session, connect
from wal2lake.settings import Settings
from wal2lake.tablesync.attempt import Attempt, Halted, RunningCopy, SnapshotGone
from wal2lake.tablesync.copy import LOCK_TIMEOUT_MS
from wal2lake.tablesync.group import GroupCopy
from wal2lake.tablesync.measures import CopyMeasures
from wal2lake.tablesync.plan import groups, table_bytes
from wal2lake.tablesync.turns import Key, SyncTurns

_POLL_SECONDS: Final = 0.02
"""Interval between reads of the catalog's change counter."""

_LOOK_SECONDS: Final = 1.0
"""Interval of looks without a change of the counter, in case a change was missed."""

_LOCK_NOT_AVAILABLE: Final = "55P03"

_WAITING: Final = (SyncState.INIT, SyncState.DATASYNC)


class TableSync:
    """Runs all copies of all subscriptions, from ``start`` to ``stop``."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        tables: TablePort,
        batches: BatchPort,
        executors: Executors,
        cores: int,
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
        telemetry: Telemetry | None = None,
    ) -> None:
        """``cores``: number of ranges read at once. ``alter`` alters a table as its publisher did.
        ``defaults``: defaults of columns that are not copied."""
        self._catalog = catalog
        self._settings = settings.subscription
        self._group = GroupCopy(
            catalog,
            settings,
            tables,
            batches,
            executors,
            cores,
            alter,
            defaults,
            telemetry,
        )
        self._measures = CopyMeasures(telemetry or Telemetry())
        self._stop = threading.Event()
        self._freed = threading.Event()
        """Set when a worker may have become free since the last look."""
        self._guard = threading.Lock()
        """Guards the five fields below."""
        self._turns = SyncTurns(self._settings.wal_retrieve_retry_interval_ms / 1000)
        self._attempts: dict[Key, Attempt] = {}
        self._groups: list[Sequence[Attempt]] = []
        """Groups in work, one per worker."""
        self._workers: Counter[Oid] = Counter()
        self._described: dict[Key, tuple[SyncSnapshot, RemoteTable | None]] = {}
        """The publisher's descriptions of tables whose attempt has not begun."""
        self._describing: set[Oid] = set()
        self._events = get_logger()
        self._repeated: defaultdict[Key, RepeatedErrors] = defaultdict(RepeatedErrors)
        """Reported errors, by the first table that each concerns."""
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)

    def start(self) -> None:
        """Begin to look for waiting tables."""
        self._thread.start()

    def stop(self) -> None:
        """Start no more copies. Running copies are abandoned; their finished ranges are kept."""
        self._stop.set()
        self._thread.join(2.0)
        self._group.stop()

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on. Workers above a lower limit end with their groups."""
        with self._guard:
            self._settings = settings.subscription
            self._turns.retry_seconds = (
                self._settings.wal_retrieve_retry_interval_ms / 1000
            )
        self._group.max_lock_wait_ms = self._settings.max_lock_wait_ms
        self._freed.set()

    def halt(
        self,
        *,
        subid: Oid | None = None,
        relids: Collection[Oid] | None = None,
        timeout_seconds: float,
    ) -> bool:
        """End copies of one subscription, of some tables, or of some tables of one.

        If it returns True, these copies commit nothing more. The caller has changed the catalog, so
        that no new copy begins. Returns False if a commit does not end in time.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._guard:
            attempts = [
                attempt
                for (of, relid, _), attempt in self._attempts.items()
                if (subid is None or of == subid)
                and (relids is None or relid in relids)
            ]
        ended = [
            attempt.end(max(0.0, deadline - time.monotonic())) for attempt in attempts
        ]
        self._group.wake()
        return all(ended)

    def running(self, subid: Oid) -> list[RunningCopy]:
        """Return the current copies of a subscription's workers, one value for each."""
        copies = []
        with self._guard:
            for group in self._groups:
                if group[0].subscription.oid != subid:
                    continue
                left = [
                    attempt
                    for attempt in group
                    if not attempt.over and not attempt.finished
                ]
                copies += [RunningCopy(o.rel.relid, o.received_at) for o in left[:1]]
        return copies

    # ---- who is next ------------------------------------------------------------------

    def _run(self) -> None:
        seen, looked = -1, 0.0
        while not self._stop.wait(_POLL_SECONDS):
            try:
                change, now = self._catalog.change_counter, time.monotonic()
                with self._guard:
                    due = self._turns.next_due(looked)
                if self._freed.is_set():
                    self._freed.clear()
                elif (
                    change == seen
                    and now - looked < _LOOK_SECONDS
                    and (due is None or due > now)
                ):
                    continue
                self._look(now)
                seen, looked = change, now
            except Exception as error:
                self._events.error("could not look for tables to copy", exc_info=error)
                self._stop.wait(1.0)

    def _look(self, now: float) -> None:
        """Give work to all free workers."""
        waiting_keys: list[Key] = []
        with self._guard:
            # Read before the relation states: a table whose copy ends meanwhile still has state d
            # there. Copies begin only in this thread.
            copied = {(of, relid) for of, relid, _ in self._attempts}
        for subscription in self._catalog.subscriptions():
            rels = [
                rel
                for rel in self._catalog.rels(subscription.oid)
                if rel.state in _WAITING and not rel.paused
            ]
            waiting_keys += map(_key, rels)
            snapshot = self._catalog.snapshot_held(subscription.oid)
            if snapshot is None or not subscription.runs:
                continue
            covered = set(snapshot.relids)
            waiting = {
                _key(rel): rel
                for rel in rels
                if rel.state is SyncState.DATASYNC and int(rel.relid) in covered
            }
            if waiting:
                # Regardless of the epoch: a table has at most one running copy.
                free = {k: rel for k, rel in waiting.items() if k[:2] not in copied}
                self._assign(subscription, snapshot, free, now)
        with self._guard:
            self._turns.retain(waiting_keys)
            for key in self._described.keys() - set(waiting_keys):
                del self._described[key]

    def _assign(
        self,
        subscription: Subscription,
        snapshot: SyncSnapshot,
        waiting: dict[Key, SubscriptionRel],
        now: float,
    ) -> None:
        subid = subscription.oid
        with self._guard:
            free = (
                self._settings.max_sync_workers_per_subscription - self._workers[subid]
            )
            due = self._turns.due(waiting, now)
            described = {
                key: remote
                for key in due
                for held, remote in [self._described.get(key, (None, None))]
                if held is not None and held.identity == snapshot.identity
            }
            to_describe = [waiting[key] for key in due if key not in described]
            if free > 0 and to_describe and subid not in self._describing:
                self._describing.add(subid)
                self._begin(self._describe, subscription, snapshot, to_describe)
                free -= 1
            chosen = groups(
                [
                    (
                        key,
                        # A table that has failed is copied alone, so that it holds up no other.
                        None
                        if self._turns.failures(key)
                        else table_bytes(described[key]),
                    )
                    for key in due
                    if key in described
                ],
                workers=max(0, free),
            )
            for group in chosen:
                attempts = [
                    Attempt(subscription, waiting[key], snapshot, described[key])
                    for key in group
                ]
                for key, attempt in zip(group, attempts, strict=True):
                    self._attempts[key] = attempt
                    del self._described[key]
                self._groups.append(attempts)
                self._begin(self._copy, subscription, attempts)

    def _begin(
        self, work: Callable[..., None], subscription: Subscription, *arguments: object
    ) -> None:
        """Start a worker's thread. Called under the guard."""
        self._workers[subscription.oid] += 1
        threading.Thread(
            target=self._work,
            args=(work, subscription, *arguments),
            name=f"tablesync-{subscription.oid}",
            daemon=True,
        ).start()

    def _work(
        self, work: Callable[..., None], subscription: Subscription, *arguments: object
    ) -> None:
        try:
            work(subscription, *arguments)
        except Exception as error:
            self._events.error("tablesync worker failed", exc_info=error)
        finally:
            with self._guard:
                self._workers[subscription.oid] -= 1
            self._freed.set()

    # ---- one worker ---------------------------------------------------------------------

    def _describe(
        self,
        subscription: Subscription,
        snapshot: SyncSnapshot,
        rels: Sequence[SubscriptionRel],
    ) -> None:
        """Read the publisher's descriptions of tables that are due."""
        try:
            with connect(
                subscription.conninfo,
                application_name=self._catalog.sync_name(subscription.oid),
                must_use_password=self._catalog.must_use_password(subscription),
            ) as session:
                wait_ms = self._settings.max_lock_wait_ms or LOCK_TIMEOUT_MS
                session.execute(f"SET lock_timeout = {wait_ms}")
                try:
                    self._read_descriptions(session, subscription, snapshot, rels)
                except PublisherError as error:
                    if error.sqlstate != _LOCK_NOT_AVAILABLE or len(rels) == 1:
                        raise
                    # pg_relation_size waits for an ALTER TABLE, perhaps of a single table.
                    for rel in rels:
                        self._read_description(session, subscription, snapshot, rel)
        except Exception as error:
            self._not_described(subscription, snapshot, rels, error)
        finally:
            with self._guard:
                self._describing.discard(subscription.oid)

    def _read_description(
        self,
        session: Session,
        subscription: Subscription,
        snapshot: SyncSnapshot,
        rel: SubscriptionRel,
    ) -> None:
        try:
            self._read_descriptions(session, subscription, snapshot, [rel])
        except PublisherError as error:
            if error.sqlstate != _LOCK_NOT_AVAILABLE:
                raise
            self._not_described(subscription, snapshot, [rel], error)

    def _read_descriptions(
        self,
        session: Session,
        subscription: Subscription,
        snapshot: SyncSnapshot,
        rels: Sequence[SubscriptionRel],
    ) -> None:
        publisher = Publisher(session)
        remote_tables = publisher.tables(
            [(rel.remote_namespace, rel.remote_name) for rel in rels],
            subscription.publications,
        )
        in_snapshot = _as_of(
            publisher, remote_tables, subscription.publications, snapshot.snapshot
        )
        if subscription.follows_schema:
            self._note_labels(
                publisher, subscription.oid, snapshot, in_snapshot.values()
            )
        with self._guard:
            for rel in rels:
                remote = in_snapshot.get((rel.remote_namespace, rel.remote_name))
                self._described[_key(rel)] = (snapshot, remote)

    def _note_labels(
        self,
        publisher: Publisher,
        subid: Oid,
        snapshot: SyncSnapshot,
        tables: Iterable[RemoteTable],
    ) -> None:
        """Record the labels of enums in the snapshot, before rows are read, so that a rename that
        follows at once is noticed. Changes that the log has above the snapshot may have the labels
        of the snapshot, while COPY gives those of its own time."""
        relids = [table.oid for table in tables]
        try:
            with publisher.seeing(snapshot.snapshot):
                copied = publisher.enums(relids)
        except PublisherError:
            # The copy finds out why. Labels may also be those of a later moment.
            copied = publisher.enums(relids)
        if not copied.labels:
            return
        followed = self._catalog.followed_schemas(subid).values()
        relids += [table.schema.relid for table in followed]
        seen = publisher.enums(relids)
        self._catalog.note_labels(subid, seen, publisher.position(), copied)

    def _not_described(
        self,
        subscription: Subscription,
        snapshot: SyncSnapshot,
        rels: Sequence[SubscriptionRel],
        error: Exception,
    ) -> None:
        attempts = [Attempt(subscription, rel, snapshot, None) for rel in rels]
        for attempt in attempts:
            attempt.fail(error)
        self._record(subscription, attempts)

    def _copy(self, subscription: Subscription, attempts: Sequence[Attempt]) -> None:
        """Copy a group of tables."""
        snapshot_gone = False
        try:
            present = self._present(subscription, attempts)
            try:
                if present:
                    self._group.copy(present)
            except SnapshotGone:
                snapshot_gone = True
                self._events.warning(
                    "copy starts again under a new snapshot",
                    tables=", ".join(
                        attempt.name for attempt in present if not attempt.over
                    ),
                )
            except Exception as error:
                for attempt in present:
                    attempt.fail(error)
            halted = [attempt for attempt in present if attempt.ended]
            for attempt in attempts:
                # Results of readers that still run are not committed from now on.
                attempt.end(0.0)
            not_halted = [attempt for attempt in present if attempt not in halted]
            self._record(
                subscription,
                [attempt for attempt in not_halted if attempt.error or snapshot_gone],
            )
            for attempt in not_halted:
                if (
                    not attempt.error
                    and not snapshot_gone
                    and _key(attempt.rel) in self._repeated
                ):
                    self._repeated.pop(_key(attempt.rel)).passed(self._events)
        finally:
            with self._guard:
                self._groups = [
                    group for group in self._groups if group is not attempts
                ]
                for attempt in attempts:
                    self._attempts.pop(_key(attempt.rel), None)

    def _present(
        self, subscription: Subscription, attempts: Sequence[Attempt]
    ) -> list[Attempt]:
        """Return the attempts that are still to be made. All of them are registered for ``halt``:
        an attempt that ``halt`` does not find yet reads the change of ``halt``'s caller from the
        catalog here."""
        now = self._catalog.subscription(subscription.oid)
        if now is None or not now.runs or now.generation != subscription.generation:
            return []
        rels = {_key(rel): rel for rel in self._catalog.rels(subscription.oid)}
        present = []
        for attempt in attempts:
            rel = rels.get(_key(attempt.rel))
            # The relation states may have been read before the end of the table's last copy.
            if rel is not None and rel.state is SyncState.DATASYNC:
                attempt.take(rel)
                present.append(attempt)
        return present

    def _record(self, subscription: Subscription, attempts: Sequence[Attempt]) -> None:
        """Record why attempts have not reached state f, and when they are due again."""
        if self._stop.is_set():
            # The engine is shutting down.
            return
        attempts = [
            attempt for attempt in attempts if not isinstance(attempt.error, Halted)
        ]
        if not attempts:
            return
        yielded = [attempt for attempt in attempts if attempt.gave_way]
        self._give_way(yielded)
        failed = [
            attempt
            for attempt in attempts
            if attempt.error is not None and attempt not in yielded
        ]
        with self._guard:
            for attempt in failed:
                self._turns.failed(_key(attempt.rel), time.monotonic())
        self._catalog.end_attempts(
            [
                (
                    attempt.rel,
                    attempt.describe() if attempt in failed else None,
                    sqlstate_of(attempt.error)
                    if attempt in failed and attempt.error is not None
                    else None,
                    attempt.may_be_committed,
                )
                for attempt in attempts
            ]
        )
        by_error: dict[int, list[Attempt]] = {}
        for attempt in failed:
            by_error.setdefault(id(attempt.error), []).append(attempt)
        for alike in by_error.values():
            # An unreachable publisher gives one line, not one for each table.
            text = f'could not copy table "{alike[0].name}"'
            if len(alike) > 1:
                text += f" and {len(alike) - 1} more"
            error = alike[0].error
            if error is not None:
                self._measures.failed(subscription.name, error)
                self._repeated[_key(alike[0].rel)].say(self._events, text, error)
                self._catalog.disable_if_asked(
                    subscription.oid, subscription.generation, error
                )

    def _give_way(self, attempts: Sequence[Attempt]) -> None:
        """Schedule attempts that have yielded to other sessions of the publisher."""
        for attempt in attempts:
            if attempt.source_changed:
                self._catalog.uncover(attempt.snapshot, [attempt.rel.relid])
            else:
                with self._guard:
                    self._turns.gave_way(_key(attempt.rel), time.monotonic())
            self._events.info(
                f'copy of table "{attempt.name}" gives way and begins again: {attempt.error}'
            )


def _as_of(
    publisher: Publisher,
    tables: Mapping[tuple[str, str], RemoteTable],
    publications: tuple[str, ...],
    snapshot: str,
) -> dict[tuple[str, str], RemoteTable]:
    """Complete tables with facts read in a snapshot: unique columns, and how the table was
    published. If the snapshot cannot be queried, the facts stay unknown, and the keys of copied
    rows and of later inserts are compared."""
    relids = [table.oid for table in tables.values()]
    present_marks = publisher.publication_marks(relids, publications)
    unique: dict[Oid, tuple[frozenset[str], ...]] = {}
    marks: dict[Oid, str] = {}
    try:
        with publisher.seeing(snapshot):
            unique = publisher.unique_columns(relids)
            marks = publisher.publication_marks(relids, publications)
    except PublisherError:
        unique, marks = {}, {}
    return {
        name: replace(
            table,
            unique=unique.get(table.oid, ()),
            published_as=marks.get(table.oid) or None,
            published_since=table.oid in marks
            and marks[table.oid] == present_marks.get(table.oid),
        )
        for name, table in tables.items()
    }


def _key(rel: SubscriptionRel) -> Key:
    return rel.subid, rel.relid, rel.epoch
