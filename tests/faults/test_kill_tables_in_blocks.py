"""SIGKILL at each durable step of the commit of a block that makes, drops and writes tables: all of
it is done, or nothing, and no files are left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wal2lake.catalog import Catalog
from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

# Where it is killed, how, and whether the transaction is committed then.
STEPS = [
    ("local.made_tables_written", "kill", False),
    ("local.defined", "kill-tree", True),
]
MORE_STEPS = [
    ("local.files_carried", "kill-tree", False),
    ("local.made_tables_written", "kill-tree", False),
    ("local.defined", "kill", True),
    ("local.tables_committed", "kill", True),
    ("local.published", "kill", True),
]


def places(node: Node) -> tuple[set[str], set[str]]:
    """The tables' places, and those in the warehouse that have files."""
    warehouse = node.directory / "warehouse"
    catalog = Catalog(node.directory / "catalog.sqlite")
    try:
        base = f"{catalog.warehouse}/"
        named = {location.removeprefix(base) for location in catalog.locations()}
        assert catalog.pending_deletes() == {}
        assert catalog.local_commits() == []
    finally:
        catalog.close()
    logs = warehouse.glob("*/*/_delta_log")
    return named, {str(log.parent.relative_to(warehouse)) for log in logs}


@pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.slow)]
)
def test_sigkill_leaves_all_of_a_block_or_nothing(
    lend_node: Callable[[Path], Node],
    tmp_path: Path,
    steps: list[tuple[str, str, bool]],
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    node.sql("create table kept (id int primary key)")
    node.sql("create table gone (id int)")
    node.sql("select pg_create_logical_replication_slot('d', 'test_decoding')")
    state = (
        "select string_agg(relname, ' ' order by relname) from pg_class"
        " where relnamespace = 'public'::regnamespace and relkind = 'r'"
    )
    for step, action, committed in steps:
        before = node.sql("select count(*) from kept"), node.sql(state)
        with node.connect() as session:
            session.rows("begin")
            session.rows("create table one (id serial, v text)")
            session.rows("insert into one (v) values ('a'), ('b')")
            session.rows("create table two (id int)")
            session.rows("insert into two values (7)")
            session.rows("insert into kept select 1 + count(*) from kept")
            session.rows("drop table gone")
            session.rows("create table gone (id int, again int)")
            session.rows("insert into gone values (1, 2)")
            node.sql(
                "select count(*) from pg_logical_slot_get_changes('d', null, null)"
            )
            arm(points, step, action)
            with pytest.raises(PublisherError):
                session.rows("commit")
        assert not (points / step).exists(), f"{step} was not reached"
        if action == "kill-tree":
            node.wait_end()
            node.start()
        node.wait_for("select 1")
        wait_until(lambda: (both := places(node))[0] == both[1])
        told = node.sql("select data from pg_logical_slot_get_changes('d', null, null)")
        changes = [str(data) for (data,) in told if str(data).startswith("table")]
        if not committed:
            after = node.sql("select count(*) from kept"), node.sql(state)
            assert after == before, step
            assert changes == [], step
            continue
        assert node.sql("select id, v from one order by id") == [("1", "a"), ("2", "b")]
        assert node.sql("select * from two") == [("7",)]
        assert node.sql("select * from gone") == [("1", "2")]
        assert len(changes) == 5, step
        assert node.sql("insert into one (v) values ('c') returning id") == [("3",)]
        node.sql("drop table one")
        node.sql("drop table two")
