"""SIGKILL between a publisher and the subscribers of the node: each of its transactions is sent on
once, by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import FAST_RETRY, Database

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

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
        wait_until(
            lambda at=points / step: not at.exists(),
            timeout_seconds=60,
            describe=f"{step} is reached",
        )
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
