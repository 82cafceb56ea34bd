"""``decode``: how fast wire.columnar decodes, with nothing else in the way.

Made-up streams of rows of 6 columns, about 100 bytes of values. Of text columns: one big
transaction of inserts; single-row UPDATE transactions over three tables; a mixture (inserts,
updates with NULLs and unchanged TOAST, key changes, deletes) in transactions of 1,000. Of the
backlog's table (``workload``): inserts, as text and in binary format. Each is cut into
feeds of the receiver's size. The best of some runs counts, in CPU time of one core.

*decode* is what the receiver does: values stay as they were sent. *convert* is apply's next
step, which makes typed Arrow columns of them.

To see where the time goes: ``python -m cProfile -s tottime -m benchmarks decode``.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.report import Target, rate
from benchmarks.stage import Stage
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.pg import CopyDataPayloads
from wal2lake.pgtypes import convert_sent, mapping_for
from wal2lake.pgtypes.binary import TIMESTAMP_EPOCH, numeric_to_binary
from wal2lake.receive.gulps import divide, read_relations
from wal2lake.wire.columnar import Decoder
from wal2lake.wire.copyboth import XLogData, write_payload
from wal2lake.wire.pgoutput import (
    UNCHANGED,
    Begin,
    BinaryValue,
    Commit,
    Delete,
    Insert,
    Message,
    OldKind,
    OldTuple,
    RelationMessage,
    TupleData,
    Update,
    write_message,
)

_NAME: Final = "decode"
_ROWS: Final = 200_000
_FEED_BYTES: Final = 4 << 20
_REPEAT: Final = 5
_TARGET: Final = Target(at_least=1_000_000)
"""Rows a second, of the backlog's table, in either format."""

Feed = tuple[bytes, npt.NDArray[np.uint32]]
_COLUMNS = ("id", "customer", "status", "amount", "created", "note")


def _relation(relid: int) -> Relation:
    return Relation(
        Oid(relid),
        "public",
        f"orders_{relid}",
        ReplicaIdentity.DEFAULT,
        tuple(Column(n, Oid(25), -1, n == "id") for n in _COLUMNS),
    )


_RELATIONS = tuple(_relation(relid) for relid in (16384, 16390, 16396))


