"""SIGKILL between the commit of a table and that of its history: each change is recorded once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.conftest import FAST_RETRY, Database
from tests.fakes.audited import (
    AUDIT,
    KEYED,
    KEYLESS,
    TABLES,
    audit,
    noted,
    recorded,
    transaction,
)
from tests.fakes.failpoints import wait_reached

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

STEPS = (
    "apply.staged",
    "apply.history_waits",
    "apply.table_committed",
    "apply.tables_committed",
    "apply.vector_recorded",
    "apply.history_waits",
)


@pytest.mark.slow
def test_sigkill_at_each_step_records_each_change_once(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        f"{TABLES} {AUDIT} {audit('public.k', 'public.u')}"
        " create publication h for table k, u"
    )
    node = make_node(settings=FAST_RETRY, environ={VARIABLE: str(points)}).start()
    arm(points, "copy.history_waits", "kill-tree")
    node.sql(
        f"create subscription h connection {quote_literal(pg18.conninfo())} publication h"
        " with (history = 'kept')"
    )
    wait_reached(node, points, "copy.history_waits")
    node.wait_end()
    node.start()
    mirror = Mirror(node, pg18.conninfo(), "h")
    mirror.synced()
    assert len(recorded(node, "kept.k", KEYED, ["snapshot"])) == 20
    assert len(recorded(node, "kept.u", KEYLESS, ["snapshot"])) == 9
    rng = random.Random(11)
    with psycopg.connect(pg18.conninfo(), autocommit=True) as source:
        for step in STEPS:
            arm(points, step, "kill-tree")
            source.execute("begin; update k set a = a + 1; update u set a = a; commit")
            for _ in range(12):
                source.execute(transaction(rng))
            source.execute("insert into u values (7, 'last')")
            wait_reached(node, points, step)
            node.wait_end()
            # What comes before the next start belongs to another batch.
            source.execute(transaction(rng))
            node.start()
            mirror.assert_equal(["public.k", "public.u"])
            for table, columns in (("k", KEYED), ("u", KEYLESS)):
                here = recorded(node, f"kept.{table}", columns)
                assert here == noted(pg18, table), (step, table)
