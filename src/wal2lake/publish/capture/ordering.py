"""Groups commits of tables into transactions, and orders the transactions. Pure.

In: for each table its commits since the last look, all of which readers see together. Out:
transactions, each of one or more commits. Each table's own order is kept; otherwise transactions
are ordered by time. If a crash tore a batch of a subscription (some tables committed it, the others
have the same transactions in a later batch), the batches become one transaction, if they have
exactly the sent changes. It takes the place of the last batch, if no transaction in between has a
table of the earlier ones. If it turns out that it cannot be sent as the publisher sent it, its
parts are sent, each as a transaction.

Commits belong together if they carry the same batch of a subscription or the same transaction of a
session. A table may have two commits in a group, because a batch may be applied in two commits.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import local_writer
from wal2lake.lake.capture import Emitted, OriginMark, TableCommit
from wal2lake.lake.staging import HISTORY_WORD
from wal2lake.model import Lsn, Oid

_SUBSCRIPTION: Final = re.compile(r"wal2lake:(\d+):(\d+):(\d+)")
_SEVERAL: Final = re.compile(
    r"(?:local transaction|truncate) (?P<prepared>prepared )?(?P<number>\d+)"
)


@dataclass(frozen=True, slots=True)
class BatchSource:
    """The subscription whose batch a transaction comes from."""

    subid: Oid
    end: int
    """End of the batch at its publisher."""


@dataclass(frozen=True, slots=True)
class CapturedTransaction:
    """A transaction to write to the log."""

    commits: tuple[tuple[Oid, TableCommit], ...]
    source: BatchSource | None
    """None if the transaction is not a subscription's batch."""
    parts: tuple[CapturedTransaction, ...] = ()
    """Parts of a torn batch, in order."""
    xid: int | None = None
    """The transaction's number on this node. None if its commits do not have it."""

    @property
    def time_ms(self) -> int:
        """Time of the last commit, in milliseconds since 1970."""
        return max(commit.time_ms for _, commit in self.commits)

    @property
    def messages(self) -> tuple[Emitted, ...]:
        """Messages that the transaction has emitted."""
        return tuple(
            message for _, commit in self.commits for message in commit.remarks.messages
        )

    @property
    def origin(self) -> tuple[str, Lsn] | None:
        """Replication origin, and the position there. None for a local transaction."""
        if self.source is not None:
            return f"pg_{int(self.source.subid)}", Lsn(self.source.end)
        mark = self._mark
        return None if mark is None else (mark.name, Lsn(mark.lsn))

    @property
    def origin_time_us(self) -> int | None:
        """Commit time at the origin, in microseconds since 2000-01-01 UTC."""
        mark = self._mark
        return None if mark is None else mark.time_us

    @property
    def _mark(self) -> OriginMark | None:
        marks = (commit.remarks.origin for _, commit in self.commits)
        return next((origin for origin in marks if origin), None)

    @property
    def prepared(self) -> int | None:
        """Number of the prepared transaction. None if it was not prepared."""
        match = _SEVERAL.fullmatch(self.commits[0][1].operation)
        return int(match["number"]) if match and match["prepared"] else None


def source_of(commit: TableCommit, node: int) -> BatchSource | None:
    """Return the subscription of ``node`` whose batch a commit carries. A commit of a history
    carries none: its rows are not the publisher's."""
    if commit.operation == HISTORY_WORD:
        return None
    for name, position in commit.cursors.items():
        match = _SUBSCRIPTION.fullmatch(name)
        if match is not None and int(match[1]) == node:
            return BatchSource(Oid(int(match[2])), position)
    return None


def number_of(commit: TableCommit, node: int) -> int | None:
    """Return the number of ``node``'s local transaction that made a commit. Other nodes that write
    the same tables have their own numbers."""
    return commit.remarks.xid or None if local_writer(node) in commit.cursors else None


def in_order(
    tables: Mapping[Oid, Sequence[TableCommit]], node: int
) -> list[CapturedTransaction]:
    """Order all commits of the tables. ``node``: the system identifier."""
    queues = {relid: deque(commits) for relid, commits in tables.items() if commits}
    members: dict[Hashable, Counter[Oid]] = {}
    for relid, commits in tables.items():
        for commit in commits:
            members.setdefault(_group(relid, commit, node), Counter())[relid] += 1
    transactions: list[CapturedTransaction] = []
    while queues:
        heads = {
            relid: _group(relid, queue[0], node) for relid, queue in queues.items()
        }
        # A group may be taken if it is first in each of its tables. Locks give groups of several
        # tables one order. If another writer broke that order, the oldest commit is taken alone.
        ready = [
            relid
            for relid, group in heads.items()
            if all(
                heads.get(relid_in_group) == group for relid_in_group in members[group]
            )
        ]
        first = min(
            ready or heads, key=lambda relid: (queues[relid][0].time_ms, int(relid))
        )
        group = heads[first]
        taken = []
        for relid in sorted(members[group] if ready else {first}):
            queue = queues.get(relid)
            while queue and _group(relid, queue[0], node) == group:
                taken.append((relid, queue.popleft()))
            if not queue:
                queues.pop(relid, None)
        # If the order was broken, the group has more commits later.
        members[group] -= Counter(relid for relid, _ in taken)
        first_commit = taken[0][1]
        transaction = CapturedTransaction(
            tuple(taken),
            source_of(first_commit, node),
            xid=number_of(first_commit, node),
        )
        # Several crashes may have torn one batch.
        while (place := _torn(transactions, transaction)) is not None:
            transaction = _joined(transactions.pop(place), transaction)
        transactions.append(transaction)
    return transactions


def _torn(
    transactions: Sequence[CapturedTransaction], then: CapturedTransaction
) -> int | None:
    """Return the index of the batch from which a crash has torn ``then``, the newest
    transaction."""
    if then.source is None or not _as_sent(then):
        return None
    between: set[Oid] = set()
    for place in reversed(range(len(transactions))):
        before, tables = (
            transactions[place],
            {relid for relid, _ in transactions[place].commits},
        )
        if before.source is not None and before.source.subid == then.source.subid:
            return place if _tears(before, then) and not tables & between else None
        between |= tables
    return None


def _joined(
    before: CapturedTransaction, then: CapturedTransaction
) -> CapturedTransaction:
    sources = [part.source for part in (before, then) if part.source is not None]
    last = max(sources, key=lambda source: source.end)
    parts = (*(before.parts or [before]), *(then.parts or [then]))
    return CapturedTransaction(before.commits + then.commits, last, parts)


def _as_sent(transaction: CapturedTransaction) -> bool:
    return all(commit.remarks.sent for _, commit in transaction.commits)


def _tears(before: CapturedTransaction, then: CapturedTransaction) -> bool:
    """Whether a crash between the commits of ``before``'s tables put the same transactions of other
    tables into the later batch ``then``. Sent together, each of them is one transaction again."""
    end = before.source.end if before.source is not None else 0
    return _as_sent(before) and any(
        commit.remarks.sent is not None and commit.remarks.sent.position < end
        for _, commit in then.commits
    )


def _group(relid: Oid, commit: TableCommit, node: int) -> Hashable:
    source = source_of(commit, node)
    if source is not None:
        return source
    match = _SEVERAL.fullmatch(commit.operation)
    if match is not None:
        return match["prepared"], match["number"]
    return relid, commit.version
