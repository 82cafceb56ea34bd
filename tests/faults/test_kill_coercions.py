"""SIGKILL at each step of which a coercion's count depends: it is counted once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.failpoints import wait_reached

from wal2lake.observe.failpoints import arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

EVENTS = (
    "select tablename, phase, events from wal2lake.coercions order by tablename, phase"
)
ROWS = 40


@pytest.mark.parametrize(
    ("copying", "streaming"),
    [
        (None, ("apply.tables_committed",)),
        pytest.param("copy.committed", (), marks=pytest.mark.slow),
        pytest.param(
            "copy.range_recorded",
            (
                "apply.staged",
                "lake.committed",
                "apply.table_committed",
                "apply.vector_recorded",
            ),
            marks=pytest.mark.slow,
        ),
        pytest.param("copy.state_written", (), marks=pytest.mark.slow),
    ],
)
def test_a_value_that_was_replaced_is_counted_once_over_sigkill(
    copying: str | None,
    streaming: Sequence[str],
    lend_node: Callable[[Path], Node],
    pg18: Database,
    tmp_path: Path,
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    not_a_number = "select {} + i, 'NaN' from generate_series(1, {}) i"
    pg18.psql(
        "create table a (id int primary key, d numeric(6,2));"
        " create table b (like a including all);"
        f"insert into a {not_a_number.format(0, ROWS)}; create publication p for table a, b"
    )
    if copying is not None:
        arm(points, copying, "kill")
    node.sql(
        f"create subscription p connection {quote_literal(pg18.conninfo())}"
        " publication p with (value_policies = 'numeric = null')"
    )
    if copying is not None:
        wait_reached(node, points, copying)
    mirror = Mirror(node, pg18.conninfo(), "p")
    mirror.synced()
    assert node.sql(EVENTS) == [("a", "copy", str(ROWS))]
    for round_, name in enumerate(streaming, start=1):
        arm(points, name, "kill")
        pg18.psql(
            f"begin; insert into a {not_a_number.format(100 * round_, 3)};"
            f" insert into b {not_a_number.format(100 * round_, 2)}; commit"
        )
        wait_reached(node, points, name)
        # What follows may be applied together with what is repeated.
        pg18.psql(f"insert into b values ({1000 * round_}, 'NaN')")
        mirror.caught_up()
        assert node.sql(EVENTS) == [
            ("a", "copy", str(ROWS)),
            ("a", "stream", str(3 * round_)),
            ("b", "stream", str(3 * round_)),
        ]
    rounds = len(streaming)
    assert node.sql("select count(*), count(d) from a") == [
        (str(ROWS + 3 * rounds), "0")
    ]
