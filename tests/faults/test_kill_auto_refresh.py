"""SIGKILL at each durable step of auto_refresh: the next look does the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

HISTORY = "select tablename, change from wal2lake.schema_history order by noted_at"


@pytest.mark.slow
def test_a_node_that_dies_while_tables_join_or_are_copied_again(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    pg18.psql(
        "create table public.a (id int primary key, v int);"
        " insert into public.a select i, i from generate_series(1, 50) i;"
        " create publication k for all tables"
    )
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())}"
        " publication k with (auto_refresh = true)"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()

    def killed(point: str, sql: str) -> None:
        arm(points, point, "kill-tree")
        pg18.psql(sql)
        node.wait_end()
        assert not (points / point).exists(), f"{point} was not reached"
        pg18.psql("update public.a set v = v + 1 where id < 10")
        node.start()

    def holds(*tables: str) -> None:
        node.wait_for(
            "select count(*) from pg_subscription_rel where srsubstate = 'r'",
            lambda rows: rows == [(str(len(tables)),)],
        )
        mirror.caught_up()
        mirror.synced()
        mirror.assert_equal(tables)

    def table(name: str) -> str:
        return (
            f"create table public.{name} (id int primary key, v int);"
            f" insert into public.{name} select i, i from generate_series(1, 30) i"
        )

    # Its files are there, and nobody knows it: the next look takes it over.
    killed("refresh.targets_made", table("b"))
    holds("public.a", "public.b")
    killed("refresh.recorded", table("c"))
    holds("public.a", "public.b", "public.c")
    killed("auto_refresh.recorded", f"drop table public.c; {table('c')}")
    holds("public.a", "public.b", "public.c")
    killed("auto_refresh.recorded", "drop table public.c")
    holds("public.a", "public.b")
    assert node.sql("select count(*) from c") == [("30",)]
    assert node.sql(HISTORY) == [
        ("b", "published"),
        ("c", "published"),
        ("c", "dropped and created again at the publisher"),
        ("c", "no longer published"),
    ]
