"""A subscriber and its publisher at one LSN, while both go on.

Comes in: conninfo of both, a subscription of the subscriber. Goes out: two transactions, one at
each server, that see the same transactions of the publisher. Called by ``comparing``.

    publisher    a temporary slot exports a snapshot: S
    subscriber   takes one snapshot after the other, until one is exactly that of S
    publisher    a session imports the snapshot

A snapshot of the subscriber is that of S if two things are proved:

1. *No transaction above S is in it.* The subscription's origin advances before a transaction
   becomes visible. So it is enough that the origin is not above S *after* the snapshot was taken.
2. *All that end at or below S are in it*. One of these was seen *before* the snapshot was taken:

       received_lsn is above S       messages are applied in their order, so all that precede the
                                     last one are applied
       received_lsn was at S, and    a worker that waits for messages has applied all that it has
       then the same worker waited   received
       replay_lsn is at or above S   a worker reports a commit after it is visible

   A commit is sent with its end, so received_lsn at S alone may be that of a commit which is not
   applied yet.

If the subscriber has passed S, another S is taken. Nothing is assumed about time, so there is no
false alarm. A subscriber that always has a backlog may never be caught at an S; that is an error.

A table whose copy ended above S has rows that the publisher's snapshot does not have
(``copied_tables``).

Source: RecordTransactionCommit() in src/backend/access/transam/xact.c (the order of
replorigin_session_advance() and the transaction's end); LogicalRepApplyLoop(), send_feedback() and
store_flush_position() in src/backend/replication/logical/worker.c; commit_cb_wrapper() in logical.c
(the position of a commit).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from wal2lake.cli.verify.pairs.ends import (
    APPLICATION,
    ComparedEnd,
    open_session,
    read_from,
)
from wal2lake.cli.verify.pairs.patterns import TableName
from wal2lake.errors import UsageError
from wal2lake.model import Lsn
from wal2lake.pg import Check, Publisher, Session, connect, nudged
from wal2lake.pg.publisher import SlotCreated
from wal2lake.pg.quoting import quote_literal

_PREREQUISITE: Final = "55000"

_FIRST_PAUSE: Final = 0.0002
_LONGEST_PAUSE: Final = 0.01
"""Seconds between two looks. A subscriber that keeps up is at S for some milliseconds only; one
that is far behind is not asked thousands of times a second."""

_REPLAY_SECONDS: Final = 0.05
"""Interval of looks at the publisher's view, which is needed if nothing is published."""

_RUNNING_SECONDS: Final = 0.1
"""Interval of looks at a subscription that is not connected. It may be about to be."""

_WAITS_FOR_MESSAGES: Final = "LogicalApplyMain"
"""The wait event of an apply worker in its main loop."""

_NEW_SNAPSHOT: Final = (
    "ROLLBACK; BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
)


@dataclass(frozen=True, slots=True)
class RemoteSubscription:
    """A subscription in the subscriber's catalog."""

    oid: int
    name: str
    slot: str
    enabled: bool
    origin: str
    publications: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribedTable:
    """A table of a subscription."""

    name: TableName
    obstacle: str | None
    """Why its rows are not those of the snapshot; None: they are."""


def subscriptions_of(session: Session) -> list[RemoteSubscription]:
    """Return the subscriptions of the session's database that have a slot."""
    origin = "s.suborigin" if session.server_version >= 160000 else "'any'"
    publications: dict[int, list[str]] = {}
    for oid, publication in session.query(
        "SELECT s.oid, p.name FROM pg_catalog.pg_subscription s,"
        " LATERAL pg_catalog.unnest(s.subpublications) AS p(name) ORDER BY 1, 2"
    ):
        publications.setdefault(int(str(oid)), []).append(str(publication))
    return [
        RemoteSubscription(
            int(str(oid)),
            str(name),
            str(slot),
            enabled == "t",
            str(from_origin),
            tuple(publications.get(int(str(oid)), ())),
        )
        for oid, name, slot, enabled, from_origin in session.query(
            f"SELECT s.oid, s.subname, s.subslotname, s.subenabled, {origin}"
            " FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_database d"
            " ON d.oid = s.subdbid WHERE d.datname = pg_catalog.current_database()"
            " AND s.subslotname IS NOT NULL ORDER BY 2"
        )
    ]


