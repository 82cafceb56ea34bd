"""Compares the tables of two servers, one after the other.

Comes in: a request. Goes out: a ``PairResult`` for each table. Called by ``run``.

    any two servers     each is read in one transaction of its own; nobody should write meanwhile
    a subscriber        both see the same transactions of the publisher (``subscriber``)

A table that cannot be compared, or for which anything fails, has the reason; the others are
compared all the same. Neither server is written to: the transactions are read-only, and the slot
that exports a snapshot is a temporary one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Protocol

from wal2lake.cli.verify.pairs.ends import ComparedEnd, open_session, read_from
from wal2lake.cli.verify.pairs.pairing import TablePair, compare_pair
from wal2lake.cli.verify.pairs.patterns import TableName, TablePattern, chosen_tables
from wal2lake.cli.verify.pairs.subscriber import (
    Meeting,
    RemoteSubscription,
    SubscribedTable,
    copied_tables,
    meet,
    subscriptions_of,
)
from wal2lake.errors import UndefinedObjectError, UsageError, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.pg import Check, Publisher, Session
from wal2lake.pg.connection import Rows
from wal2lake.pg.quoting import quote_literals
from wal2lake.verify import Comparison, NotComparable

CANCELED: Final = "57014"
"""query_canceled: the SQLSTATE with which a check ends everything."""


@dataclass(frozen=True, slots=True)
class PairRequest:
    """Names the servers, and the tables and rows that are compared."""

    source: str
    """Connection string."""
    target: str
    patterns: tuple[TablePattern, ...] = ()
    publications: tuple[str, ...] = ()
    """Publications of the source, whose tables, columns and row filters are compared."""
    where: str | None = None


@dataclass(frozen=True, slots=True)
class PairResult:
    """The result for one table."""

    table: str
    comparison: Comparison | None
    """None: the table was not compared."""
    seconds: float
    reason: str | None = None
    """Why the table was not compared."""
    lsn: Lsn | None = None
    """The publisher's LSN at which a subscriber was compared."""


class PairProgress(Protocol):
    """Shows how far the comparison is."""

    def begin(self, table: str, number: int, total: int) -> None:
        """Show the table that is next, the ``number``-th of ``total``."""
        ...

    def read(self, rows: int) -> None:
        """Add rows that have been read since; raises if the comparison shall end."""
        ...


def compare_servers(
    request: PairRequest, check: Check, progress: PairProgress
) -> Iterator[PairResult]:
    """Compare tables of any two servers."""
    with ExitStack() as sessions:
        source, target = (
            read_from(word, sessions.enter_context(open_session(conninfo, check)))
            for word, conninfo in (
                ("source", request.source),
                ("target", request.target),
            )
        )
        chosen = chosen_tables(request.patterns, source.tables(request.publications))
        comparing = _Comparing(source, target, request, request.publications, progress)
        for number, (name, target_name) in enumerate(chosen, 1):
            progress.begin(shown(name, target_name), number, len(chosen))
            yield comparing.run(name, target_name)


def compare_subscriber(
    request: PairRequest,
    subscription: str | None,
    wait_seconds: float,
    check: Check,
    progress: PairProgress,
) -> Iterator[PairResult]:
    """Compare the tables of a subscriber's subscriptions, each at one LSN of the source."""
    with ExitStack() as sessions:
        source = sessions.enter_context(open_session(request.source, check))
        target = sessions.enter_context(open_session(request.target, check))
        chosen = [
            (each, _subscribed(target, each, request.patterns))
            for each in _chosen_subscriptions(source, target, subscription)
        ]
    if request.patterns and not any(names for _, names in chosen):
        raise UndefinedObjectError("no subscribed table matches", sqlstate="42P01")
    total = sum(len(names) for _, names in chosen)
    done = 0
    for remote, names in chosen:
        left = list(names)
        place = (done + 1, total)
        try:
            for result in _subscription(
                request, remote, names, place, wait_seconds, check, progress
            ):
                del left[0]
                done += 1
                yield result
        except Wal2LakeError as error:
            reason = _reason(error)
            done += len(left)
            for name in left:
                yield PairResult(shown(name, name), None, 0.0, reason)


