"""SIGKILL at each durable step of PREPARE TRANSACTION and of what ends it.

Whoever reads the log finds no PREPARE twice, and none without its end; tables have what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.testing.node import Node

GET = "select data from pg_logical_slot_get_changes('s', null, null, 'include-xids', 'off')"

# What is run, and where it is killed.
STEPS = [
    ("prepare", "prepare.recorded"),
    ("prepare", "prepare.logged"),
    ("commit", "commit_prepared.recorded"),
    ("rollback", "rollback_prepared.recorded"),
]
MORE_STEPS = [
    ("prepare", "local.files_carried"),
    ("prepare", "capture.sealed"),
    ("commit", "local.table_committed"),
    ("commit", "commit_prepared.published"),
    ("rollback", "rollback_prepared.logged"),
]


@pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.slow)]
)
def test_sigkill_at_each_step_leaves_what_is_prepared_or_its_end(
    lend_node: Callable[[Path], Node], tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    node.sql("create table a (id int primary key, v int)")
    node.sql("create table b (id int primary key)")
    node.sql("insert into a values (0, 0)")
    node.sql(
        "select * from pg_create_logical_replication_slot('s', 'test_decoding', false, true)"
    )
    committed = []
    for number, (verb, step) in enumerate(steps, 1):
        write = (
            f"begin; insert into a values ({number}, 0); update a set v = v + 1 where id = 0;"
            f" insert into b values ({number}); prepare transaction '{step}'"
        )
        end = f"{verb} prepared '{step}'"
        if verb != "prepare":
            node.sql(write)
            committed += [number] if verb == "commit" else []
        arm(points, step, "kill")
        with pytest.raises(PublisherError):
            node.sql(write if verb == "prepare" else end)
        assert not (points / step).exists(), f"{step} was not reached"
        node.wait_for("select 1")
        assert node.sql("select gid from pg_prepared_xacts") == [], step
        # The tables are free, and have all of it or nothing.
        node.sql(f"insert into b values ({-number})")
    expected = [(str(number),) for number in committed]
    assert node.sql("select id from a where id > 0 order by 1") == expected
    assert node.sql("select v from a where id = 0") == [(str(len(committed)),)]
    assert node.sql("select id from b where id > 0 order by 1") == expected
    rows = [str(row[0]) for row in node.sql(GET)]
    for number, (verb, step) in enumerate(steps, 1):
        prepared = rows.count(f"PREPARE TRANSACTION '{step}'")
        ended = [row for row in rows if row.endswith(f" PREPARED '{step}'")]
        assert prepared == len(ended) <= 1, (step, rows)
        if verb != "prepare":
            assert ended == [f"{verb.upper()} PREPARED '{step}'"]
        sent = rows.count(f"table public.b: INSERT: id[integer]:{number}")
        assert sent == prepared
        assert f"table public.b: INSERT: id[integer]:{-number}" in rows