def copied_tables(
    session: Session, subscription: RemoteSubscription, lsn: Lsn
) -> list[SubscribedTable]:
    """Return the subscription's tables in the transaction's snapshot, which is that of ``lsn``."""
    rows = session.query(
        "SELECT n.nspname, c.relname, r.srsubstate, r.srsublsn,"
        " (SELECT pg_catalog.count(*) FROM pg_catalog.pg_subscription_rel o"
        " WHERE o.srrelid = r.srrelid)"
        " FROM pg_catalog.pg_subscription_rel r"
        " JOIN pg_catalog.pg_class c ON c.oid = r.srrelid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE r.srsubid = {subscription.oid} ORDER BY 1, 2"
    )
    tables: list[SubscribedTable] = []
    for schema, table, state, since, fillers in rows:
        obstacle = None
        if fillers != "1":
            obstacle = "another subscription fills it, too"
        elif state != "r" or (since is not None and Lsn.parse(since) > lsn):
            obstacle = "its copy is not complete"
        tables.append(SubscribedTable((str(schema), str(table)), obstacle))
    return tables


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two ends that see the same transactions of the publisher."""

    source: ComparedEnd
    target: ComparedEnd
    lsn: Lsn


@contextmanager
def meet(
    source: str,
    target: str,
    subscription: RemoteSubscription,
    check: Check,
    wait_seconds: float,
) -> Iterator[Meeting]:
    """Bring both ends to one LSN. Raises UsageError (55000) if that is not possible, or not within
    ``wait_seconds``."""
    deadline = time.monotonic() + wait_seconds
    passed = 0

    def check_time() -> None:
        check()
        if time.monotonic() >= deadline:
            raise _late(subscription.name, passed, wait_seconds)

    with ExitStack() as sessions:
        watching = sessions.enter_context(open_session(source, check))
        ours = read_from("target", sessions.enter_context(open_session(target, check)))
        theirs = sessions.enter_context(open_session(source, check))
        catch = Catch(watching, ours.session, subscription, check, deadline)
        while True:
            catch.wait_running()
            with _snapshot(source, check_time) as created:
                if catch.at(created.consistent_point):
                    end = read_from("source", theirs, created.snapshot)
                    break
            passed += 1
        yield Meeting(end, ours, created.consistent_point)


def _late(name: str, passed: int, wait_seconds: float) -> UsageError:
    """Return the error at the end of the wait, after so many snapshots."""
    if not passed:
        return UsageError(
            "the source has not exported a snapshot in time",
            sqlstate=_PREREQUISITE,
            hint="It waits for the end of transactions that run there. End them, or wait"
            " longer (--wait).",
        )
    return UsageError(
        f'subscription "{name}" has passed each of {passed} snapshots of its publisher'
        f" within {wait_seconds:g} s",
        sqlstate=_PREREQUISITE,
        hint="Repeat the command when fewer transactions commit, or wait longer (--wait).",
    )


@contextmanager
def _snapshot(source: str, check: Check) -> Iterator[SlotCreated]:
    """Export a snapshot of the publisher; it and its slot end with the block."""
    with connect(
        source, application_name=APPLICATION, replication=True, check=check
    ) as exporter:
        with nudged(source, APPLICATION):
            created = Publisher(exporter).create_slot(
                f"wal2lake_verify_{exporter.backend_pid}",
                temporary=True,
                snapshot="export",
            )
        yield created


@dataclass(frozen=True, slots=True)
class _Seen:
    """How far the subscription was, read after a snapshot was taken."""

    origin: Lsn
    """End of the last transaction that the worker has committed."""
    received: Lsn
    worker: str | None
    """The worker's pid."""
    waits: bool
    """Whether the worker waits for messages."""


