"""SIGKILL between a publisher and the subscribers of the node: each of its transactions is sent on
once, by itself; where that cannot be, what was torn is told as the tables' differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import FAST_RETRY, Database
from tests.fakes.failpoints import wait_reached

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

STEPS = (
    "apply.table_committed",
    "apply.tables_committed",
    "capture.read",
    "capture.sealed",
)

GET = "select data from pg_logical_slot_get_changes('s', null, null, 'include-xids', 'off')"


def test_sigkill_at_each_step_sends_each_transaction_of_the_source_once(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create table one (id int primary key); create table two (id int primary key);"
        " create publication k for table one, two"
    )
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    node.sql("select pg_create_logical_replication_slot('s', 'test_decoding')")
    number = 0
    for step in STEPS:
        arm(points, step, "kill-tree")
        for _ in range(5):
            number += 1
            pg18.psql(
                f"begin; insert into one values ({number}); insert into two values ({number});"
                f" update one set id = -id where id = {number}; commit"
            )
        wait_reached(node, points, step)
        node.wait_end()
        node.start()
        mirror.caught_up()
    mirror.assert_equal(["public.one", "public.two"])
    sent = "\n".join(str(row[0]) for row in node.sql(GET))
    wanted = "\n".join(
        "BEGIN\n"
        f"table public.one: INSERT: id[integer]:{n}\n"
        f"table public.two: INSERT: id[integer]:{n}\n"
        f"table public.one: UPDATE: old-key: id[integer]:{n} new-tuple: id[integer]:{-n}\n"
        "COMMIT"
        for n in range(1, number + 1)
    )
    assert sent == wanted


def test_a_torn_batch_that_cannot_be_told_as_it_was_sent(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create table one (id int primary key, n int);"
        " create table two (id int primary key, n int);"
        " create publication k for table one, two"
    )
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    # The publisher's identity does not tell the node's.
    node.sql("alter table one replica identity full")
    node.sql("alter table two replica identity full")
    node.sql("select pg_create_logical_replication_slot('s', 'test_decoding')")
    # One of them is late.
    arm(points, "lake.files_synced", "pause 20")
    arm(points, "apply.table_committed", "kill-tree")
    pg18.psql(
        "begin; insert into one values (1, 0), (2, 0); insert into two values (1, 0), (2, 0);"
        " update one set n = 1; update two set n = 1; commit"
    )
    wait_reached(node, points, "apply.table_committed")
    node.wait_end()
    pg18.psql(
        "begin; truncate one, two; insert into one values (9, 9);"
        " insert into two values (9, 9); commit"
    )
    node.start()
    mirror.caught_up()
    mirror.assert_equal(["public.one", "public.two"])
    sent = [str(row[0]) for row in node.sql(GET)]
    for name in ("one", "two"):
        # Which of them was committed alone, and has the first rows, is chance.
        rows: list[str] = []
        for line in sent:
            _, mark, row = line.partition(f"table public.{name}: INSERT: ")
            if mark:
                rows.append(row)
            elif f"public.{name}" in line and "TRUNCATE" in line:
                rows = []
        assert rows == ["id[integer]:9 n[integer]:9"], sent
