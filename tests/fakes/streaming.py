"""A walsender that streams transactions in progress, as PostgreSQL does, and its model.

A Source runs transactions with savepoints, publishes them in blocks, rolls back and prepares
them, and knows what a subscriber must have in the end (``committed``). Relation messages follow
pgoutput's rules: once per streamed transaction, again after every Stream Abort, and known to
all once a streamed transaction has committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.fakes.publisher import (
    Change,
    Emitted,
    Event,
    Transaction,
    _message,
    relation,
)

from wal2lake.model import Lsn, Relation, Xid
from wal2lake.wire import pgoutput
from wal2lake.wire.copyboth import XLogData, write_xlogdata
from wal2lake.wire.pgoutput import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)

Item = Change | bytes
"""A row change, or the content of a logical message."""


@dataclass
class Running:
    """A transaction at the source."""

    xid: int
    items: list[tuple[int, Item]] = field(default_factory=list)
    """With the subtransaction of each."""
    stack: list[list[int]] = field(default_factory=list)
    """Open savepoints, outermost first: their subtransactions, released ones included."""
    rolled_back: set[int] = field(default_factory=set)
    unsaid: list[int] = field(default_factory=list)
    """Rolled back, and no Stream Abort has said so yet."""
    streamed: int = 0
    """How many items have been sent in blocks."""
    sent: dict[int, Relation] = field(default_factory=dict)

    @property
    def current(self) -> int:
        return self.stack[-1][0] if self.stack else self.xid

    @property
    def surviving(self) -> tuple[Item, ...]:
        return tuple(i for x, i in self.items if x not in self.rolled_back)

    def as_committed(self, lsn: int) -> Transaction:
        changes = [i for i in self.surviving if isinstance(i, Change)]
        messages = [i for i in self.surviving if isinstance(i, bytes)]
        return Transaction(lsn, tuple(changes), self.xid, tuple(messages))


@dataclass
class Ended:
    """What is in the source's WAL at ``lsn``."""

    lsn: int
    how: str
    """commit, stream, prepare, stream prepare, commit prepared, rollback prepared, emit."""
    running: Running
    prepared: int = 0
    """LSN of the Prepare that this ends."""
    content: bytes = b""

    @property
    def end(self) -> int:
        return self.lsn + 8


