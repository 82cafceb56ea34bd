"""What one read of the socket has brought, divided for those who want it."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.publisher import Emitted, inserts, payloads, relation, xlogdata

from wal2lake.errors import ProtocolViolation
from wal2lake.model import Lsn, Oid, Xid
from wal2lake.pg import CopyDataPayloads
from wal2lake.receive.gulps import Gulp, Taken, divide, read_relations
from wal2lake.wire.copyboth import Keepalive, write_payload
from wal2lake.wire.pgoutput import (
    Insert,
    RelationMessage,
    StreamStart,
    StreamStop,
)


def alive(end: int, *, reply: bool = False) -> bytes:
    return write_payload(Keepalive(Lsn(end), 5, reply_requested=reply))


def take(parts: list[bytes], *, is_open: bool = False) -> Taken:
    read = CopyDataPayloads(bytearray(b"".join(parts)), [len(p) for p in parts])
    return divide(read, is_open=is_open)


BEGIN, RELATION, ROW, COMMIT = payloads(inserts(100, 1))
OUTSIDE = payloads(Emitted(200, b"x"))[0]


@given(
    st.lists(st.sampled_from((BEGIN, RELATION, ROW, COMMIT, OUTSIDE, None))),
    st.booleans(),
)
def test_keepalives_are_taken_out_and_changes_stay_in_order(
    sent: list[bytes | None], is_open: bool
) -> None:
    taken = take([alive(7) if p is None else p for p in sent], is_open=is_open)
    changes = [p for p in sent if p is not None]
    assert len(taken.keepalives) == len(sent) - len(changes)
    if not changes:
        assert taken.gulp is None and taken.newest is None
        return
    assert taken.gulp is not None and taken.newest is not None
    assert taken.gulp.data == b"".join(changes)
    assert taken.gulp.lengths.tolist() == [len(p) for p in changes]
    assert taken.gulp.lengths.dtype == np.uint32
    kinds = [p for p in changes if p is not OUTSIDE]
    assert taken.gulp.open_at_end == (kinds[-1] is not COMMIT if kinds else is_open)
    end = struct.unpack_from(">Q", changes[-1], 9)[0]
    assert (taken.newest.end_lsn, taken.newest.send_time) == (end, 7)
    assert taken.newest.message == b""


def test_a_keepalive_is_told_with_what_it_asks() -> None:
    assert take([alive(7), alive(9, reply=True)]).keepalives == (
        Keepalive(Lsn(7), 5, reply_requested=False),
        Keepalive(Lsn(9), 5, reply_requested=True),
    )


@pytest.mark.parametrize(
    "bad", [b"x" + bytes(24), b"k" + bytes(3), b"w" + bytes(9)], ids=repr
)
def test_what_is_neither_is_a_violation(bad: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        take([BEGIN, bad])


@pytest.mark.parametrize("sent", [[b""], [BEGIN, b""], [b"", BEGIN], [BEGIN, b"", ROW]])
def test_an_empty_one_is_a_violation_wherever_it_stands(sent: list[bytes]) -> None:
    """libpq keeps them to itself; at the end one was an IndexError, elsewhere a change."""
    with pytest.raises(ProtocolViolation, match="insufficient data left in message"):
        take(sent)


@pytest.mark.parametrize("between", [[], [alive(7)]], ids=["changes", "keepalive"])
def test_the_bytes_of_a_read_are_copied_once(between: list[bytes]) -> None:
    rows = [ROW * 1000] * 1000
    parts = [BEGIN, *rows[:500], *between, *rows[500:]]
    read = CopyDataPayloads(bytearray(b"".join(parts)), [len(p) for p in parts])
    tracemalloc.start()
    try:
        taken = divide(read, is_open=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken.gulp is not None
    assert peak < 1.5 * len(read.data)


# ---- what its Relation messages say --------------------------------------------------

IN_BLOCK = xlogdata(RelationMessage(relation(9), Xid(5)))
START = xlogdata(StreamStart(Xid(5), first_segment=True))
STOP = xlogdata(StreamStop())
ROW_IN_BLOCK = xlogdata(Insert(Oid(9), (b"R", b"S"), Xid(5)))


def gulp(*parts: bytes) -> Gulp:
    return Gulp(b"".join(parts), np.array([len(p) for p in parts], np.uint32), False)


def test_relations_are_found_in_and_between_blocks_of_streams() -> None:
    found, in_block = read_relations(
        gulp(BEGIN, RELATION, ROW, COMMIT, START, IN_BLOCK, ROW_IN_BLOCK),
        in_block=False,
    )
    assert (found, in_block) == ([relation(1), relation(9)], True)
    found, in_block = read_relations(gulp(IN_BLOCK, STOP, RELATION), in_block=True)
    assert (found, in_block) == ([relation(9), relation(1)], False)
    assert read_relations(gulp(BEGIN, ROW, COMMIT, OUTSIDE), in_block=True) == (
        [],
        True,
    )


def test_a_relation_that_is_not_well_formed_is_left_to_who_decodes_it() -> None:
    assert read_relations(gulp(RELATION[:-3], RELATION[:10]), in_block=False) == (
        [],
        False,
    )