def _chosen_subscriptions(
    source: Session, target: Session, name: str | None
) -> list[RemoteSubscription]:
    """Return the subscription, or all whose slot is at the source."""
    subscriptions = subscriptions_of(target)
    if name is not None:
        chosen = [each for each in subscriptions if each.name == name]
        if not chosen:
            raise UndefinedObjectError(
                f'subscription "{name}" does not exist at the subscriber'
            )
        return chosen
    slots = tuple(each.slot for each in subscriptions)
    rows: Rows = []
    if slots:
        rows = source.query(
            "SELECT s.slot_name FROM pg_catalog.pg_replication_slots s"
            f" WHERE s.slot_name IN ({quote_literals(slots)})"
        )
    slots_here = {slot for (slot,) in rows}
    chosen = [each for each in subscriptions if each.slot in slots_here]
    if not chosen:
        raise UndefinedObjectError(
            "the subscriber has no subscription with a slot at the source"
        )
    return chosen


def _subscribed(
    target: Session,
    subscription: RemoteSubscription,
    patterns: Sequence[TablePattern],
) -> list[TableName]:
    every = copied_tables(target, subscription, Lsn(0))
    return [
        table.name
        for table in every
        if not patterns or any(pattern.matches(table.name) for pattern in patterns)
    ]


def _subscription(
    request: PairRequest,
    subscription: RemoteSubscription,
    names: Sequence[TableName],
    place: tuple[int, int],
    wait_seconds: float,
    check: Check,
    progress: PairProgress,
) -> Iterator[PairResult]:
    """Yield the result of each table of a subscription. An error concerns all that are left.

    ``place``: the first table's number, and the number of all tables."""
    if not names:
        return
    if not subscription.enabled:
        raise NotComparable(
            f'subscription "{subscription.name}" is disabled, so its tables stand still'
        )
    if subscription.origin == "none":
        raise NotComparable("origin = none leaves out changes that the source has")
    first, total = place
    progress.begin(f"subscription {subscription.name}", 0, total)
    with meet(
        request.source, request.target, subscription, check, wait_seconds
    ) as meeting:
        obstacles = _obstacles(meeting, subscription)
        comparing = _Comparing(
            meeting.source, meeting.target, request, subscription.publications, progress
        )
        for number, name in enumerate(names, first):
            progress.begin(shown(name, name), number, total)
            obstacle = obstacles.get(name, "it does not belong to the subscription")
            if obstacle is not None:
                yield PairResult(
                    shown(name, name), None, 0.0, obstacle, lsn=meeting.lsn
                )
            else:
                yield comparing.run(name, name, meeting.lsn)


def _obstacles(
    meeting: Meeting, subscription: RemoteSubscription
) -> dict[TableName, str | None]:
    publisher = Publisher(meeting.source.session)
    names = subscription.publications
    if not publisher.publish_everything(names):
        raise NotComparable("a publication does not publish all operations")
    published = set(publisher.published_tables(names))

    def obstacle(table: SubscribedTable) -> str | None:
        if table.name not in published:
            return "it is not published at the source"
        return table.obstacle

    tables = copied_tables(meeting.target.session, subscription, meeting.lsn)
    return {table.name: obstacle(table) for table in tables}


@dataclass(frozen=True, slots=True)
class _Comparing:
    """Compares tables of two ends."""

    source: ComparedEnd
    target: ComparedEnd
    request: PairRequest
    publications: tuple[str, ...]
    progress: PairProgress

    def run(
        self, name: TableName, target_name: TableName, lsn: Lsn | None = None
    ) -> PairResult:
        """Compare a table, or say why that is not possible. Only a cancel raises."""
        started = time.monotonic()
        comparison: Comparison | None = None
        reason: str | None = None
        try:
            with (
                self.source.locked(name, self.publications) as source,
                self.target.locked(target_name) as target,
            ):
                pair = TablePair(source, target, self.request.where)
                comparison = compare_pair(
                    self.source, self.target, pair, self.progress.read
                )
        except Wal2LakeError as error:
            # A comparison that has not outlived its locks proves nothing.
            comparison, reason = None, _reason(error)
        seconds = time.monotonic() - started
        return PairResult(shown(name, target_name), comparison, seconds, reason, lsn)


def _reason(error: Wal2LakeError) -> str:
    """Return an error as the reason why a table was not compared; raise it if it is a cancel."""
    if isinstance(error, UsageError) and error.sqlstate == CANCELED:
        raise error
    parts = (error.message, error.detail, error.hint)
    return "\n".join(part for part in parts if part)


def shown(name: TableName, target_name: TableName) -> str:
    """Return the table's name, and its name at the target if that is another one."""
    text = ".".join(name)
    return text if name == target_name else f"{text} = {'.'.join(target_name)}"