def _row(n: int) -> TupleData:
    """About 100 bytes in six values."""
    return (
        b"%d" % (10_000_000 + n),
        b"customer-%d" % (n * 7919 % 1_000_000),
        (b"new", b"paid", b"shipped")[n % 3],
        b"%d.%02d" % (n % 9000, n % 100),
        b"2026-08-01 12:%02d:%02d.%06d+00" % (n // 60 % 60, n % 60, n % 1_000_000),
        b"note number %d, forty bytes or so " % n,
    )


def _payload(message: Message) -> bytes:
    return write_payload(XLogData(Lsn(1), Lsn(1), 0, write_message(message)))


def _transaction(n: int, *changes: Message) -> Iterator[bytes]:
    yield _payload(Begin(Lsn(100 * n), n, Xid(n % 2**32)))
    for change in changes:
        yield _payload(change)
    yield _payload(Commit(Lsn(100 * n), Lsn(100 * n + 48), n))


def _described() -> Iterator[bytes]:
    for relation in _RELATIONS:
        yield _payload(RelationMessage(relation))


def one_big_transaction(rows: int) -> Iterator[bytes]:
    """Inserts into one table."""
    yield from _described()
    relid = _RELATIONS[0].relid
    yield from _transaction(1, *(Insert(relid, _row(n)) for n in range(rows)))


def single_row_updates(rows: int) -> Iterator[bytes]:
    """One UPDATE per transaction, over three tables in turn."""
    yield from _described()
    for n in range(rows):
        relid = _RELATIONS[n % 3].relid
        yield from _transaction(n + 1, Update(relid, None, _row(n)))


def mixture(rows: int) -> Iterator[bytes]:
    """Everything, in transactions of 1,000 rows over three tables."""
    yield from _described()
    for first in range(0, rows, 1000):
        yield from _transaction(
            first // 1000 + 1, *(_mixed(n) for n in range(first, first + 1000))
        )


def _mixed(n: int) -> Message:
    relid, row = _RELATIONS[n * 7 % 3].relid, _row(n)
    key = OldTuple(OldKind.KEY, (row[0], None, None, None, None, None))
    match n % 10:
        case 0:
            return Delete(relid, key)
        case 1:
            return Update(relid, key, _row(n + 1))
        case 2 | 3:
            return Update(relid, None, (*row[:5], UNCHANGED))
        case 4:
            return Update(relid, None, (*row[:2], None, *row[3:]))
        case _:
            return Insert(relid, row)


_TABLE: Final = Relation(
    Oid(16402),
    "bench",
    "backlog",
    ReplicaIdentity.DEFAULT,
    tuple(
        Column(name, Oid(oid), typmod, name == "id")
        for name, oid, typmod in (
            ("id", 20, -1),
            ("customer", 23, -1),
            ("amount", 1700, (12 << 16 | 2) + 4),
            ("created", 1184, -1),
            ("note", 25, -1),
            ("paid", 16, -1),
        )
    ),
)
"""As ``workload.COLUMNS``."""


def _values(n: int, *, binary: bool) -> TupleData:
    """As ``workload.insert_rows``."""
    customer, cents = n * 37 % 1_000_003, n % 900_000_007
    amount = f"{cents // 100}.{cents % 100:02}"
    moment = np.datetime64("2026-01-01T00:00:00", "us") + n * 1_001_000
    note = (_md5(n) + _md5(n + 1)[:18]).encode()
    paid = n % 3 == 0
    if not binary:
        created = f"{moment}+00".replace("T", " ").encode()
        paid_text = b"t" if paid else b"f"
        return (
            b"%d" % n,
            b"%d" % customer,
            amount.encode(),
            created,
            note,
            paid_text,
        )
    microseconds = int(moment.astype(np.int64)) - TIMESTAMP_EPOCH
    return tuple(
        BinaryValue(value)
        for value in (
            struct.pack("!q", n),
            struct.pack("!i", customer),
            numeric_to_binary(amount),
            struct.pack("!q", microseconds),
            note,
            bytes([paid]),
        )
    )


def _md5(n: int) -> str:
    return hashlib.md5(b"%d" % n, usedforsecurity=False).hexdigest()


def backlogs_table(rows: int, *, binary: bool) -> Iterator[bytes]:
    """Inserts into the table of the backlog."""
    yield _payload(RelationMessage(_TABLE))
    inserts = (Insert(_TABLE.relid, _values(n, binary=binary)) for n in range(rows))
    yield from _transaction(1, *inserts)


def feeds(payloads: Iterator[bytes], size: int) -> list[Feed]:
    """The payloads cut into runs of about ``size`` bytes."""
    runs: list[Feed] = []
    own: list[bytes] = []
    held = 0
    for payload in payloads:
        own.append(payload)
        held += len(payload)
        if held >= size:
            runs.append((b"".join(own), np.array([len(p) for p in own], np.uint32)))
            own, held = [], 0
    if own:
        runs.append((b"".join(own), np.array([len(p) for p in own], np.uint32)))
    return runs


def decode(runs: list[Feed]) -> int:
    """Decode all runs; how many rows came out."""
    decoder = Decoder()
    return sum(
        block.batch.num_rows for run in runs for block in decoder.feed(*run).blocks
    )


def convert(runs: list[Feed]) -> int:
    """Decode all runs and convert the rows; how many there were."""
    return sum(table.num_rows for table in converted(runs))


def converted(runs: list[Feed]) -> Iterator[pa.Table]:
    """The rows with every column in its own type."""
    decoder = Decoder()
    for run in runs:
        for block in decoder.feed(*run).blocks:
            batch = block.batch
            names = set(batch.schema.names)
            columns = {}
            for i, column in enumerate(block.relation.columns):
                flags = None
                if f"b{i}" in names:
                    flags = batch.column(f"b{i}").to_numpy(zero_copy_only=False)
                mapping = mapping_for(column.type_oid, column.typmod)
                values = batch.column(f"c{i}")
                conversion = convert_sent(values, flags, column.type_oid, {}, mapping)
                if conversion.failures:
                    raise AssertionError(conversion.failures[0].message)
                columns[column.name] = conversion.array
            yield pa.table(columns)


def bound(runs: list[Feed], *, binary: bool = False) -> int:
    """What the receiver's socket thread does with the same runs; of a ``binary`` stream it
    looks at the Relation messages, too."""
    is_open = in_block = False
    for data, lengths in runs:
        taken = divide(
            CopyDataPayloads(bytearray(data), lengths.tolist()), is_open=is_open
        )
        is_open = taken.gulp is not None and taken.gulp.open_at_end
        if binary and taken.gulp is not None:
            _, in_block = read_relations(taken.gulp, in_block=in_block)
    return sum(len(lengths) for _, lengths in runs)


_STREAMS: Final[dict[str, Callable[[int], Iterator[bytes]]]] = {
    "one big transaction": one_big_transaction,
    "single row updates": single_row_updates,
    "mixture": mixture,
    "backlog's table, text": partial(backlogs_table, binary=False),
    "backlog's table, binary": partial(backlogs_table, binary=True),
}


def run(stage: Stage) -> None:
    """Measure all streams and add the results."""
    rows = stage.options.scaled(_ROWS)
    pa.set_cpu_count(1)
    for name, stream in _STREAMS.items():
        stage.say(f"decode: {name}")
        runs = feeds(stream(rows), _FEED_BYTES)
        is_table = name.startswith("backlog")
        size = sum(len(data) for data, _ in runs)
        if decode(runs) != rows:
            raise AssertionError(f"{name}: rows are missing")
        seconds = _best(decode, runs)
        looking = _best(partial(bound, binary=name.endswith("binary")), runs)
        target = _TARGET if is_table else None
        speed = rate(rows, seconds)
        stage.add(_NAME, f"{name}: decode", "rows/s", speed, target=target)
        stage.add(_NAME, f"{name}: decode", "MB/s", size / seconds / 1e6)
        stage.add(
            _NAME, f"{name}: find transaction ends", "rows/s", rate(rows, looking)
        )
        if is_table:
            whole = _best(convert, runs)
            speed = rate(rows, whole)
            stage.add(_NAME, f"{name}: decode and convert", "rows/s", speed)


def _best(work: Callable[[list[Feed]], int], runs: list[Feed]) -> float:
    best = float("inf")
    for _ in range(_REPEAT):
        started = time.process_time()
        work(runs)
        best = min(best, time.process_time() - started)
    return best
