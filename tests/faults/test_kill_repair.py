"""SIGKILL while REPAIR writes rows: nothing has happened, or the rows are right, and another REPAIR
ends with an equal table and a history that has the repair once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.fakes.failpoints import wait_reached

from wal2lake.errors import Wal2LakeError
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

TABLES = """
create table kr (id int primary key, v text);
insert into kr select i, 'v' || i from generate_series(1, 100) i;
create publication kr for table kr;
"""


def verified(node: Node) -> str | None:
    (row,) = node.sql("verify table kr")
    return row[2]


@pytest.mark.slow
def test_sigkill_at_each_step_of_a_repair(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(TABLES)
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    node.sql(
        f"create subscription kr connection {quote_literal(pg18.conninfo())}"
        " publication kr with (history = 'kept')"
    )
    mirror = Mirror(node, pg18.conninfo(), "kr")
    mirror.synced()
    for number, step in enumerate(("repair.staged", "repair.committed"), 1):
        node.sql(f"delete from kr where id = {number}")
        node.sql(f"update kr set v = 'wrong' where id = {number + 50}")
        assert verified(node) == "different"
        arm(points, step, "kill-tree")

        def repair() -> None:
            with pytest.raises(Wal2LakeError):
                node.sql("repair table kr")

        session = threading.Thread(target=repair)
        session.start()
        wait_reached(node, points, step)
        node.wait_end()
        session.join()
        pg18.psql(f"update kr set v = 'next' where id = {number}")
        node.start()
        assert len(node.sql("select * from wal2lake.differences")) == 2
        assert node.sql("repair table kr") == [("kr", "public.kr", "2", "0")]
        assert verified(node) == "equal"
        pg18.psql(f"update kr set v = 'last' where id = {number}")
        mirror.assert_equal(["public.kr"])
        # What the repair has done to the wrong row, once or, when repeated, as no change.
        assert ("wrong", f"v{number + 50}") in node.sql(
            "select old_v, new_v from kept.kr where op = 'update'"
            f" and new_id = {number + 50}"
        )
    node.sql("drop subscription kr")
