"""It stopped capture for all tables, as long as it could not be read: the publisher's log does not
need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from tests.fakes.publishing import FakeCaptureHost, PublishingNode, capture_of

from wal2lake.catalog import ReplicationSlot
from wal2lake.errors import CorruptLogError, InternalError, StorageError
from wal2lake.lake.capture.commitfacts import CommitRemarks, sent, with_remarks
from wal2lake.model import Lsn, Oid
from wal2lake.publish.capture.relations import relation_of

WAIT_SECONDS = 30


class Tables:
    """One table, which a batch has not changed in the end."""

    def __init__(self, node: int) -> None:
        said = with_remarks("upsert", CommitRemarks(sent=sent(100, 2, [])))
        cursor = {"appId": f"wal2lake:{node}:16500:16384", "version": 200}
        self.commits: list[list[dict[str, Any]]] = [
            [{"commitInfo": {"timestamp": 0}}],
            [{"commitInfo": {"userMetadata": said}}, {"txn": cursor}],
        ]

    def actions(
        self, location: str, first: int, last: int
    ) -> Iterator[list[dict[str, Any]]]:
        yield from self.commits[first : last + 1]

    def state_at(self, location: str, version: int) -> object:
        return SimpleNamespace(fields=[SimpleNamespace(name="id")], location=location)


TRANSACTIONS = pa.table(
    {
        "commit_lsn": [150],
        "end_lsn": [160],
        "commit_time": [0],
        "changes": pa.array([2], pa.int64()),
    }
)


@pytest.mark.parametrize("behind", [False, True], ids=["at once", "behind rows"])
@pytest.mark.parametrize(
    "error",
    [
        StorageError("could not read file", sqlstate="58030"),
        CorruptLogError("it is not what was written"),
        InternalError("nobody has expected this"),
        PermissionError(13, "Permission denied"),
        pa.ArrowInvalid("not valid"),
        KeyError("c1"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_difference_is_told(
    tmp_path: Path,
    no_fsync: None,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    behind: bool,
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    node.run("create table a (id int primary key)")
    (table,) = node.catalog.tables()
    tables = Tables(node.catalog.system_identifier)
    asked = []

    def changes() -> Iterator[tuple[Any, pa.RecordBatch]]:
        rows = {
            "commit_lsn": pa.array([150]),
            "ordinal": pa.array([0]),
            "op": pa.array([ord("I")], pa.uint8()),
            "old": pa.array([0], pa.uint8()),
            "c0": pa.array([b"1"]),
        }
        yield (
            relation_of(table, cast(Any, tables.state_at(table.location, 1))),
            pa.RecordBatch.from_pydict(rows),
        )
        raise error

    def read(*of: object) -> object:
        asked.append(of)
        if not behind:
            raise error
        return SimpleNamespace(transactions=TRANSACTIONS, changes=changes())

    newest = 0

    def visible(wanted: object) -> dict[Oid, int]:
        return {table.oid: newest}

    node.catalog.create_slot(ReplicationSlot("s", "pgoutput", Lsn(8), Lsn(8), 0))
    host = FakeCaptureHost(node.catalog.tables, visible)
    capture = capture_of(node.catalog, tmp_path, host, tables, read=read)
    capture.start()
    try:
        first = capture.catch_up(WAIT_SECONDS)
        newest, asked[:] = 1, []
        second = capture.catch_up(WAIT_SECONDS)
        assert asked and second.versions == {table.oid: 1}
        # Nothing of what came before the error is told.
        assert second.lsn == first.lsn
        (slot,) = node.catalog.slots()
        assert slot.invalidation is None
    finally:
        capture.stop(10)
