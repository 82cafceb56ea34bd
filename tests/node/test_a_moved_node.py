"""A node whose directory or warehouse is moved goes on in the new place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node

PEEK = "select data from pg_logical_slot_peek_changes('s', null, null)"


def decoded(node: Node) -> list[str]:
    """The changes of tables that the slot has, in order."""
    return [str(r[0]) for r in node.sql(PEEK) if str(r[0]).startswith("table")]


def follows(node: Node, source: Database, wanted: str) -> None:
    node.wait_for(
        "select string_agg(i || v, ' ' order by i) from public.copied",
        lambda rows: rows == [(wanted,)],
    )


@pytest.mark.slow
def test_a_node_and_its_warehouse_are_moved(
    tmp_path: Path, database: Callable[..., Database]
) -> None:
    source = database(18)
    source.psql(
        "create table copied (i int primary key, v text);"
        " insert into copied values (1, 'a'); create publication p"
    )
    source.psql("alter publication p add table copied")
    settings = {
        "node.authentication": "trust",
        "node.max_prepared_transactions": 3,
        "subscription.wal_retrieve_retry_interval_ms": 200,
    }
    with Node(tmp_path / "one", settings=settings) as node:
        node.init().start()
        node.sql("create table public.own (i int primary key, v text)")
        node.sql("create table public.ready (i int primary key)")
        node.sql("create table public.late (i int primary key)")
        node.sql(
            f"create subscription s connection {quote_literal(source.conninfo())}"
            " publication p"
        )
        follows(node, source, "1a")
        node.sql(
            "select pg_create_logical_replication_slot('s', 'test_decoding', false, true)"
        )
        node.sql("insert into own values (1, 'before')")
        node.sql("begin; insert into ready values (7); prepare transaction 'g'")
        node.sql("begin; insert into late values (4); prepare transaction 'h'")
        before = decoded(node)
        node.stop()

    source.psql(
        "insert into copied values (2, 'b'); update copied set v = 'c' where i = 1"
    )
    (tmp_path / "one").rename(tmp_path / "two")
    with Node(tmp_path / "two", settings=settings) as node:
        node.start()
        follows(node, source, "1c 2b")
        assert decoded(node)[: len(before)] == before
        node.sql("update own set v = v || ', after' where i = 1")
        node.sql("commit prepared 'g'")
        assert node.sql("select * from ready") == [("7",)]
        assert node.sql("select * from own") == [("1", "before, after")]
        assert "table public.ready: INSERT: i[integer]:7" in decoded(node)

        # The warehouse alone; nobody tells the node.
        lake = tmp_path / "lake"
        (tmp_path / "two/warehouse").rename(lake)
        source.psql("insert into copied values (3, 'd')")
        missing = tmp_path / "two/warehouse/public/own"
        for statement in (
            "select * from own",
            "insert into own values (2, 'lost')",
            "update own set v = ''",
        ):
            with pytest.raises(PublisherError) as refused:
                node.sql(statement)
            error = refused.value
            assert error.message == f'there is no Delta table at "{missing}"', statement
            assert error.sqlstate == "42P01"
            assert error.hint is not None and '"warehouse" of [spark]' in error.hint
        (stopped,) = node.wait_for(
            "select error from wal2lake.subscription_errors where subname = 's'"
        )
        assert str(missing.parent / "copied") in str(stopped[0])
        node.stop()

    with Node(
        tmp_path / "two", settings={**settings, "spark.warehouse": str(lake)}
    ) as node:
        node.start()
        follows(node, source, "1c 2b 3d")
        node.sql("commit prepared 'h'")
        node.sql("create table public.new (i int)")
        assert (lake / "public/new/_delta_log").is_dir()
        assert node.sql("select * from own") == [("1", "before, after")]
        assert node.sql("select * from late") == [("4",)]
        assert decoded(node)[: len(before)] == before
        node.sql("drop subscription s")
