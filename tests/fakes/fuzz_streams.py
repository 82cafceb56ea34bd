"""The fuzz target for streamed and prepared transactions (protocols 2 to 4).

Message by message is the truth; any other chunking has to find the same rows, messages and
ends of transactions up to the same violation, which leaves the state of before.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.fakes.publisher import gulp

from wal2lake.errors import ProtocolViolation
from wal2lake.wire.columnar import (
    Decoded,
    StreamAborted,
    StreamCommitted,
    StreamDecoder,
    Streamed,
    StreamPrepared,
)
from wal2lake.wire.columnar.streamed import OpenStream

Event = tuple[Any, ...]
Found = tuple[dict[str, list[Event]], tuple[str, int] | None]
"""Events of each kind in their order, and the violation that ended them."""

KINDS = ("row", "message", "commit", "streamed row", "streamed message", "end")


def check(payloads: list[bytes], chunkings: list[list[int]]) -> None:
    """All that must hold of one input; AssertionError if it does not."""
    for headless in (False, True):
        one_by_one = list(range(len(payloads) + 1))
        events, violation = _read(payloads, one_by_one, headless=headless)
        for cuts in chunkings:
            found, other = _read(payloads, cuts, headless=headless)
            assert other == violation
            for kind in KINDS:
                # Runs are taken whole or not at all: of the last one nothing is there.
                assert found[kind] == events[kind][: len(found[kind])]
                assert violation is not None or len(found[kind]) == len(events[kind])


def _read(payloads: list[bytes], cuts: list[int], *, headless: bool) -> Found:
    decoder = StreamDecoder(headless=headless)
    found: dict[str, list[Event]] = {kind: [] for kind in KINDS}
    for a, b in pairwise(cuts):
        before = decoder.open_transaction, decoder.inside
        try:
            events = decoder.feed(*gulp(payloads[a:b]))
        except ProtocolViolation as error:
            assert error.sqlstate == "08P01"
            assert (decoder.open_transaction, decoder.inside) == before
            return found, (error.describe(), error.offset)
        for event in events:
            for kind, one in _events(event):
                found[kind].append(one)
    return found, None


def _events(event: Any) -> list[tuple[str, Event]]:
    match event:
        case Decoded():
            rows = _rows(event.blocks, "commit_lsn")
            return [
                *(("row", row) for row in rows),
                *(("message", one) for one in _records(event.messages)),
                *(("commit", one) for one in _records(event.transactions)),
            ]
        case Streamed():
            xid = int(event.stream.xid)
            rows = _rows(event.blocks, "xid")
            return [
                *(("streamed row", (xid, event.whole, *row)) for row in rows),
                *(("streamed message", (xid, *m)) for m in _records(event.messages)),
            ]
        case StreamPrepared() | StreamAborted() | StreamCommitted():
            told = [
                getattr(event, name) for name in event.__slots__ if name != "stream"
            ]
            return [("end", (type(event), *told, _stream(event.stream)))]
        case _:
            return [("end", (event,))]


def _stream(stream: OpenStream | None) -> Event | None:
    if stream is None:
        return None
    return (
        stream.xid,
        stream.origin,
        stream.lost,
        stream.next_ordinal,
        stream.latest,
        # Not when each was sent and by whom only: what holds now follows from all of them.
        sorted(
            (described, [(one.message, one.xids) for one in versions])
            for described, versions in stream.definitions.items()
        ),
    )


def _rows(blocks: list[Any], first: str) -> list[Event]:
    """In stream order: blocks are by relation, and the relations of a TRUNCATE share one."""
    rows: list[Event] = []
    for block in blocks:
        block.batch.validate(full=True)
        for row in block.batch.to_pylist():
            # Of the columns that a run has beside the values only those that say something.
            said = tuple(
                sorted((k, v) for k, v in row.items() if v not in (None, False))
            )
            key = row["ordinal"] if first == "xid" else (row[first], row["ordinal"])
            rows.append((key, int(block.relation.relid), said, block.relation))
    return sorted(rows, key=lambda row: row[:2])


def _records(batch: Any) -> list[Event]:
    return [] if batch is None else [tuple(one.items()) for one in batch.to_pylist()]