@dataclass
class Source:
    """The publisher of one slot with streaming and two_phase."""

    parallel: bool = True
    wal: list[Ended] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    prepared: dict[int, Ended] = field(default_factory=dict)
    wire: list[bytes] = field(default_factory=list)
    known: dict[int, Relation] = field(default_factory=dict)
    next_xid: int = 100
    clock: int = 0

    @property
    def committed(self) -> list[Event]:
        found: list[Event] = []
        for one in self.wal:
            if one.how in ("commit", "stream", "commit prepared"):
                found.append(one.running.as_committed(one.lsn))
            elif one.how == "emit":
                found.append(Emitted(one.lsn, one.content))
        return found

    @property
    def next_lsn(self) -> int:
        return 100 * (len(self.wal) + 1)

    def xid(self) -> int:
        self.next_xid += 1
        return self.next_xid

    def say(self, message: pgoutput.Message, lsn: int = 0) -> None:
        self.clock += 1
        self.wire.append(
            write_xlogdata(
                XLogData(
                    Lsn(lsn), Lsn(lsn), self.clock, pgoutput.write_message(message)
                )
            )
        )

    # ---- a session's statements ---------------------------------------------------

    def begin(self) -> Running:
        one = Running(self.xid())
        self.running[one.xid] = one
        return one

    def savepoint(self, one: Running) -> None:
        one.stack.append([self.xid()])

    def release(self, one: Running) -> None:
        gone = one.stack.pop()
        if one.stack:
            one.stack[-1] += gone
        else:
            # Released into the transaction itself: nothing but its end undoes it.
            pass

    def rollback_to(self, one: Running) -> None:
        gone = one.stack.pop()
        one.rolled_back |= set(gone)
        one.unsaid += gone

    # ---- what the walsender sends -----------------------------------------------------

    def block(self, one: Running, upto: int | None = None) -> None:
        """Send what has happened since the last block."""
        upto = len(one.items) if upto is None else upto
        if upto <= one.streamed:
            return
        self.say(StreamStart(Xid(one.xid), one.streamed == 0))
        for subxid, item in one.items[one.streamed : upto]:
            self.change(item, one.sent, Xid(subxid))
        self.say(StreamStop())
        one.streamed = upto

    def aborts(self, one: Running, order: Sequence[int] | None = None) -> None:
        """Say which subtransactions are rolled back."""
        if one.streamed and one.unsaid:
            for subxid in one.unsaid if order is None else order:
                self.abort(one.xid, subxid)
            one.sent.clear()
            one.unsaid = []

    def abort(self, xid: int, subxid: int) -> None:
        if self.parallel:
            self.say(StreamAbort(Xid(xid), Xid(subxid), Lsn(9), 9))
        else:
            self.say(StreamAbort(Xid(xid), Xid(subxid)))

    def change(self, item: Item, sent: dict[int, Relation], xid: Xid | None) -> None:
        if isinstance(item, bytes):
            self.say(LogicalMessage(True, Lsn(1), "in", item, xid))
            return
        version = relation(item.relid, item.columns)
        if sent.get(item.relid) != version:
            sent[item.relid] = version
            self.say(RelationMessage(version, xid))
            # Whatever made it another one has invalidated it for everybody.
            for cache in (self.known, *(r.sent for r in self.running.values())):
                if cache.get(item.relid, version) != version:
                    del cache[item.relid]
        message = _message(item)
        if xid is not None:
            assert isinstance(message, Insert | Update | Delete | Truncate)
            message = replace(message, xid=xid)
        self.say(message)

    # ---- ends ---------------------------------------------------------------------

    def end(self, one: Running, how: str) -> Ended:
        """COMMIT or PREPARE TRANSACTION; a streamed one if a block has been sent."""
        del self.running[one.xid]
        if one.streamed:
            how = "stream" if how == "commit" else "stream prepare"
        ended = Ended(self.next_lsn, how, one)
        self.wal.append(ended)
        if "prepare" in how:
            self.prepared[one.xid] = ended
        self.send(ended)
        return ended

    def rollback(self, one: Running) -> None:
        del self.running[one.xid]
        if one.streamed:
            self.abort(one.xid, one.xid)

    def finish(self, ended: Ended, *, commit: bool) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED."""
        del self.prepared[ended.running.xid]
        how = "commit prepared" if commit else "rollback prepared"
        last = Ended(self.next_lsn, how, ended.running, ended.lsn)
        self.wal.append(last)
        self.send(last)

    def emit(self, content: bytes) -> None:
        ended = Ended(self.next_lsn, "emit", Running(0), content=content)
        self.wal.append(ended)
        self.send(ended)

    def send(self, ended: Ended) -> None:
        one, lsn, end = ended.running, Lsn(ended.lsn), Lsn(ended.end)
        xid, gid = Xid(one.xid), f"g{one.xid}"
        if ended.how.startswith("stream"):
            self.block(one)
            self.aborts(one)
        match ended.how:
            case "emit":
                self.say(LogicalMessage(False, end, "out", ended.content), end)
            case "commit":
                self.say(Begin(lsn, 5, xid), lsn)
                for item in one.surviving:
                    self.change(item, self.known, None)
                self.say(Commit(lsn, end, 5), end)
            case "stream":
                self.say(StreamCommit(xid, lsn, end, 5), end)
                self.known.update(one.sent)
            case "prepare":
                self.say(BeginPrepare(lsn, end, 5, xid, gid), lsn)
                for item in one.surviving:
                    self.change(item, self.known, None)
                self.say(Prepare(lsn, end, 5, xid, gid), end)
            case "stream prepare":
                self.say(StreamPrepare(lsn, end, 5, xid, gid), end)
            case "commit prepared":
                self.say(CommitPrepared(lsn, end, 5, xid, gid), end)
            case "rollback prepared":
                prepare_end = Lsn(ended.prepared + 8)
                self.say(RollbackPrepared(prepare_end, end, 5, 6, xid, gid), end)

    def connect(self, start: int) -> None:
        """A new connection: everything that ends at or above ``start`` comes, whole."""
        self.wire, self.known = [], {}
        for one in [*self.running.values(), *(e.running for e in self.wal)]:
            one.streamed, one.sent = 0, {}
            one.unsaid = sorted(one.rolled_back)
        for ended in self.wal:
            if ended.lsn >= start:
                self.send(ended)
