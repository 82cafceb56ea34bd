"""SIGKILL while deleted rows are marked: each deletion is one mark, with its transaction's time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.conftest import FAST_RETRY, Database
from tests.fakes.audited import AUDIT, KEYED, KEYLESS, TABLES, audit, noted, transaction
from tests.fakes.failpoints import wait_reached
from tests.fakes.softened import expected_keyed, expected_keyless, found

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

STEPS = ("apply.staged", "apply.table_committed", "apply.tables_committed")


@pytest.mark.slow
def test_sigkill_at_each_step_marks_each_deleted_row_once(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        f"{TABLES} {AUDIT} {audit('public.k', 'public.u')}"
        " create publication s for table k, u"
    )
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    node.sql(
        f"create subscription s connection {quote_literal(pg18.conninfo())} publication s"
        " with (delete_mode = soft, history = 'kept')"
    )
    mirror = Mirror(node, pg18.conninfo(), "s")
    mirror.synced()
    k = [tuple(row) for row in node.sql("select id, a, big from k")]
    u = [tuple(row) for row in node.sql("select a, b from u")]
    rng = random.Random(13)
    with psycopg.connect(pg18.conninfo(), autocommit=True) as source:
        for step in STEPS:
            arm(points, step, "kill-tree")
            source.execute(
                "begin; delete from k where id % 3 = 0; delete from u where a = 1;"
                " insert into u values (1, 'x'); commit"
            )
            for _ in range(12):
                source.execute(transaction(rng))
            source.execute(
                "begin; truncate k, u; insert into k values (3, 3, 'again'); commit"
            )
            wait_reached(node, points, step)
            node.wait_end()
            source.execute(transaction(rng))
            node.start()
            mirror.caught_up()
            for table, columns, expected in (
                ("k", KEYED, expected_keyed(k, noted(pg18, "k"))),
                ("u", KEYLESS, expected_keyless(u, noted(pg18, "u"))),
            ):
                here = found(node, f"public.{table}", f"kept.{table}", columns)
                assert here == expected, (step, table)
