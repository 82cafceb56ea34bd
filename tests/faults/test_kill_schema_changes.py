"""SIGKILL while a table is altered as its publisher's: no step is lost, and none made twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.fakes.failpoints import wait_reached

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

ROUND = (
    "alter table t rename a to x; alter table t rename b to a; alter table t rename x to b;"
    " alter table t add c{n} int default {n};"
    " insert into t (id, a) values ({n}, {n}); update t set b = -{n} where id = 1;"
    " truncate w; insert into w values ({n})"
)

STEPS = [
    ("alter.published", "kill"),
    ("schemas.asked", "kill"),
    ("schemas.agreed", "kill"),
]
MORE_STEPS = [
    ("alter.recorded", "kill"),
    ("alter.committed", "kill-tree"),
    ("apply.altered", "kill"),
    ("alter.published", "kill-tree"),
    ("alter.written_anew", "kill"),
]


@pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.slow)]
)
def test_sigkill_at_each_step_of_following_ends_equal(
    make_node: Callable[..., Node],
    pg18: Database,
    tmp_path: Path,
    steps: list[tuple[str, str]],
) -> None:
    """Two columns change places each time: made twice, that would be undone. Another table gets a
    new file node, which changes nothing here."""
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create table t (id int primary key, a int, b int);"
        " insert into t select i, i, 100 + i from generate_series(1, 20) i;"
        " create table w (id int primary key);"
        " create publication k for table t, w"
    )
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())}"
        " publication k with (schema_changes = follow)"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    for n, (step, action) in enumerate(steps, 100):
        arm(points, step, action)
        pg18.transactions([ROUND.format(n=n)])
        wait_reached(node, points, step)
        if action == "kill-tree":
            node.wait_end()
            node.start()
        mirror.caught_up()
        mirror.synced()
        mirror.assert_equal(["public.t", "public.w"])
    # One word of each round, whatever died.
    said = node.sql("select change from wal2lake.schema_history order by lsn")
    assert [row[0] for row in said if str(row[0]).startswith("ADD")] == [
        f'ADD COLUMN "c{n}" integer' for n in range(100, 100 + len(steps))
    ]


ADDED_AT_ONCE = [
    "insert into t (id, a) values ({n}0, 1)",
    "alter table t add x{n} int default 7; insert into t (id, a) values ({n}1, 1)",
    "update t set b = -{n} where id = {n}1",
    "alter table t add y{n} bigint, add z{n} bool default true; delete from t where id = {n}0;"
    " insert into t (id, y{n}) values ({n}2, 5)",
    "alter table t alter x{n} set default 8; insert into t (id) values ({n}3)",
    "insert into t (id, x{n}) values ({n}4, null)",
    "alter table t add u{n} float8; update t set u{n} = id where id > {n}0",
]


@pytest.mark.parametrize(
    "steps",
    [
        ["alter.published"],
        pytest.param(
            ["alter.written_anew", "alter.committed", "apply.altered"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sigkill_while_columns_of_a_backlog_are_added_at_once(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path, steps: list[str]
) -> None:
    """A crash between the table's commit and the record: the rows in between still lack columns
    that the table has, and get what the publisher's rows have."""
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create table t (id int primary key, a int, b int);"
        " insert into t select i, i, 100 + i from generate_series(1, 20) i;"
        " create publication k for table t"
    )
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())}"
        " publication k with (schema_changes = follow)"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    for n, step in enumerate(steps, 10):
        node.sql("alter subscription k disable")
        pg18.transactions([line.format(n=n) for line in ADDED_AT_ONCE])
        arm(points, step, "kill")
        node.sql("alter subscription k enable")
        wait_reached(node, points, step)
        mirror.caught_up()
        mirror.synced()
        mirror.assert_equal(["public.t"])
    history = node.sql(
        "select change, outcome, lsn from wal2lake.schema_history"
        " where change like 'ADD%' order by lsn"
    )
    assert [row[:2] for row in history] == [
        line
        for n in range(10, 10 + len(steps))
        for line in (
            (f'ADD COLUMN "x{n}" integer', "added, with '7' in the rows that are here"),
            (f'ADD COLUMN "y{n}" bigint', "added"),
            (f'ADD COLUMN "z{n}" boolean', "added, with 't' in the rows that are here"),
            (f'ADD COLUMN "u{n}" double precision', "added"),
        )
    ]
    # Each has the transaction in which it came.
    assert len({row[2] for row in history}) == 3 * len(steps)
