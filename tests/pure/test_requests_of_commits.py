"""Requests to S3 for one commit of a table: the engine's steps, without Spark, behind a proxy that
counts them. docs/performance.md lists them."""

from __future__ import annotations

from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from tests.fakes.objectstores import Server
from tests.fakes.storeproxy import StoreProxy
from tests.pure.test_log_in_stores import APP, _create

from wal2lake.lake import Cursor, PhysicalField, add_action
from wal2lake.lake.delta import TableWriter
from wal2lake.lake.delta.deletionvectors import write_vectors
from wal2lake.lake.delta.durability import settle_files
from wal2lake.lake.delta.log.commit import NextVersion, write_next
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.store import Store, store_at
from wal2lake.lake.tablefiles import AddedFile, Replaced

PHYSICAL = [PhysicalField("a", "a", None, "bigint")]


def written(location: str, values: range) -> AddedFile:
    with TableWriter(location, PHYSICAL) as writer:
        writer.write(pa.table({"a": list(values)}))
        (added,) = writer.finish()
    return added


def batch(location: str, store: Store, known: KnownVersions, number: int) -> None:
    """Commit a file with changed rows, and one vector for each other file that loses rows."""
    version = known.newest(location)
    assert version is not None
    files = known.files(version.state)
    assert files is not None
    added = written(location, range(number * 100, number * 100 + 50))
    losing = list(files.values())
    rows = np.array([number], np.uint64)
    vectors = write_vectors(location, [rows for _ in losing])
    changes = [{"add": add_action(added, data_change=True)}]
    for file, vector in zip(losing, vectors, strict=True):
        replaced = Replaced(file, vector)
        kept = replaced.add(data_change=True)
        assert kept is not None
        changes += [{"remove": replaced.remove(1, data_change=True)}, {"add": kept}]
    settle_files(store, [added.path], vectors)
    commit = NextVersion(changes, Cursor(APP, number), "upsert")
    done = write_next(store, version, files, commit)
    assert done is not None
    known.written(version.state, done)


@pytest.mark.usefixtures("no_fsync")
def test_a_commit_is_four_writing_requests(s3: Server, proxy: StoreProxy) -> None:
    location = f"{s3.url}/{uuid4().hex}/t"
    store, known = store_at(location), KnownVersions()
    assert store is not None
    _create(store)
    batch(location, store, known, 1)
    for number in (2, 3, 4):
        before = len(proxy.seen)
        batch(location, store, known, number)
        seen = [(method, path) for method, path, _ in proxy.seen[before:]]
        writes = [(method, path) for method, path in seen if method not in "GET HEAD"]
        # All vectors of a commit are one object.
        assert [(method, path.rpartition(".")[2]) for method, path in writes] == [
            ("PUT", "parquet"),
            ("PUT", "bin"),
            ("PUT", "json"),
            ("PUT", "crc"),
        ]
        # Is the known version still there, is it the newest, are its files those that are known?
        assert [method for method, _ in seen if method in "GET HEAD"] == ["HEAD"] * 3
