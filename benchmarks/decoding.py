"""``decode``: how fast wire.columnar decodes, with nothing else in the way.

Three made-up streams of rows of 6 text columns, about 100 bytes of values: one big transaction of
inserts; single-row UPDATE transactions over three tables; a mixture (inserts, updates with
NULLs and unchanged TOAST, key changes, deletes) in transactions of 1,000. Each is cut into
feeds of the receiver's size. The best of some runs counts, in CPU time of one core.

To see where the time goes: ``python -m cProfile -s tottime -m benchmarks decode``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.report import rate
from benchmarks.stage import Stage
from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity, Xid
from wal2lake.pg import Payloads
from wal2lake.receive.gulps import divide
from wal2lake.wire.columnar import Decoder
from wal2lake.wire.copyboth import XLogData, write_payload
from wal2lake.wire.pgoutput import (
    UNCHANGED,
    Begin,
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


def bound(runs: list[Feed]) -> int:
    """What the receiver's socket thread does with the same runs."""
    is_open = False
    for data, lengths in runs:
        taken = divide(Payloads(bytearray(data), lengths.tolist()), is_open=is_open)
        is_open = taken.gulp is not None and taken.gulp.open_at_end
    return sum(len(lengths) for _, lengths in runs)


def run(stage: Stage) -> None:
    """Measure all streams and add the results."""
    rows = stage.options.rows(_ROWS)
    pa.set_cpu_count(1)
    for stream in (one_big_transaction, single_row_updates, mixture):
        name = stream.__name__.replace("_", " ")
        stage.say(f"decode: {name}")
        runs = feeds(stream(rows), _FEED_BYTES)
        size = sum(len(data) for data, _ in runs)
        if decode(runs) != rows:
            raise AssertionError(f"{name}: rows are missing")
        seconds = _best(decode, runs)
        looking = _best(bound, runs)
        stage.add(_NAME, f"{name}: decode", "rows/s", rate(rows, seconds))
        stage.add(_NAME, f"{name}: decode", "MB/s", size / seconds / 1e6)
        stage.add(
            _NAME, f"{name}: find transaction ends", "rows/s", rate(rows, looking)
        )


def _best(work: Callable[[list[Feed]], int], runs: list[Feed]) -> float:
    best = float("inf")
    for _ in range(_REPEAT):
        started = time.process_time()
        work(runs)
        best = min(best, time.process_time() - started)
    return best
