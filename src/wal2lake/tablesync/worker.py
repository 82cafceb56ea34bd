"""The tablesync workers of all subscriptions: waiting tables into copied ones.

    state   who sets it                          what is durable then
    i       CREATE SUBSCRIPTION, REFRESH         the table is known
    d       the receiver's snapshot keeper       the floor waits for this table's snapshot
            (and the apply worker, for a copy
            that a power cut tore)
    (d)     here, as an attempt begins           its plan, and the S that its commit may have
    (d)     here, per range                      the range's files, fsynced; its row in copy_range
    f       here                                 ONE commit: all files, cursor S
    s, r    the apply worker                     see apply.worker

A copy needs a snapshot that the receiver holds and that covers the table. What the publisher
knows of the waiting tables is asked for once, for all of them; then workers, at most
max_sync_workers_per_subscription for each subscription, take groups of them (``plan.groups``) and
copy them (``group``). A table whose copy fails gives its worker back at once, keeps its error
where users see it, and comes again later, alone, after those that failed less often.

Ranges are recorded with the snapshot's name, so after the engine's death the others are read
and these are not. When the snapshot itself is gone, its ranges are void (a row updated since
would be in two of them or in none) and the table starts again; files that were written for
it are left to VACUUM.

Crash points: a commit that the catalog did not hear of is found by the table's cursor and not
repeated. The floor has not passed its S meanwhile, whatever snapshot has been taken since: the
catalog knew that S before the commit was begun.

Commands end copies by ``halt``: they change the catalog first, so that no new attempt begins
(each reads it anew after it can be found here), and when ``halt`` has returned nothing of the
present ones will be committed.

Source: tablesync.c (the states); DESIGN 6 (Table synchronisation).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from wal2lake.apply.schema.follow import TableAlteration
from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, SyncSnapshot
from wal2lake.errors import PublisherError, sqlstate_of
from wal2lake.lake import TablePort
from wal2lake.lake.spark.executors import Executors
from wal2lake.lake.staging.defaults import NO_DEFAULTS, ColumnDefaults
from wal2lake.model import Oid, SyncState
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.pg import Publisher, RemoteTable, Session, connect
from wal2lake.settings import Settings
from wal2lake.tablesync.attempt import Attempt, Halted, RunningCopy, SnapshotGone
from wal2lake.tablesync.copy import LOCK_TIMEOUT_MS
from wal2lake.tablesync.group import GroupCopy
from wal2lake.tablesync.plan import groups, table_bytes
from wal2lake.tablesync.turns import Key, SyncTurns

_POLL_SECONDS: Final = 0.02
"""How soon a snapshot is noticed: it is one read of the catalog's change counter."""

_LOOK_SECONDS: Final = 1.0
"""A look that nothing has asked for, in case something was missed."""

_LOCK_NOT_AVAILABLE: Final = "55P03"

_WAITING: Final = (SyncState.INIT, SyncState.DATASYNC)


