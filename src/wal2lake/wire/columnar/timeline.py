"""The transactions of a run, and the transaction of each message.

In: Frames, the class of each message and the StreamState before the run. Out: a Timeline with
the transaction of each message and Begin, Commit and Origin of each transaction. It gives the rows'
commit LSN and ordinal, the Arrow batch of finished transactions and the state after the run.
Everything is vectorised, because a run may consist of single-row transactions only.

Transactions are numbered by *slot*: slot 0 is the one that was open before the run (and
unused if there was none), slot i the i-th Begin of the run.

The rules are those of wire/stream.py; a broken one raises Suspect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wal2lake.model import INVALID_LSN, Lsn, Xid
from wal2lake.wire.columnar.columns import binary_array
from wal2lake.wire.columnar.framing import (
    COMMIT_LENGTH,
    Bytes,
    Frames,
    Ints,
    Suspect,
    Words,
    require,
    where,
)
from wal2lake.wire.stream import LSN_LIMIT, OpenTransaction, StreamState

BEGIN: Final = 1
COMMIT: Final = 2
ORIGIN: Final = 3
ROW: Final = 4
"""INSERT, UPDATE or DELETE."""
TRUNCATE: Final = 5
DESCRIPTION: Final = 6
"""RELATION or TYPE."""
MESSAGE: Final = 7
CLASSES: Final = 8

_BEGIN_LENGTH: Final = 21
_ORIGIN_SHORTEST: Final = 10

TRANSACTIONS_SCHEMA: Final = pa.schema(
    [
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("commit_lsn", pa.int64(), nullable=False),
        pa.field("end_lsn", pa.int64(), nullable=False),
        pa.field("commit_time", pa.int64(), nullable=False),
        pa.field("origin", pa.string()),
        pa.field("origin_lsn", pa.int64()),
        pa.field("changes", pa.int64(), nullable=False),
    ]
)


def no_transactions() -> Any:
    """Return an empty batch."""
    return pa.RecordBatch.from_pylist([], schema=TRANSACTIONS_SCHEMA)


def _classes() -> Bytes:
    table = np.zeros(256, np.uint8)
    for kinds, of in (
        (b"B", BEGIN),
        (b"C", COMMIT),
        (b"O", ORIGIN),
        (b"IUD", ROW),
        (b"T", TRUNCATE),
        (b"RY", DESCRIPTION),
        (b"M", MESSAGE),
    ):
        table[list(kinds)] = of
    return table


CLASS_OF_KIND: Final = _classes()
"""Class of each message kind; 0: not in protocol 1."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The transactions of one run."""

    opened: bool
    """Slot 0 is in use."""
    slot: Ints
    """For each message, the newest transaction that has begun."""
    closed: Ints
    """For each message, the number of Commits so far, including this message."""
    counted: Ints
    """For each message, the number of row changes and truncates so far, including this one."""
    final_lsn: Ints
    """For each slot, like the next five fields."""
    commit_time: Ints
    xid: Ints
    counted_before: Ints
    """``counted`` at its Begin; for slot 0 minus the number in earlier runs."""
    origin: Any
    """Arrow strings; null: no Origin."""
    origin_lsn: Any
    end_lsn: Ints
    """End LSN of each finished transaction, in order."""
    last_end_lsn: Lsn | None
    """End LSN of the last Commit, or of the last message outside of transactions."""
    commits: Ints
    """Message number of each finished transaction's Commit."""

    def inside(self, messages: Ints) -> bool:
        """Return whether each of these messages is in an open transaction."""
        begun = self.slot[messages] + self.opened
        return bool((begun - self.closed[messages] == 1).all())

    def ordinals(self, messages: Ints) -> Ints:
        """Return each message's position among the changes of its transaction."""
        return self.counted[messages] - 1 - self.counted_before[self.slot[messages]]

    def finished(self, skip_below: Lsn) -> Any:
        """Return the batch of transactions whose Commit is in the run."""
        first = 0 if self.opened else 1
        of = np.arange(first, first + len(self.commits))
        keep = self.final_lsn[of] >= skip_below
        of = of[keep]
        taken = pa.array(of)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(self.xid[of]),
                pa.array(self.final_lsn[of]),
                pa.array(self.end_lsn[keep]),
                pa.array(self.commit_time[of]),
                self.origin.take(taken),
                self.origin_lsn.take(taken),
                pa.array(
                    self.counted[self.commits[keep]] - self.counted_before[of],
                ),
            ],
            schema=TRANSACTIONS_SCHEMA,
        )

    def open_at_end(self, just_begun: bool) -> OpenTransaction | None:
        """Return the transaction that is open at the end of the run."""
        last = len(self.final_lsn) - 1
        if self.opened + last == len(self.commits):
            return None
        origin_lsn = self.origin_lsn[last].as_py()
        return OpenTransaction(
            xid=Xid(self.xid[last]),
            final_lsn=Lsn(int(self.final_lsn[last])),
            commit_time=int(self.commit_time[last]),
            origin=self.origin[last].as_py(),
            origin_lsn=None if origin_lsn is None else Lsn(origin_lsn),
            next_ordinal=int(self.counted[-1] - self.counted_before[last]),
            just_begun=just_begun,
        )


