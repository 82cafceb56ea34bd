"""The fuzz target of wire/: any bytes, in any chunking, are the same messages or a violation.

An input is a list of CopyData payloads; on disk each has its length in front (4 bytes, big
endian), and a file whose last length lies is read as far as it goes, so any file is an
input. ``check`` is the target: it raises AssertionError for what must not be, and lets any
exception but ProtocolViolation through.

    scalar     read_message of each payload, every protocol and mode: a violation with name
               and offset, or a message that writes and reads back
    stream     wire/stream, message by message, is the truth about the whole connection
    columnar   the decoder, for each of some chunkings: the same rows, messages and commits up
               to the same violation, and no chunking changes anything
    streams    the decoder of streamed and prepared transactions, whole and headless: the same
               in any chunking as message by message (fuzz_streams.py)
    frames     the bytes of all as a socket's, cut anywhere: the same backend and frontend
               messages up to the same violation

``mutated`` makes inputs out of inputs: bytes, counts and lengths changed to what is known to
hurt, messages moved, lost, doubled, cut, and taken from other inputs.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

from tests.fakes import fuzz_streams
from tests.fakes.publisher import gulp

from wal2lake.errors import ProtocolViolation
from wal2lake.wire.columnar import Decoded, Decoder
from wal2lake.wire.copyboth import read_from_client, read_from_server
from wal2lake.wire.frontback import BackendReader, FrontendReader, StartupMessage
from wal2lake.wire.pgoutput import (
    PROTOCOL_MAX,
    UNCHANGED,
    BinaryValue,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OldTuple,
    Truncate,
    Update,
    Value,
    read_message,
    write_message,
)
from wal2lake.wire.stream import OpenTransaction, StreamReader, StreamState

Input = list[bytes]
Event = tuple[Any, ...]
"""A row, a logical message or a commit, in a form that can be compared."""

_LENGTH: Final = struct.Struct(">I")
_HEADER: Final = 25

INTERESTING_16: Final = (0, 1, 2, 3, 0x7FFF, 0x8000, 0xFFFF)
INTERESTING_32: Final = (0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_LETTERS: Final = b"BCORYIUDTMSEcAbPKrpnutNKOwkx\0\1\xff"


# ---- files -------------------------------------------------------------------------------


def encode(payloads: Sequence[bytes]) -> bytes:
    """An input's file."""
    return b"".join(_LENGTH.pack(len(p)) + p for p in payloads)


def decode(data: bytes) -> Input:
    """The input in any file."""
    found = []
    while len(data) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data)
        found.append(data[_LENGTH.size : _LENGTH.size + length])
        data = data[_LENGTH.size + length :]
    return found


# ---- the target ----------------------------------------------------------------------------


def check(payloads: Input, rng: random.Random) -> None:
    """All that must hold of one input; ``rng`` chooses the chunkings."""
    for payload in payloads:
        _check_alone(payload)
    events, violation = _scalar(payloads)
    one_by_one = list(range(len(payloads) + 1))
    some = _cuts(len(payloads), rng)
    for cuts in ([0, len(payloads)], one_by_one, some):
        _check_columnar(payloads, cuts, events, violation)
    fuzz_streams.check(payloads, [[0, len(payloads)], some])
    _check_frames(b"".join(payloads), rng)


def _cuts(length: int, rng: random.Random) -> list[int]:
    inner = {rng.randint(0, length) for _ in range(rng.randint(0, 4))}
    return sorted({0, *inner, length})


def _check_alone(payload: bytes) -> None:
    for read in (read_from_server, read_from_client):
        _violation_or_value(partial(read, payload), len(payload))
    message = payload[_HEADER:]
    for protocol in range(1, PROTOCOL_MAX + 1):
        modes = ((False, False), (True, False)) + ((((False, True),)) * (protocol > 3))
        for in_stream, parallel in modes:

            def read_one(
                data: bytes = message,
                protocol: int = protocol,
                in_stream: bool = in_stream,
                parallel: bool = parallel,
            ) -> Message:
                return read_message(
                    data, in_stream=in_stream, parallel=parallel, protocol=protocol
                )

            found = _violation_or_value(read_one, len(message))
            if found is not None:
                assert read_one(write_message(found)) == found


def _violation_or_value(read: Callable[[], Any], length: int) -> Any:
    try:
        return read()
    except ProtocolViolation as error:
        assert error.sqlstate == "08P01"
        assert 0 <= error.offset <= length
        assert "during message type" in str(error.context)
        return None


