"""What waits in a slot is of the table as it was: columns that have gone since are sent, those that
came since are NULL to a row filter."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.fakes.publishing import PublishingNode

from wal2lake.model import Column, Lsn, Oid, Relation, ReplicaIdentity
from wal2lake.publish.sending import ClientPublications, published_rows


def log_of(*values: bytes) -> pa.RecordBatch:
    rows = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "op": pa.array([ord("I")] * rows, pa.uint8()),
            "old": pa.array([0] * rows, pa.uint8()),
            "c0": pa.array(values),
            "c1": pa.array(values),
        }
    )


def test_a_backlog_is_sent_as_it_was_written(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    node.run("create table t (id int primary key, a int, b int)")
    node.run("create publication whole for table t")
    node.run("create publication listed for table t (id, b)")
    node.run("create publication filtered for table t where (b > 0)")
    (table,) = node.catalog.tables()
    publications = ClientPublications(node.catalog, lambda said, lsn: None)
    whole = publications.sending(["whole"], Lsn(1))[table.oid]
    # Of a column that nobody knows any more.
    assert whole.has("dropped since")
    listed = publications.sending(["listed"], Lsn(1))[table.oid]
    assert listed.has("b") and not listed.has("a")
    both = publications.sending(["whole", "filtered"], Lsn(1))[table.oid]
    assert both.columns is None and not both.filters

    older = Relation(
        table.oid,
        "public",
        "t",
        ReplicaIdentity.DEFAULT,
        (Column("id", Oid(23), -1, True), Column("a", Oid(23), -1, False)),
    )
    rows = log_of(b"1", b"2")
    filtered = publications.sending(["filtered"], Lsn(1))[table.oid]
    assert published_rows(filtered, older, rows).num_rows == 0
    assert published_rows(whole, older, rows).num_rows == 2
