"""Hints of statements on lake tables: the statement as the hint wants it does what was meant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wal2lake.errors import PublisherError
from wal2lake.testing.node import Node


@pytest.fixture
def schema(node: Node) -> Iterator[Node]:
    node.sql("create schema hq")
    yield node
    node.sql("drop schema hq cascade")


def hint_of(node: Node, sql: str) -> str:
    with pytest.raises(PublisherError) as caught:
        node.sql(sql)
    assert caught.value.hint is not None, caught.value
    return caught.value.hint


@pytest.mark.slow
def test_writes(schema: Node) -> None:
    node = schema
    node.sql("create table hq.t (id int primary key, a int, b text)")
    node.sql("create table hq.keyless (a int, b text)")
    node.sql("insert into hq.t values (1, 10, 'x'), (2, 20, 'y')")
    node.sql("insert into hq.keyless values (10, 'x'), (30, 'z')")
    limited = "delete from hq.t where id = 1 limit 1"
    assert hint_of(node, limited) == "Leave the clause out; nothing has been changed."
    assert node.sql("select a from hq.t where id = 1") == [("10",)]
    node.sql("insert into hq.t values (3, 30, 'z')")
    both = "update hq.t set (a, b) = (select max(a), 'w' from hq.keyless) where id = 3"
    assert hint_of(node, both) == "Give each column a subquery of its own."
    node.sql(
        "update hq.t set a = (select max(a) from hq.keyless),"
        " b = (select 'w' from hq.keyless limit 1) where id = 3"
    )
    assert node.sql("select a, b from hq.t where id = 3") == [("30", "w")]
    for sql, plain in (
        (
            "delete from hq.keyless where a in (select a from hq.t)",
            "delete from hq.keyless where a = 10 or a = 20",
        ),
        (
            "update hq.keyless set b = 'q' where a in (select a from hq.t)",
            "update hq.keyless set b = 'q' where a = 30",
        ),
    ):
        assert hint_of(node, sql) == "Write the condition without a subquery."
        node.sql(plain)
    assert node.sql("select * from hq.keyless") == [("30", "q")]
    wrong = "insert into hq.t (id, a) select 4, b from hq.t where id = 1"
    assert hint_of(node, wrong) == "You will need to rewrite or cast the expression."
    node.sql("update hq.t set b = '7' where id = 1")
    node.sql(wrong.replace(" b ", " cast(b as int) "))
    assert node.sql("select a from hq.t where id = 4") == [("7",)]


def test_generated_values(schema: Node) -> None:
    node = schema
    node.sql("create table hq.i (id int generated always as identity, v int)")
    insert = "insert into hq.i (id, v) values (5, 1)"
    assert hint_of(node, insert) == "Use OVERRIDING SYSTEM VALUE to override."
    node.sql(insert.replace(" values", " overriding system value values"))
    assert node.sql("select id from hq.i") == [("5",)]


@pytest.mark.slow
def test_columns_that_delta_needs(schema: Node) -> None:
    node = schema
    node.sql("create table hq.c (a int, b int) with (cluster_by = 'a')")
    node.sql("create table hq.p (a int, b int) with (partition_columns = 'a')")
    node.sql("insert into hq.c values (1, 2)")
    node.sql("insert into hq.p values (1, 2)")
    assert hint_of(node, "alter table hq.c drop column a").startswith(
        "Create another table WITH (cluster_by = ...), and copy the rows;"
    )
    assert hint_of(node, "alter table hq.p drop column a") == (
        "Create another table WITH (partition_columns = ...), and copy the rows."
    )
    assert hint_of(node, "alter table hq.p drop column b") == (
        "Create another table without partitions, and copy the rows."
    )
    for source, name, column, options in (
        ("c", "c2", "b", "with (cluster_by = 'b')"),
        ("p", "p3", "a", ""),
    ):
        node.sql(f"create table hq.{name} ({column} int) {options}")
        node.sql(f"insert into hq.{name} select {column} from hq.{source}")
        assert len(node.sql(f"select * from hq.{name}")) == 1
    node.sql("create table hq.p2 (b int, n int) with (partition_columns = 'b')")
    node.sql("insert into hq.p2 (b) select b from hq.p")
    assert node.sql("select b from hq.p2") == [("2",)]


def test_copies_and_expressions(schema: Node) -> None:
    node = schema
    view = "copy pg_catalog.pg_tables to stdout"
    assert hint_of(node, view) == "Try the COPY (SELECT ...) TO variant."
    node.sql("copy (select * from pg_catalog.pg_tables) to stdout")
    node.sql("create table hq.s (id integer)")
    missing = hint_of(node, "select * from hq.s where id = array['a']")
    assert "You might need to add explicit type casts" in missing
    node.sql("select * from hq.s where array[id::text] = array['a']")