Violation = tuple[str, int] | None


def _told(error: ProtocolViolation) -> Violation:
    return error.describe(), error.offset


def _scalar(payloads: Input) -> tuple[list[Event], Violation]:
    """What the scalar reader makes of a connection, and why it stopped."""
    reader = StreamReader(StreamState())
    events: list[Event] = []
    for payload in payloads:
        before = reader.state.transaction
        try:
            message = reader.read(payload)
        except ProtocolViolation as error:
            return events, _told(error)
        assert message is not None
        events += _events(message, before, reader.state)
    return events, None


def _events(
    message: Message, transaction: OpenTransaction | None, state: StreamState
) -> list[Event]:
    if isinstance(message, LogicalMessage):
        commit = None
        if message.transactional:
            assert transaction is not None
            commit = int(transaction.final_lsn)
        return [("message", int(message.lsn), commit, message.prefix, message.content)]
    if transaction is None:
        return []
    if isinstance(message, Commit):
        origin = transaction.origin_lsn
        return [
            (
                "commit",
                int(transaction.xid),
                int(transaction.final_lsn),
                int(message.end_lsn),
                transaction.commit_time,
                transaction.origin,
                None if origin is None else int(origin),
                transaction.next_ordinal,
            )
        ]
    if not isinstance(message, Insert | Update | Delete | Truncate):
        return []
    old = message.old if isinstance(message, Update | Delete) else None
    new = message.new if isinstance(message, Insert | Update) else None
    relids = message.relids if isinstance(message, Truncate) else (message.relid,)
    options = message.options if isinstance(message, Truncate) else 0
    found: list[Event] = []
    for relid in relids:
        version = state.relations[relid]
        width = len(version.relation.columns)
        found.append(
            (
                "row",
                int(transaction.final_lsn),
                transaction.next_ordinal,
                int(relid),
                type(message).__name__[0],
                _old_kind(old),
                options,
                tuple(_cell(new[i] if new else None) for i in range(width)),
                tuple(_cell(old.values[i] if old else None) for i in range(width)),
                version.relation,
                tuple(sorted(version.type_names.items())),
            )
        )
    return sorted(found, key=lambda row: row[1:4])


def _old_kind(old: OldTuple | None) -> str:
    return old.kind.value if old is not None else ""


def _cell(value: Value) -> tuple[bytes | None, bool, bool]:
    """Bytes, unchanged, binary."""
    if isinstance(value, BinaryValue):
        return value.data, False, True
    if value is UNCHANGED or value is None:
        return None, value is UNCHANGED, False
    assert isinstance(value, bytes)
    return value, False, False


def _check_columnar(
    payloads: Input, cuts: list[int], events: list[Event], violation: Violation
) -> None:
    decoder = Decoder()
    found: list[Event] = []
    for a, b in pairwise(cuts):
        run = gulp(payloads[a:b])
        before = decoder.open_transaction
        try:
            decoded = decoder.feed(*run)
        except ProtocolViolation as error:
            assert _told(error) == violation
            assert decoder.open_transaction == before, "the state of before"
            break
        found += _columnar_events(decoded)
    else:
        assert violation is None
    kinds = ("row", "message", "commit")
    wanted = {kind: [e for e in events if e[0] == kind] for kind in kinds}
    for kind in kinds:
        got = [e for e in found if e[0] == kind]
        # Runs are taken whole or not at all: of the last one nothing is there.
        assert got == wanted[kind][: len(got)]
        if violation is None:
            assert len(got) == len(wanted[kind])


