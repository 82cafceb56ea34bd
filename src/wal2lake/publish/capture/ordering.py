"""Which commits of tables are one transaction, and in which order transactions come. Pure.

Comes in: for each table its commits since the last look, all of which readers see together. Goes
out: transactions, each of one or more commits, such that each table's own order is kept; beyond
that, by time. Batches of a subscription that a crash has torn (some of its tables have committed
one, the others the same transactions in a later one) are one, if they did just what was sent. It
comes where the last of them does, if nothing between has a table of the earlier ones; and whoever
cannot tell it as it was sent has its parts, each of which is a transaction as it is.

Commits belong together if they are of one batch of a subscription, or of one transaction of the
front door; what they carry says which. A table that is in such a group twice (two names of one
batch there are not, but a batch may be applied in two commits) has both in it.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import local_writer
from wal2lake.lake.capture.commits import TableCommit
from wal2lake.lake.capture.messages import Emitted, OriginMark
from wal2lake.model import Lsn, Oid

_SUBSCRIPTION: Final = re.compile(r"wal2lake:(\d+):(\d+):(\d+)")
_SEVERAL: Final = re.compile(
    r"(?:local transaction|truncate) (?P<prepared>prepared )?(?P<number>\d+)"
)


@dataclass(frozen=True, slots=True)
class BatchSource:
    """A subscription whose batch a transaction is."""

    subid: Oid
    end: int
    """The position at its publisher behind the batch."""


@dataclass(frozen=True, slots=True)
class CapturedTransaction:
    """One transaction to be."""

    commits: tuple[tuple[Oid, TableCommit], ...]
    source: BatchSource | None
    """None: no subscription's."""
    parts: tuple[CapturedTransaction, ...] = ()
    """Parts of a batch that was torn, in their order."""
    xid: int | None = None
    """The number that the transaction had on this node; None: a commit does not say."""

    @property
    def time_ms(self) -> int:
        """When it was complete, since 1970."""
        return max(commit.time_ms for _, commit in self.commits)

    @property
    def messages(self) -> tuple[Emitted, ...]:
        """Messages that the transaction has emitted."""
        return tuple(one for _, commit in self.commits for one in commit.more.messages)

    @property
    def origin(self) -> tuple[str, Lsn] | None:
        """The replication origin, and the position there; None: it began here."""
        if self.source is not None:
            return f"pg_{int(self.source.subid)}", Lsn(self.source.end)
        mark = self._mark
        return None if mark is None else (mark.name, Lsn(mark.lsn))

    @property
    def origin_time_us(self) -> int | None:
        """The time that was said of it there, since 2000-01-01 UTC."""
        mark = self._mark
        return None if mark is None else mark.time_us

    @property
    def _mark(self) -> OriginMark | None:
        found = (one.more.origin for _, one in self.commits)
        return next((origin for origin in found if origin), None)

    @property
    def prepared(self) -> int | None:
        """Number of the prepared transaction; None: it was not prepared."""
        found = _SEVERAL.fullmatch(self.commits[0][1].operation)
        return int(found["number"]) if found and found["prepared"] else None


def source_of(commit: TableCommit, node: int) -> BatchSource | None:
    """The subscription of ``node`` whose batch it carries."""
    for name, position in commit.cursors.items():
        found = _SUBSCRIPTION.fullmatch(name)
        if found is not None and int(found[1]) == node:
            return BatchSource(Oid(int(found[2])), position)
    return None


def number_of(commit: TableCommit, node: int) -> int | None:
    """The number of the local transaction of ``node`` that a commit is of. Another node numbers its
    own, and says so in the tables that both write."""
    return commit.more.xid or None if local_writer(node) in commit.cursors else None


def in_order(
    tables: Mapping[Oid, Sequence[TableCommit]], node: int
) -> list[CapturedTransaction]:
    """All their commits. ``node``: its system identifier."""
    queues = {relid: deque(commits) for relid, commits in tables.items() if commits}
    members: dict[Hashable, Counter[Oid]] = {}
    for relid, commits in tables.items():
        for commit in commits:
            members.setdefault(_group(relid, commit, node), Counter())[relid] += 1
    found: list[CapturedTransaction] = []
    while queues:
        heads = {
            relid: _group(relid, queue[0], node) for relid, queue in queues.items()
        }
        # A group may go if it is first at each of its tables. Locks give groups of several tables
        # one order; if somebody else's clock or hand broke it, the oldest goes alone.
        ready = [
            relid
            for relid, group in heads.items()
            if all(heads.get(other) == group for other in members[group])
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
        # Where the order was broken some of a table's commits in it are still to come.
        members[group] -= Counter(relid for relid, _ in taken)
        first_commit = taken[0][1]
        one = CapturedTransaction(
            tuple(taken),
            source_of(first_commit, node),
            xid=number_of(first_commit, node),
        )
        # Several crashes may have torn it.
        while (at := _torn(found, one)) is not None:
            one = _joined(found.pop(at), one)
        found.append(one)
    return found


def _torn(
    found: Sequence[CapturedTransaction], then: CapturedTransaction
) -> int | None:
    """Where the batch is from which a crash has torn ``then``, which comes behind all."""
    if then.source is None or not _as_sent(then):
        return None
    between: set[Oid] = set()
    for at in reversed(range(len(found))):
        before, tables = found[at], {relid for relid, _ in found[at].commits}
        if before.source is not None and before.source.subid == then.source.subid:
            return at if _tears(before, then) and not tables & between else None
        between |= tables
    return None


def _joined(
    before: CapturedTransaction, then: CapturedTransaction
) -> CapturedTransaction:
    sources = [one.source for one in (before, then) if one.source is not None]
    last = max(sources, key=lambda source: source.end)
    parts = (*(before.parts or [before]), *(then.parts or [then]))
    return CapturedTransaction(before.commits + then.commits, last, parts)


def _as_sent(one: CapturedTransaction) -> bool:
    return all(commit.more.sent for _, commit in one.commits)


def _tears(before: CapturedTransaction, then: CapturedTransaction) -> bool:
    """A crash between the commits of a batch's tables: the other tables had the same transactions
    in their next batch. Told together, each of these is one."""
    end = before.source.end if before.source is not None else 0
    return _as_sent(before) and any(
        commit.more.sent is not None and commit.more.sent.position < end
        for _, commit in then.commits
    )


def _group(relid: Oid, commit: TableCommit, node: int) -> Hashable:
    source = source_of(commit, node)
    if source is not None:
        return source
    several = _SEVERAL.fullmatch(commit.operation)
    if several is not None:
        return several["prepared"], several["number"]
    return relid, commit.version