def one_transaction(classes: Bytes, next_ordinal: int) -> Timeline:
    """Build the timeline of a run whose messages all belong to one open transaction."""
    nothing = np.zeros(0, np.int64)
    zero = np.zeros(1, np.int64)
    everywhere = np.zeros(len(classes), np.int64)
    return Timeline(
        opened=True,
        slot=everywhere,
        closed=everywhere,
        counted=np.cumsum((classes == ROW) | (classes == TRUNCATE), dtype=np.int64),
        final_lsn=zero,
        commit_time=zero,
        xid=zero,
        counted_before=zero - next_ordinal,
        origin=None,
        origin_lsn=None,
        end_lsn=nothing,
        last_end_lsn=None,
        commits=nothing,
    )


def read_timeline(
    frames: Frames, classes: Bytes, state: StreamState, outside: tuple[Ints, Ints]
) -> Timeline:
    """Read all B, C and O of a run that is not empty; raises Suspect.

    ``outside`` has number and LSN of the messages outside of transactions.
    """
    open_before = state.transaction
    opened = open_before is not None
    begin_mask, commit_mask = classes == BEGIN, classes == COMMIT
    begins, commits = where(begin_mask), where(commit_mask)
    _alternate(begins, commits, opened)

    positions = frames.fields[begins]
    require((frames.lengths(begins) == _BEGIN_LENGTH).all())
    final_lsn = _prepend(
        open_before.final_lsn if open_before else 0, _lsns(frames.words(positions))
    )
    require((final_lsn[1:] != 0).all())
    commit_time = _prepend(
        open_before.commit_time if open_before else 0, frames.integers(positions + 8)
    )
    # The xid is the last field, so the word that ends with it is inside the message.
    xids = (frames.words(positions + 12) & np.uint64(0xFFFFFFFF)).view(np.int64)
    xid = _prepend(open_before.xid if open_before else 0, xids)

    positions = frames.fields[commits]
    require((frames.lengths(commits) == COMMIT_LENGTH).all())
    require((frames.bytes[positions] == 0).all())
    own = final_lsn[0 if opened else 1 :]
    require((frames.words(positions + 1).view(np.int64) == own[: len(commits)]).all())
    end_lsn = _lsns(frames.words(positions + 9))
    require((end_lsn > own[: len(commits)]).all())
    _ascend(state.last_end_lsn, (begins, final_lsn[1:]), (commits, end_lsn), outside)

    counted = np.cumsum((classes == ROW) | (classes == TRUNCATE), dtype=np.int64)
    slot = np.cumsum(begin_mask, dtype=np.int64)
    had = open_before.next_ordinal if open_before else 0
    closed = np.cumsum(commit_mask, dtype=np.int64)
    require((slot[outside[0]] + opened == closed[outside[0]]).all())
    origin, origin_lsn = _origins(frames, classes, slot, open_before)
    last_ends = [int(lsn) for ends in (end_lsn, outside[1]) for lsn in ends[-1:]]
    return Timeline(
        opened=opened,
        slot=slot,
        closed=closed,
        counted=counted,
        final_lsn=final_lsn,
        commit_time=commit_time,
        xid=xid,
        counted_before=_prepend(-had, counted[begins]),
        origin=origin,
        origin_lsn=origin_lsn,
        end_lsn=end_lsn,
        last_end_lsn=Lsn(max(last_ends)) if last_ends else None,
        commits=commits,
    )


