"""A publisher that sends nonsense: the receiver says what, where and at which LSN, confirms
nothing of it, and loses nothing once the next connection behaves."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.publisher import content, inserts, payloads
from tests.fakes.receiver import Receiver
from tests.fakes.walsender import FakeWalsender, Scripted

from wal2lake.errors import ProtocolViolation
from wal2lake.model import Lsn

pytestmark = pytest.mark.usefixtures("no_fsync")

FIRST, SECOND, THIRD = inserts(100, 3), inserts(200, 3), inserts(300, 2)

# Messages of SECOND: Begin, Relation, three rows, Commit.
BEGIN, RELATION, ROW, COMMIT = 0, 1, 3, 5
ROW_LSN, COMMIT_LSN = "0/C7", "0/D0"


@dataclass(frozen=True)
class Spoil:
    """What is done to message ``at`` of the second transaction, by its payload."""

    at: int
    apply: Callable[[bytes], bytes]


def script(spoil: Spoil | None = None) -> list[Scripted]:
    """Three transactions; or the first, and of the second all up to a spoiled message.

    What follows such a message could be confirmed before it is decoded, and then it is not
    sent again: bugs/test_malformed_message.py has what happens to it.
    """
    out: list[Scripted] = []
    for one in (FIRST, SECOND, THIRD):
        # Each with its own descriptions: it may be the first of a connection.
        messages = payloads(one)
        if spoil is not None and one is SECOND:
            messages = messages[: spoil.at + 1]
            messages[-1] = spoil.apply(messages[-1])
            return [*out, Scripted(one.end_lsn, tuple(messages))]
        out.append(Scripted(one.end_lsn, tuple(messages)))
    return out


def change(at: int, where: int, data: bytes) -> Spoil:
    """Overwrite bytes of a message's pgoutput part."""
    start = 25 + where
    return Spoil(at, lambda old: old[:start] + data + old[start + len(data) :])


def cut(at: int, length: int) -> Spoil:
    """Leave that many bytes of a message."""
    return Spoil(at, lambda old: old[: 25 + length])


def put(payload: bytes) -> Spoil:
    """Send this in a row's place."""
    return Spoil(ROW, lambda old: payload)


def xlog(message: bytes, lsn: int = 199) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 7) + message


INSUFFICIENT = "insufficient data left in message"


@pytest.mark.parametrize(
    ("spoil", "problem", "name", "offset", "lsn"),
    [
        # kinds
        (
            put(xlog(b"?")),
            'invalid logical replication message type "??? (63)"',
            "??? (63)",
            0,
            ROW_LSN,
        ),
        (
            change(ROW, 0, b"\xff"),
            'invalid logical replication message type "??? (255)"',
            "??? (255)",
            0,
            ROW_LSN,
        ),
        (
            change(ROW, 5, b"K"),
            "expected new tuple but got 75",
            "INSERT",
            5,
            ROW_LSN,
        ),
        (
            change(ROW, 8, b"x"),
            "unrecognized data representation type 'x'",
            "INSERT",
            8,
            ROW_LSN,
        ),
        # flags
        (
            put(xlog(b"T" + struct.pack(">iBI", 1, 4, 1))),
            "unrecognized flags 4 in truncate message",
            "TRUNCATE",
            5,
            ROW_LSN,
        ),
        (
            put(xlog(b"M\2" + bytes(8) + b"p\0" + bytes(4))),
            "unrecognized flag value 2",
            "MESSAGE",
            1,
            ROW_LSN,
        ),
        # counts
        (
            change(ROW, 6, b"\0\1"),
            "invalid message format",
            "INSERT",
            14,
            ROW_LSN,
        ),
        (change(ROW, 6, b"\xff\xff"), INSUFFICIENT, "INSERT", 27, ROW_LSN),
        (
            put(xlog(b"T" + struct.pack(">iB", 0x7FFFFFFF, 0))),
            INSUFFICIENT,
            "TRUNCATE",
            6,
            ROW_LSN,
        ),
        (
            put(xlog(b"T" + struct.pack(">iB", -1, 0))),
            "invalid number of relations -1 in truncate message",
            "TRUNCATE",
            1,
            ROW_LSN,
        ),
        (change(RELATION, 16, b"\xff\xff"), INSUFFICIENT, "RELATION", None, "0/0"),
        # lengths
        (change(ROW, 9, b"\xff\xff\xff\xff"), INSUFFICIENT, "INSERT", 13, ROW_LSN),
        (change(ROW, 9, b"\x7f\xff\xff\xff"), INSUFFICIENT, "INSERT", 13, ROW_LSN),
        (change(ROW, 9, b"\0\0\0\2"), None, "INSERT", None, ROW_LSN),
        # truncated
        (cut(BEGIN, 12), INSUFFICIENT, "BEGIN", 9, "0/C8"),
        (cut(BEGIN, 4), INSUFFICIENT, "BEGIN", 1, "0/C8"),
        (cut(ROW, 8), INSUFFICIENT, "INSERT", 8, ROW_LSN),
        (cut(ROW, 0), INSUFFICIENT, "", 0, ROW_LSN),
        (cut(COMMIT, 17), INSUFFICIENT, "COMMIT", 10, COMMIT_LSN),
        (cut(RELATION, 3), INSUFFICIENT, "RELATION", 1, "0/0"),
        # what is not even XLogData, and so has no LSN
        (
            put(b"x" + bytes(24)),
            'invalid replication message type "??? (120)"',
            "??? (120)",
            0,
            None,
        ),
        (put(b"k" + bytes(9)), INSUFFICIENT, "keepalive", 9, None),
        (put(b"w" + bytes(9)), INSUFFICIENT, "XLogData", 9, None),
        # order
        (
            change(ROW, 1, struct.pack(">I", 77)),
            "no relation map entry for remote relation ID 77",
            "INSERT",
            1,
            ROW_LSN,
        ),
    ],
)
def test_nonsense_is_named_and_nothing_is_lost_when_the_next_connection_behaves(
    tmp_path: Path,
    spoil: Spoil,
    problem: str | None,
    name: str,
    offset: int | None,
    lsn: str | None,
) -> None:
    with FakeWalsender([script(spoil), script()]) as publisher:
        receiver = Receiver(tmp_path, publisher)
        error = receiver.run(until=lambda: False)
        assert isinstance(error, ProtocolViolation), error
        assert error.sqlstate == "08P01"
        if problem is not None:
            assert error.message == problem
        if offset is not None:
            assert error.offset == offset
        context = f'during message type "{name}" at byte {error.offset}'
        assert str(error.context).startswith(context)
        if lsn is not None:
            assert f"in XLogData at {lsn}" in str(error.context)
        assert publisher.confirmed <= Lsn(FIRST.end_lsn), "nothing of the nonsense"
        wanted = [FIRST, SECOND, THIRD]
        # What the journal has of it already is dropped, and all is sent again.
        error = receiver.run(
            until=lambda: (
                publisher.confirmed >= Lsn(THIRD.end_lsn)
                and content(receiver.log) == wanted
            )
        )
        assert error is None, error
        assert content(receiver.log) == wanted
        assert publisher.streamed == 2
