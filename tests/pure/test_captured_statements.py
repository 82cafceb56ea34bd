"""Capture takes what statements have written down in place of the difference, if both agree on
which tables were emptied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.publishing import FakeCaptureHost, PublishingNode, capture_of

from wal2lake.catalog import ReplicationSlot
from wal2lake.lake.capture.commitfacts import CommitRemarks, with_remarks
from wal2lake.model import Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.publish.capture.positions import commit_of, end_of

WAIT_SECONDS = 30
NAME = "0" * 32


class Tables:
    """A log without files, of one table."""

    def __init__(self) -> None:
        self.commits: list[list[dict[str, Any]]] = [[{"commitInfo": {"timestamp": 0}}]]

    def actions(
        self, location: str, first: int, last: int
    ) -> Iterator[list[dict[str, Any]]]:
        yield from self.commits[first : last + 1]

    def state_at(self, location: str, version: int) -> object:
        return SimpleNamespace(fields=[SimpleNamespace(name="id")])


class Statements:
    """What was written down: TRUNCATEs."""

    def __init__(self, emptied: Sequence[Oid] | None) -> None:
        self.emptied = emptied
        self.dropped: list[str] = []

    def read(self, name: str) -> list[tuple[Relation, int]] | None:
        assert name == NAME
        if self.emptied is None:
            return None
        return [
            (Relation(relid, "s", "t", ReplicaIdentity.DEFAULT, ()), 0)
            for relid in self.emptied
        ]

    def drop(self, names: Sequence[str]) -> None:
        self.dropped += names

    def drop_left(self) -> None: ...


@pytest.mark.parametrize("told", ["itself twice", "another one", "nothing"])
def test_statements_are_told_if_they_agree_with_the_difference(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    node.run("create table t (id int primary key)")
    (table,) = node.catalog.tables()
    node.catalog.create_slot(ReplicationSlot("s", "pgoutput", Lsn(8), Lsn(8), 0))
    tables = Tables()
    statements = Statements(
        {
            "itself twice": [table.oid, table.oid],
            "another one": [table.oid, Oid(1)],
            "nothing": None,
        }[told]
    )
    host = FakeCaptureHost(
        node.catalog.tables, lambda wanted: {table.oid: len(tables.commits) - 1}
    )
    capture = capture_of(node.catalog, tmp_path, host, tables, statements=statements)
    capture.start()
    try:
        first = capture.catch_up(WAIT_SECONDS)
        word = with_remarks("truncate", CommitRemarks(statements=NAME))
        tables.commits.append([{"commitInfo": {"timestamp": 0, "userMetadata": word}}])
        second = capture.catch_up(WAIT_SECONDS)
    finally:
        capture.stop(10)
    changes = 2 if told == "itself twice" else 1
    assert second.lsn == end_of(commit_of(first.lsn, changes))
    assert statements.dropped == ([] if told == "nothing" else [NAME])
