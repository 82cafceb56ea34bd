"""SIGKILL at each durable step of ALTER TABLE: the definition and the rows are those of before, or
those of afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.testing.node import Node

STEPS = [
    ("alter.recorded", "kill", False),
    ("alter.committed", "kill-tree", True),
]
MORE_STEPS = [
    ("alter.written_anew", "kill-tree", False),
    ("lake.committed", "kill", True),
    ("alter.published", "kill", True),
    ("alter.recorded", "kill-tree", False),
]

COLUMNS = (
    "select string_agg(attname, ',') from pg_attribute a join pg_class c"
    " on c.oid = a.attrelid where relname = 't' and attnum > 0"
)


@pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.slow)]
)
def test_sigkill_at_each_step_leaves_one_definition(
    lend_node: Callable[[Path], Node],
    tmp_path: Path,
    steps: list[tuple[str, str, bool]],
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    node.sql(
        "create table t (id int primary key, v0 int,"
        " g0 int generated always as (id * 0) stored)"
    )
    node.sql("insert into t select i, i from generate_series(1, 10) i")
    done = 0
    for step, action, altered in steps:
        new = done + 1
        statement = (
            f"alter table t drop v{done}, drop g{done}, add v{new} int default {new},"
            f" add g{new} int generated always as (id * {new}) stored"
        )
        with node.connect() as session:
            arm(points, step, action)
            with pytest.raises(PublisherError):
                session.rows(statement)
        assert not (points / step).exists(), f"{step} was not reached"
        if action == "kill-tree":
            node.wait_end()
            node.start()
        node.wait_for("select 1")
        assert list((node.directory / "warehouse").glob("_transactions/*/*")) == []
        if not altered:
            assert node.value(COLUMNS) == f"id,v{done},g{done}"
            node.sql(statement)
        done = new
        assert node.value(COLUMNS) == f"id,v{done},g{done}"
        assert node.sql(f"select count(*), sum(v{done}), sum(g{done}) from t") == [
            ("10", str(10 * done), str(55 * done))
        ]
        node.sql(f"insert into t values ({10 + done}, {done})")
        node.sql(f"delete from t where id = {10 + done}")