def _columnar_events(decoded: Decoded) -> list[Event]:
    rows: list[Event] = []
    for block in decoded.blocks:
        block.batch.validate(full=True)
        relation = block.relation
        names = tuple(sorted(block.type_names.items()))
        width = len(relation.columns)
        for row in block.batch.to_pylist():

            def cells(
                value: str, binary: str, row: dict[str, Any] = row, width: int = width
            ) -> tuple[Any, ...]:
                unchanged = value == "c"
                return tuple(
                    (
                        row.get(f"{value}{i}"),
                        bool(unchanged and row.get(f"u{i}")),
                        bool(row.get(f"{binary}{i}")),
                    )
                    for i in range(width)
                )

            rows.append(
                (
                    "row",
                    row["commit_lsn"],
                    row["ordinal"],
                    int(relation.relid),
                    chr(row["op"]),
                    chr(row["old"]) if row["old"] else "",
                    row.get("options", 0),
                    cells("c", "b"),
                    cells("o", "ob"),
                    relation,
                    names,
                )
            )
    # Blocks are by relation; the relations of one TRUNCATE share an ordinal.
    events = sorted(rows, key=lambda row: row[1:4])
    for one in decoded.messages.to_pylist():
        assert one["transactional"] == (one["commit_lsn"] is not None)
        events.append(
            ("message", one["lsn"], one["commit_lsn"], one["prefix"], one["content"])
        )
    for one in decoded.transactions.to_pylist():
        events.append(
            (
                "commit",
                one["xid"],
                one["commit_lsn"],
                one["end_lsn"],
                one["commit_time"],
                one["origin"],
                one["origin_lsn"],
                one["changes"],
            )
        )
    return events


def _check_frames(data: bytes, rng: random.Random) -> None:
    whole = [data]
    edges = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(1, 6)))
    pieces = [data[a:b] for a, b in pairwise([0, *edges, len(data)])]
    for make in (BackendReader, _Started):
        assert _framed(make(), whole) == _framed(make(), pieces)
    assert _packets(whole) == _packets(pieces)


class _Started:
    """A frontend behind its startup packet."""

    def __init__(self) -> None:
        self._reader = FrontendReader()
        self._reader.feed(_STARTUP)
        assert isinstance(self._reader.next_packet(), StartupMessage)
        self.feed = self._reader.feed
        self.next_message = self._reader.next_message


_STARTUP: Final = struct.pack(">ii", 8 + 8, 3 << 16) + b"user\0u\0\0"


def _framed(reader: BackendReader | _Started, pieces: list[bytes]) -> list[Any]:
    found: list[Any] = []
    for piece in pieces:
        reader.feed(piece)
        while True:
            try:
                message = reader.next_message()
            except ProtocolViolation as error:
                told = ("violation", error.message)
                if found and found[-1] == told:
                    # Broken for good: there is no way to find the next message.
                    return found
                found.append(told)
                continue
            if message is None:
                break
            found.append(message)
    return found


def _packets(pieces: list[bytes]) -> list[Any]:
    reader = FrontendReader()
    found: list[Any] = []
    for piece in pieces:
        reader.feed(piece)
        while True:
            try:
                packet = reader.next_packet()
            except ProtocolViolation as error:
                return [*found, error.message]
            if packet is None:
                break
            found.append(packet)
            if isinstance(packet, StartupMessage):
                return found
    return found


# ---- mutations --------------------------------------------------------------------------------


def mutated(payloads: Input, others: Sequence[Input], rng: random.Random) -> Input:
    """Another input, a few steps away."""
    out = list(payloads)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        _mutate(out, others, rng)
    return out


def _mutate(out: Input, others: Sequence[Input], rng: random.Random) -> None:
    what = rng.randrange(10)
    if not out or what == 0:
        donor = rng.choice(others)
        if donor:
            out.insert(rng.randint(0, len(out)), rng.choice(donor))
        return
    at = rng.randrange(len(out))
    if what == 1:
        del out[at]
    elif what == 2:
        out.insert(rng.randint(0, len(out)), out[at])
    elif what == 3:
        out.insert(rng.randint(0, len(out) - 1), out.pop(at))
    else:
        out[at] = _mutate_bytes(out[at], what, rng)


def _mutate_bytes(payload: bytes, what: int, rng: random.Random) -> bytes:
    data = bytearray(payload)
    # Mostly in the message: its header says little.
    start = _HEADER if len(data) > _HEADER and rng.random() < 0.9 else 0
    where = rng.randint(start, max(len(data) - 1, start))
    if what == 4:
        return bytes(data[:where])
    if what == 5:
        data[where:where] = rng.randbytes(rng.choice((1, 2, 4, 9)))
    elif what == 6:
        data[where : where + 2] = struct.pack(">H", rng.choice(INTERESTING_16))
    elif what == 7:
        data[where : where + 4] = struct.pack(">I", rng.choice(INTERESTING_32))
    elif what == 8:
        data[where : where + 1] = bytes([rng.choice(_LETTERS)])
    elif data:
        where = min(where, len(data) - 1)
        data[where] ^= 1 << rng.randrange(8)
    return bytes(data)
