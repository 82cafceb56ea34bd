"""Small files that commits at the front door leave become larger ones, as those of batches do, and
nobody notices: readers, open transactions, subscribers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from wal2lake.lake.compaction.compactor import LOOK_EVERY
from wal2lake.testing.node import Node


@pytest.fixture
def conn(node: Node) -> Iterator[Any]:
    with psycopg.connect(node.conninfo(), autocommit=True) as conn:
        conn.execute("create schema lc")
        conn.execute("create table lc.t (id int primary key, n int)")
        try:
            yield conn
        finally:
            conn.execute("drop schema lc cascade")


def files(node: Node) -> int:
    table = DeltaTable(node.directory / "warehouse" / "lc" / "t")
    return len(table.file_uris())


def compactions(node: Node) -> int:
    history = DeltaTable(node.directory / "warehouse" / "lc" / "t").history()
    return sum("compaction" in str(one.get("userMetadata", "")) for one in history)


def insert_until_compacted(node: Node, conn: Any, first: int) -> int:
    """The number behind the last row; a compaction is written beside, so nobody knows when."""
    for number in range(first, first + 20 * LOOK_EVERY):
        conn.execute("insert into lc.t values (%s, 0)", [number])
        if compactions(node):
            return number + 1
    raise AssertionError(f"{files(node)} files after {20 * LOOK_EVERY} commits")


def test_commits_of_a_row_each_leave_few_files(node: Node, conn: Any) -> None:
    slot = "lc_slot"
    conn.execute(
        "select pg_create_logical_replication_slot(%s, 'test_decoding')", [slot]
    )
    try:
        count = insert_until_compacted(node, conn, 0)
        assert files(node) < LOOK_EVERY
        conn.execute("update lc.t set n = 1 where id = 0")
        conn.execute("delete from lc.t where id = 1")
        rows = conn.execute("select id, n from lc.t order by id").fetchall()
        assert rows == [(0, 1), *((i, 0) for i in range(2, count))]
        told = conn.execute(
            "select data from pg_logical_slot_get_changes(%s, null, null,"
            " 'include-xids', '0')",
            [slot],
        ).fetchall()
        changes = [data for (data,) in told if data not in ("BEGIN", "COMMIT")]
        assert changes == [
            *(
                f"table lc.t: INSERT: id[integer]:{i} n[integer]:0"
                for i in range(count)
            ),
            "table lc.t: UPDATE: id[integer]:0 n[integer]:1",
            "table lc.t: DELETE: id[integer]:1",
        ]
    finally:
        conn.execute("select pg_drop_replication_slot(%s)", [slot])


@pytest.mark.slow
def test_an_open_transaction_keeps_the_files_it_has_changed(
    node: Node, conn: Any
) -> None:
    conn.execute("insert into lc.t select i, 0 from generate_series(-3, -1) i")
    with psycopg.connect(node.conninfo()) as other:
        other.execute("update lc.t set n = 5 where id = -2")
        for number in range(3 * LOOK_EVERY):
            conn.execute("insert into lc.t values (%s, 0)", [number])
        assert compactions(node) == 0
        other.commit()
        insert_until_compacted(node, conn, 3 * LOOK_EVERY)
    rows = conn.execute("select id, n from lc.t where id < 0 order by id").fetchall()
    assert rows == [(-3, 0), (-2, 5), (-1, 0)]
