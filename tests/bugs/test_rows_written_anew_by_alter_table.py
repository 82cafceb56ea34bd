"""Rows that ALTER TABLE has written anew (a default of a new column, another type) were sent as
UPDATEs, to subscribers whose table may not have the column yet. PostgreSQL sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.publishing import FakeCaptureHost, PublishingNode, capture_of

from wal2lake.catalog import ReplicationSlot
from wal2lake.lake.capture.commits import ALTERS
from wal2lake.model import Lsn, Oid

WAIT_SECONDS = 30


class Tables:
    """A log without files: whoever reads rows fails."""

    def __init__(self) -> None:
        self.commits: list[list[dict[str, Any]]] = [[{"commitInfo": {"timestamp": 0}}]]

    def actions(
        self, location: str, first: int, last: int
    ) -> Iterator[list[dict[str, Any]]]:
        yield from self.commits[first : last + 1]


def test_they_are_no_changes(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    node.run("create table t (id int primary key)")
    (table,) = node.catalog.tables()
    node.catalog.create_slot(ReplicationSlot("s", "pgoutput", Lsn(8), Lsn(8), 0))
    tables = Tables()

    def visible(wanted: object) -> dict[Oid, int]:
        return {table.oid: len(tables.commits) - 1}

    host = FakeCaptureHost(node.catalog.tables, visible)
    capture = capture_of(node.catalog, tmp_path, host, tables)
    capture.start()
    try:
        first = capture.catch_up(WAIT_SECONDS)
        file = {"path": "a", "partitionValues": {}, "size": 1, "dataChange": True}
        altered = {"commitInfo": {"timestamp": 0, "userMetadata": ALTERS}}
        tables.commits.append(
            [
                altered,
                {"metaData": {}},
                {"remove": file},
                {"add": {**file, "path": "b"}},
            ]
        )
        second = capture.catch_up(WAIT_SECONDS)
        assert second.versions == {table.oid: 1}
        assert second.lsn == first.lsn
    finally:
        capture.stop(10)
