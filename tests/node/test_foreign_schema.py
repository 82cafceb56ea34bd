"""Another writer changes the columns of a table that is published: nobody is held up, and a query
gives the columns that the node knows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from wal2lake.testing.node import Node


@pytest.fixture
def tables(node: Node) -> Iterator[None]:
    node.sql(
        "create table wider (id int primary key, v varchar(9), n numeric(6,2))"
        ' with ("delta.enableDeletionVectors" = false)'
    )
    node.sql("create table beside (id int primary key)")
    node.sql("create publication wider for table wider, beside")
    node.sql("select pg_create_logical_replication_slot('wider', 'test_decoding')")
    yield
    node.sql("select pg_drop_replication_slot('wider')")
    node.sql("drop publication wider")
    node.sql("drop table wider")
    node.sql("drop table beside")


@pytest.mark.usefixtures("tables")
@pytest.mark.slow
def test_a_column_that_delta_rs_has_added(node: Node) -> None:
    node.sql("insert into wider values (1, 'one', 1)")
    columns = {"id": pa.array([2], pa.int32()), "v": ["two"], "extra": ["more"]}
    write_deltalake(
        str(node.directory / "warehouse/public/wider"),
        pa.table(columns),
        mode="append",
        schema_mode="merge",
    )
    rows = [("1", "one", "1.00"), ("2", "two", None)]
    node.wait_for("select * from wider order by id", lambda found: found == rows)
    node.sql("insert into wider values (3, 'three', 3)")
    node.sql("insert into beside values (7)")
    node.sql("update wider set n = 0 where id = 2")
    node.sql("delete from wider where id = 1")
    assert node.sql("select w.* from wider w join beside b on b.id = w.id + 4") == [
        ("3", "three", "3.00")
    ]
    node.sql("insert into beside select id from wider where id = 2")
    found = node.sql(
        "select data from pg_logical_slot_get_changes('wider', null, null)"
    )
    told = [data for (data,) in found if not str(data).startswith(("BEGIN", "COMMIT"))]
    row = "table public.wider: {}: id[integer]:{} v[character varying]:{} n[numeric]:{}"
    assert told == [
        row.format("INSERT", 1, "'one'", "1.00"),
        row.format("INSERT", 2, "'two'", "null"),
        row.format("INSERT", 3, "'three'", "3.00"),
        "table public.beside: INSERT: id[integer]:7",
        row.format("UPDATE", 2, "'two'", "0.00"),
        "table public.wider: DELETE: id[integer]:1",
        "table public.beside: INSERT: id[integer]:2",
    ]
