"""SIGKILL while what a publisher has prepared is handed on: whoever reads the node's log finds each
PREPARE once and its end once, and the rows of each transaction once as committed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.failpoints import wait_reached

from wal2lake.observe.failpoints import arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

# What is run, and where the node is killed.
STEPS = [
    ("prepare", "capture.sealed"),
    ("rollback", "spool.removed"),
]
MORE_STEPS = [
    ("commit", "capture.sealed"),
    ("prepare", "spool.checkpoint_renamed"),
    ("commit", "apply.table_committed"),
    ("commit", "capture.read"),
    ("rollback", "capture.sealed"),
]

GET = "select data from pg_logical_slot_{0}_changes('s', null, null, 'include-xids', 'off')"


def committed(lines: list[str]) -> list[str]:
    """The rows of what has committed, in this order; nothing is left prepared."""
    prepared: dict[str, list[str]] = {}
    found: list[str] = []
    rows: list[str] = []
    for line in lines:
        step = re.fullmatch(r"(\w+) (?:PREPARED|TRANSACTION) '(.*)'", line)
        if line == "BEGIN":
            rows = []
        elif line == "COMMIT":
            found += rows
        elif step is None:
            rows.append(line)
        elif step[1] == "PREPARE":
            assert step[2] not in prepared, lines
            prepared[step[2]] = rows
        elif step[1] == "COMMIT":
            found += prepared.pop(step[2])
        else:
            prepared.pop(step[2])
    assert prepared == {}, lines
    return found


@pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.slow)]
)
def test_sigkill_at_each_step_tells_each_prepare_and_its_end_once(
    lend_node: Callable[[Path], Node],
    pg18: Database,
    tmp_path: Path,
    steps: list[tuple[str, str]],
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create table one (id int primary key); create table two (id int primary key);"
        " create publication k for table one, two"
    )
    node = lend_node(points)
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
        " with (two_phase = true)"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    node.wait_for(
        "select subtwophasestate from pg_subscription", lambda r: r == [("e",)]
    )
    node.sql(
        "select pg_create_logical_replication_slot('s', 'test_decoding', false, true)"
    )

    def told(step: str, count: int) -> None:
        node.wait_for(
            GET.format("peek"),
            lambda rows: sum(str(row[0]).startswith(step) for row in rows) == count,
        )

    wanted = []
    for number, (verb, step) in enumerate(steps, 1):
        gid = f"{pg18.name}_{number}"
        write = (
            f"begin; insert into one values ({number}); insert into two values ({number});"
            f" update one set id = -id where id = {number}; prepare transaction '{gid}'"
        )
        end = f"{'rollback' if verb == 'rollback' else 'commit'} prepared '{gid}'"
        if verb != "prepare":
            pg18.psql(write)
            told("PREPARE", number)
        arm(points, step, "kill-tree")
        pg18.psql(write if verb == "prepare" else end)
        wait_reached(node, points, step)
        node.wait_end()
        node.start()
        if verb == "prepare":
            told("PREPARE", number)
            pg18.psql(end)
        if verb != "rollback":
            wanted.append(number)
        # Whatever comes behind it finds its rows free.
        pg18.psql(f"insert into two values ({-number})")
        mirror.caught_up()
    mirror.assert_equal(["public.one", "public.two"])
    told("ROLLBACK PREPARED", sum(verb == "rollback" for verb, _ in steps))
    lines = [str(row[0]) for row in node.sql(GET.format("get"))]
    assert sum(line.startswith("PREPARE") for line in lines) == len(steps)
    rows = committed(lines)
    for number in range(1, len(steps) + 1):
        count = int(number in wanted)
        assert rows.count(f"table public.one: INSERT: id[integer]:{number}") == count
        assert rows.count(f"table public.two: INSERT: id[integer]:{number}") == count
        assert rows.count(f"table public.two: INSERT: id[integer]:{-number}") == 1
