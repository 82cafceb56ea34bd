"""Messages between rows: begin and end of transactions, TRUNCATE, descriptions and others.

Out: MessagePayloads, a source of ``sending.frames``: messages with their places in the stream. A
place is (commit LSN, ordinal), as in the log layout; BEFORE and AFTER are the ordinals of the
messages that open and end a transaction. At equal places the order of the sources decides. So a
Relation message has the place of the row that it describes, and a Stream Stop has the place of the
last row of its block, in a source after the rows.

Begin, Commit and Origin have a fixed size and are written for all transactions at once, other
messages one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.model import Lsn, Oid, Xid
from wal2lake.wire.encoder.rowmessages import (
    Bytes,
    Ints,
    big_endian,
    fixed_array,
    offsets_of,
)
from wal2lake.wire.pgoutput import Message, Truncate, write_message

BEFORE: Final = -1
"""The ordinal of a Begin, and of the Origin after it."""
AFTER: Final = (1 << 63) - 1
"""The ordinal of a Commit."""

_CASCADE: Final = 1
_RESTART_IDENTITY: Final = 2


@dataclass(frozen=True, slots=True)
class MessagePayloads:
    """Messages in the order of their places; one element per message."""

    commit_lsn: Ints
    ordinal: Ints
    lsns: Ints
    """LSNs of the messages' XLogData."""
    payloads: Any
    """Arrow binary array without nulls."""

    @property
    def sizes(self) -> Ints:
        """Bytes of each message."""
        return np.diff(offsets_of(self.payloads))

    def encode(self, first: int, last: int) -> Any:
        """Return messages [first, last)."""
        return self.payloads.slice(first, last - first)


def begins(
    commit_lsn: Ints, commit_time: Ints, xid: Ints, *, lsns: Ints | None = None
) -> MessagePayloads:
    """Write a Begin for each transaction, in commit order. ``commit_time`` is in microseconds
    since 2000-01-01 UTC. ``lsns`` are the LSNs of the XLogData, by default the commit LSNs."""
    blocks = [
        _kinds(b"B", commit_lsn),
        big_endian(commit_lsn, ">u8"),
        big_endian(commit_time, ">i8"),
        big_endian(xid, ">u4"),
    ]
    ordinal = np.full(len(commit_lsn), BEFORE, np.int64)
    return MessagePayloads(
        commit_lsn, ordinal, commit_lsn if lsns is None else lsns, _joined(blocks)
    )


def commits(commit_lsn: Ints, end_lsn: Ints, commit_time: Ints) -> MessagePayloads:
    """Write a Commit for each transaction, in commit order; the XLogData has the end LSN."""
    blocks = [
        _kinds(b"C\0", commit_lsn),
        big_endian(commit_lsn, ">u8"),
        big_endian(end_lsn, ">u8"),
        big_endian(commit_time, ">i8"),
    ]
    ordinal = np.full(len(commit_lsn), AFTER, np.int64)
    return MessagePayloads(commit_lsn, ordinal, end_lsn, _joined(blocks))


def origins(
    commit_lsn: Ints, origin_lsn: Ints, name: str, *, lsns: Ints
) -> MessagePayloads:
    """Write an Origin for each transaction, in commit order, all with the same name.
    ``origin_lsn`` has the LSNs of the commits at the origin, ``lsns`` those of the XLogData."""
    blocks = [
        _kinds(b"O", commit_lsn),
        big_endian(origin_lsn, ">u8"),
        _kinds(name.encode() + b"\0", commit_lsn),
    ]
    ordinal = np.full(len(commit_lsn), BEFORE, np.int64)
    return MessagePayloads(commit_lsn, ordinal, lsns, _joined(blocks))


def messages(written: Iterable[tuple[Lsn, int, Lsn, Message]]) -> MessagePayloads:
    """Write any messages: (commit LSN, ordinal, LSN of the XLogData, message), in the order of
    their places."""
    placed = list(written)
    return MessagePayloads(
        np.array([int(item[0]) for item in placed], np.int64),
        np.array([item[1] for item in placed], np.int64),
        np.array([int(item[2]) for item in placed], np.int64),
        pa.array([write_message(item[3]) for item in placed], pa.binary()),
    )


def truncates(
    batches: Sequence[tuple[Oid, Any]],
    *,
    commit_lsn: Lsn | None = None,
    streamed: bool = False,
) -> MessagePayloads:
    """Write the TRUNCATEs in batches of the log layout. One statement has emptied all relations at
    the same place, so they share a message, in the order of the batches.

    ``commit_lsn`` and ``streamed`` are as for RowsEncoder. The XLogData has the commit LSN.
    """
    statements: dict[tuple[int, int], tuple[list[Oid], int, Xid | None]] = {}
    for relid, whole in batches:
        rows = whole.column("op").to_numpy(zero_copy_only=False) == ord("T")
        if not rows.any():
            continue
        for row in _truncate_columns(whole).filter(pa.array(rows)).to_pylist():
            lsn = row["commit_lsn"] if commit_lsn is None else int(commit_lsn)
            xid = Xid(row["xid"]) if streamed else None
            options = row.get("options", 0)
            relids, known_options, of = statements.setdefault(
                (lsn, row["ordinal"]), ([], options, xid)
            )
            if (known_options, of) != (options, xid):
                raise InternalError(f"one TRUNCATE has two kinds of options at {lsn}")
            relids.append(relid)
    return messages(
        (
            Lsn(lsn),
            ordinal,
            Lsn(lsn),
            Truncate(
                tuple(relids),
                bool(options & _CASCADE),
                bool(options & _RESTART_IDENTITY),
                xid,
            ),
        )
        for (lsn, ordinal), (relids, options, xid) in sorted(
            statements.items(), key=lambda item: item[0]
        )
    )


def _truncate_columns(batch: Any) -> Any:
    names = ("commit_lsn", "xid", "ordinal", "options")
    return batch.select([name for name in names if name in batch.schema.names])


def _kinds(kind: bytes, like: Ints) -> Bytes:
    return np.tile(np.frombuffer(kind, np.uint8), (len(like), 1))


def _joined(blocks: list[Bytes]) -> Any:
    return fixed_array(np.concatenate(blocks, axis=1))