class Catch:
    """Takes snapshots of a subscriber until one is that of an LSN."""

    def __init__(
        self,
        publisher: Session,
        subscriber: Session,
        subscription: RemoteSubscription,
        check: Check,
        deadline: float,
    ) -> None:
        """``subscriber``: in a transaction, which is replaced."""
        self._publisher = publisher
        self._subscriber = subscriber
        self._subscription = subscription
        self._check = check
        self._deadline = deadline

    def wait_running(self) -> None:
        """Wait until the subscription is connected. Raises UsageError (55000) if it is not in
        time."""
        while (problem := self._problem()) is not None:
            self._check()
            if time.monotonic() >= self._deadline:
                raise problem
            time.sleep(_RUNNING_SECONDS)

    def _problem(self) -> UsageError | None:
        """Return why the subscription does not go on."""
        name = self._subscription.name
        running = self._subscriber.query(
            f"{_NEW_SNAPSHOT}; SELECT 1 FROM pg_catalog.pg_stat_subscription s"
            f" WHERE s.subid = {self._subscription.oid} AND s.pid IS NOT NULL"
        )
        if not running:
            return UsageError(
                f'subscription "{name}" has no running apply worker',
                sqlstate=_PREREQUISITE,
                hint="The subscriber's log says why.",
            )
        if self._replay() is None:
            return UsageError(
                f'the source shows no walsender of slot "{self._subscription.slot}" of'
                f' subscription "{name}"',
                sqlstate=_PREREQUISITE,
                hint="The source must be the server to which the subscription connects, and"
                " the role a member of pg_monitor.",
            )
        return None

    def at(self, lsn: Lsn) -> bool:
        """Leave the subscriber's session in a transaction that sees exactly the transactions that
        end at or below ``lsn``. Returns False if the subscriber has passed it."""
        has_all = False
        receiver: str | None = None
        pause, replay_at = _FIRST_PAUSE, 0.0
        while True:
            self._check()
            seen = self._look()
            if seen.origin > lsn:
                return False
            if has_all:
                return True
            # What has been seen now is true of the next snapshot.
            has_all = seen.received > lsn or (
                seen.waits and receiver is not None and seen.worker == receiver
            )
            # Another worker would not have received what its predecessor has.
            receiver = seen.worker if seen.received >= lsn else None
            now = time.monotonic()
            if not has_all and now >= replay_at:
                has_all = (self._replay() or Lsn(0)) >= lsn
                replay_at = now + _REPLAY_SECONDS
            if not has_all:
                if receiver is None:
                    pause = min(pause * 1.2, _LONGEST_PAUSE)
                self._wait(lsn, seen.origin, _FIRST_PAUSE if receiver else pause)

    def _wait(self, lsn: Lsn, origin: Lsn, seconds: float) -> None:
        if time.monotonic() >= self._deadline:
            raise UsageError(
                f'subscription "{self._subscription.name}" has not applied everything'
                f" below {lsn} in time",
                sqlstate=_PREREQUISITE,
                detail=f"It is at {origin}.",
                hint="The subscriber's log may say why. Otherwise wait longer (--wait).",
            )
        time.sleep(seconds)

    def _look(self) -> _Seen:
        """Take a snapshot, and read how far the subscription is."""
        name = quote_literal(f"pg_{self._subscription.oid}")
        ((origin, received, worker, waits),) = self._subscriber.query(
            # The query takes the snapshot before it calls a function.
            f"{_NEW_SNAPSHOT};"
            f" SELECT pg_catalog.pg_replication_origin_progress({name}, false),"
            f" s.received_lsn, s.pid, a.wait_event = '{_WAITS_FOR_MESSAGES}'"
            " FROM (SELECT) always LEFT JOIN pg_catalog.pg_stat_subscription s"
            f" ON s.subid = {self._subscription.oid} AND s.relid IS NULL"
            f"{self._no_parallel_worker}"
            " LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.pid"
        )
        return _Seen(_lsn(origin), _lsn(received), worker, waits == "t")

    @property
    def _no_parallel_worker(self) -> str:
        # Parallel workers, which have a leader, receive no messages.
        version = self._subscriber.server_version
        return " AND s.leader_pid IS NULL" if version >= 160000 else ""

    def _replay(self) -> Lsn | None:
        rows = self._publisher.query(
            "SELECT r.replay_lsn FROM pg_catalog.pg_replication_slots s"
            " JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid"
            f" WHERE s.slot_name = {quote_literal(self._subscription.slot)}"
        )
        return None if not rows or rows[0][0] is None else Lsn.parse(rows[0][0])


def _lsn(text: str | None) -> Lsn:
    return Lsn(0) if text is None else Lsn.parse(text)