def _alternate(begins: Ints, commits: Ints, opened: bool) -> None:
    """Check that Begin and Commit alternate: at most one transaction is open at any time."""
    if opened:
        begins = np.concatenate((np.array([-1]), begins))
    require(len(begins) - len(commits) in (0, 1))
    require((begins[: len(commits)] < commits).all())
    require((commits[: len(begins) - 1] < begins[1:]).all() if len(begins) else True)


def _ascend(
    last_end: Lsn,
    begun: tuple[Ints, Ints],
    ended: tuple[Ints, Ints],
    outside: tuple[Ints, Ints],
) -> None:
    """Check that the LSN of a Begin is not below the end before it, and that of a message outside
    of transactions is above it.

    Each pair has message numbers and LSNs. A Commit follows its own Begin.
    """
    if not len(outside[0]):
        # Begin and end alternate, so their order is known without a search.
        opened = len(ended[0]) > 0 and (not len(begun[0]) or ended[0][0] < begun[0][0])
        before = ended[1] if opened else _prepend(last_end, ended[1])
        require((begun[1] >= before[: len(begun[1])]).all())
        return
    numbers = np.concatenate((ended[0], outside[0]))
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    ends = _prepend(last_end, np.concatenate((ended[1], outside[1]))[order])
    require((begun[1] >= ends[np.searchsorted(numbers, begun[0])]).all())
    require((outside[1] > ends[np.searchsorted(numbers, outside[0])]).all())


def _prepend(first: int, rest: Ints) -> Ints:
    return np.concatenate((np.array([first], np.int64), rest))


def _lsns(words: Words) -> Ints:
    require((words < np.uint64(LSN_LIMIT)).all())
    return words.view(np.int64)


def _origins(
    frames: Frames, classes: Bytes, slot: Ints, open_before: OpenTransaction | None
) -> tuple[Any, Any]:
    """Return name and commit LSN of each slot's origin, as Arrow arrays with nulls."""
    slots = int(slot[-1]) + 1
    names: list[str] = []
    name_of = np.full(slots, -1, np.int64)
    lsns = np.zeros(slots, np.int64)
    if open_before is not None and open_before.origin is not None:
        names.append(open_before.origin)
        name_of[0] = 0
        lsns[0] = open_before.origin_lsn or INVALID_LSN
    origins = where(classes == ORIGIN)
    if len(origins):
        if origins[0] == 0:
            require(open_before is not None and open_before.just_begun)
        behind = origins[1:] if origins[0] == 0 else origins
        require((classes[behind - 1] == BEGIN).all())
        require((frames.lengths(origins) >= _ORIGIN_SHORTEST).all())
        positions = frames.fields[origins]
        stop = frames.ends[origins] - 1
        require((frames.bytes[stop] == 0).all())
        # There are few names even for many transactions: decode each once.
        encoded = binary_array(frames.data, positions + 8, stop).dictionary_encode()
        lsns[slot[origins]] = _lsns(frames.words(positions))
        name_of[slot[origins]] = encoded.indices.to_numpy() + len(names)
        names += [_name(value) for value in encoded.dictionary.to_pylist()]
    absent = name_of < 0
    return (
        pa.array(names, pa.string()).take(pa.array(name_of, mask=absent)),
        pa.array(lsns, mask=absent),
    )


def _name(value: bytes) -> str:
    require(b"\0" not in value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Suspect from None