class TableSync:
    """All copies of all subscriptions, from ``start`` to ``stop``."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        tables: TablePort,
        executors: Executors,
        cores: int,
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
    ) -> None:
        """``cores``: how many ranges are read at once; ``alter`` changes a table as its
        publisher has done; ``defaults``: of columns that are not copied."""
        self._catalog = catalog
        self._settings = settings.subscription
        self._group = GroupCopy(
            catalog, settings, tables, executors, cores, alter, defaults
        )
        self._stop = threading.Event()
        self._freed = threading.Event()
        """There may be room for another worker since the last look."""
        self._guard = threading.Lock()
        """Guards the five fields below."""
        self._turns = SyncTurns(self._settings.wal_retrieve_retry_interval_ms / 1000)
        self._attempts: dict[Key, Attempt] = {}
        self._groups: list[Sequence[Attempt]] = []
        """Each is in the hands of one worker."""
        self._workers: Counter[Oid] = Counter()
        self._described: dict[Key, tuple[SyncSnapshot, RemoteTable | None]] = {}
        """The publisher's descriptions of tables whose attempt has not begun."""
        self._describing: set[Oid] = set()
        self._events = get_logger()
        self._repeated: defaultdict[Key, RepeatedErrors] = defaultdict(RepeatedErrors)
        """By the table whose attempt's error was said."""
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)

    def start(self) -> None:
        """Begin to look for waiting tables."""
        self._thread.start()

    def stop(self) -> None:
        """Take on no more work; what runs is abandoned, its finished ranges are kept."""
        self._stop.set()
        self._thread.join(2.0)
        self._group.stop()

    def reload(self, settings: Settings) -> None:
        """Obey these from now on. Workers beyond a lower limit end with their groups."""
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

        When it has returned True nothing of them will be committed. The caller has seen to it
        in the catalog that no new one begins. False: a commit does not end in time.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._guard:
            found = [
                attempt
                for (of, relid, _), attempt in self._attempts.items()
                if (subid is None or of == subid)
                and (relids is None or relid in relids)
            ]
        ended = [one.end(max(0.0, deadline - time.monotonic())) for one in found]
        self._group.wake()
        return all(ended)

    def running(self, subid: Oid) -> list[RunningCopy]:
        """Return the current copies of a subscription's workers, one value for each."""
        found = []
        with self._guard:
            for group in self._groups:
                if group[0].subscription.oid != subid:
                    continue
                left = [one for one in group if not one.over and not one.finished]
                found += [RunningCopy(o.rel.relid, o.received_at) for o in left[:1]]
        return found

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
        """Give work to all workers that are free."""
        known: list[Key] = []
        with self._guard:
            # Before the tables are read: whose copy ends meanwhile is still in d there. None
            # can begin but from here.
            copied = {(of, relid) for of, relid, _ in self._attempts}
        for subscription in self._catalog.subscriptions():
            rels = [
                rel
                for rel in self._catalog.rels(subscription.oid)
                if rel.state in _WAITING and not rel.paused
            ]
            known += map(_key, rels)
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
                # Whatever its epoch: of two copies of a table the later one counts.
                free = {k: rel for k, rel in waiting.items() if k[:2] not in copied}
                self._assign(subscription, snapshot, free, now)
        with self._guard:
            self._turns.retain(known)
            for key in self._described.keys() - set(known):
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
            told = {
                key: remote
                for key in due
                for held, remote in [self._described.get(key, (None, None))]
                if held is not None and held.identity == snapshot.identity
            }
            asked = [waiting[key] for key in due if key not in told]
            if free > 0 and asked and subid not in self._describing:
                self._describing.add(subid)
                self._begin(self._describe, subscription, snapshot, asked)
                free -= 1
            chosen = groups(
                [
                    (
                        key,
                        # One that has failed is not to hold others up again.
                        None if self._turns.failures(key) else table_bytes(told[key]),
                    )
                    for key in due
                    if key in told
                ],
                workers=max(0, free),
            )
            for group in chosen:
                attempts = [
                    Attempt(subscription, waiting[key], snapshot, told[key])
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
        """A worker's thread; under the guard."""
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
        """Ask the publisher about tables that are due."""
        try:
            with connect(
                subscription.conninfo,
                application_name=self._catalog.sync_name(subscription.oid),
                must_use_password=self._catalog.must_use_password(subscription),
            ) as session:
                wait_ms = self._settings.max_lock_wait_ms or LOCK_TIMEOUT_MS
                session.execute(f"SET lock_timeout = {wait_ms}")
                try:
                    self._ask(session, subscription, snapshot, rels)
                except PublisherError as error:
                    if error.sqlstate != _LOCK_NOT_AVAILABLE or len(rels) == 1:
                        raise
                    # pg_relation_size waits for ALTER TABLE: of one table, perhaps.
                    for rel in rels:
                        self._ask_one(session, subscription, snapshot, rel)
        except Exception as error:
            self._not_described(subscription, snapshot, rels, error)
        finally:
            with self._guard:
                self._describing.discard(subscription.oid)

    def _ask_one(
        self,
        session: Session,
        subscription: Subscription,
        snapshot: SyncSnapshot,
        rel: SubscriptionRel,
    ) -> None:
        try:
            self._ask(session, subscription, snapshot, [rel])
        except PublisherError as error:
            if error.sqlstate != _LOCK_NOT_AVAILABLE:
                raise
            self._not_described(subscription, snapshot, [rel], error)

    def _ask(
        self,
        session: Session,
        subscription: Subscription,
        snapshot: SyncSnapshot,
        rels: Sequence[SubscriptionRel],
    ) -> None:
        publisher = Publisher(session)
        found = publisher.tables(
            [(rel.remote_namespace, rel.remote_name) for rel in rels],
            subscription.publications,
        )
        seen = _as_of(publisher, found, subscription.publications, snapshot.snapshot)
        with self._guard:
            for rel in rels:
                remote = seen.get((rel.remote_namespace, rel.remote_name))
                self._described[_key(rel)] = (snapshot, remote)

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
        gone = False
        try:
            present = self._present(subscription, attempts)
            try:
                if present:
                    self._group.copy(present)
            except SnapshotGone:
                gone = True
                self._events.warning(
                    "copy starts again under a new snapshot",
                    tables=", ".join(one.name for one in present if not one.over),
                )
            except Exception as error:
                for one in present:
                    one.fail(error)
            halted = [one for one in present if one.ended]
            for one in attempts:
                # What a reader still has in hand comes too late from now on.
                one.end(0.0)
            mine = [one for one in present if one not in halted]
            self._record(subscription, [one for one in mine if one.error or gone])
            for one in mine:
                if not one.error and not gone and _key(one.rel) in self._repeated:
                    self._repeated.pop(_key(one.rel)).passed(self._events)
        finally:
            with self._guard:
                self._groups = [
                    group for group in self._groups if group is not attempts
                ]
                for one in attempts:
                    self._attempts.pop(_key(one.rel), None)

    def _present(
        self, subscription: Subscription, attempts: Sequence[Attempt]
    ) -> list[Attempt]:
        """Return the attempts that are still to be made. They are in the list that ``halt`` looks
        at: an attempt that ``halt`` does not find there reads here what the caller of ``halt`` has
        written."""
        now = self._catalog.subscription(subscription.oid)
        if now is None or not now.runs or now.generation != subscription.generation:
            return []
        rels = {_key(rel): rel for rel in self._catalog.rels(subscription.oid)}
        found = []
        for one in attempts:
            rel = rels.get(_key(one.rel))
            # The list that named it may be older than the end of its last copy.
            if rel is not None and rel.state is SyncState.DATASYNC:
                one.take(rel)
                found.append(one)
        return found

    def _record(self, subscription: Subscription, attempts: Sequence[Attempt]) -> None:
        """Attempts that have not reached f: why, and when they come again."""
        if self._stop.is_set():
            # What they stand on is being taken away.
            return
        attempts = [one for one in attempts if not isinstance(one.error, Halted)]
        if not attempts:
            return
        yielded = [one for one in attempts if one.gave_way]
        self._give_way(yielded)
        failed = [
            one for one in attempts if one.error is not None and one not in yielded
        ]
        with self._guard:
            for one in failed:
                self._turns.failed(_key(one.rel), time.monotonic())
        self._catalog.end_attempts(
            [
                (
                    one.rel,
                    one.describe() if one in failed else None,
                    sqlstate_of(one.error)
                    if one in failed and one.error is not None
                    else None,
                    one.may_be_committed,
                )
                for one in attempts
            ]
        )
        by_error: dict[int, list[Attempt]] = {}
        for one in failed:
            by_error.setdefault(id(one.error), []).append(one)
        for alike in by_error.values():
            # A publisher that is away is one line, not one for each table.
            text = f'could not copy table "{alike[0].name}"'
            if len(alike) > 1:
                text += f" and {len(alike) - 1} more"
            error = alike[0].error
            if error is not None:
                self._repeated[_key(alike[0].rel)].say(self._events, text, error)
                self._catalog.disable_if_asked(
                    subscription.oid, subscription.generation, error
                )

    def _give_way(self, attempts: Sequence[Attempt]) -> None:
        """Attempts that have ended for somebody at the publisher: when they come again."""
        for one in attempts:
            if one.source_changed:
                self._catalog.uncover(one.snapshot, [one.rel.relid])
            else:
                with self._guard:
                    self._turns.gave_way(_key(one.rel), time.monotonic())
            self._events.info(
                f'copy of table "{one.name}" gives way and begins again: {one.error}'
            )


def _as_of(
    publisher: Publisher,
    tables: Mapping[tuple[str, str], RemoteTable],
    publications: tuple[str, ...],
    snapshot: str,
) -> dict[tuple[str, str], RemoteTable]:
    """The tables, and what a snapshot says of the rows in it: by which columns they are unique, and
    how they were published. Of a snapshot that cannot be asked nothing is known: the copied
    keys are compared then, and so are those of later inserts."""
    relids = [table.oid for table in tables.values()]
    now = publisher.publication_marks(relids, publications)
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
            and marks[table.oid] == now.get(table.oid),
        )
        for name, table in tables.items()
    }


def _key(rel: SubscriptionRel) -> Key:
    return rel.subid, rel.relid, rel.epoch
