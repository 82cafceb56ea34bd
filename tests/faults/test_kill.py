"""SIGKILL at each durable step, then equality: nothing lost, nothing twice, never torn."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.failpoints import wait_reached
from tests.fakes.outside import assert_equal_outside

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.workload import BALANCE, SCHEMA, TABLES, Workload

RECEIVING = (
    "journal.appended",
    "journal.synced",
    "segment.file_written",
    "segment.manifest_written",
    "segment.manifest_renamed",
    "feedback.sent",
    "apply.staged",
    "log.trimmed",
)
APPLYING = (
    "lake.files_synced",
    "lake.committed",
    "apply.table_committed",
    "apply.tables_committed",
    "apply.vector_recorded",
)
"""Durable steps of a running subscription. Those of ``APPLYING`` end the engine, which takes
longer to come back than a receiver."""

COPYING = (
    "copy.snapshot_taken",
    "copy.range_recorded",
    "copy.committed",
    "copy.state_written",
)
"""Durable steps of a copy."""

COMMITTING = (
    "lake.files_synced",
    "lake.committed",
    "lake.commit_synced",
    "apply.vector_recorded",
)
"""Those of its commit, and of its table's way to the readers."""


def start(
    lend_node: Callable[[Path], Node],
    points: Path,
    source: Database,
    rows: int,
    *,
    seed: int,
) -> tuple[Node, Workload]:
    """A node whose failpoints can be armed, and a filled source; each test has a ``seed`` of
    its own, and thus another workload."""
    node = lend_node(points)
    workload = Workload(seed)
    source.psql(SCHEMA)
    source.transactions(list(workload.initial(rows)))
    source.psql("create publication k for all tables")
    return node, workload


@pytest.mark.parametrize(
    ("steps", "seed"), [(RECEIVING, 7), (APPLYING, 8)], ids=["receiver", "engine"]
)
def test_sigkill_at_each_durable_step_of_streaming(
    lend_node: Callable[[Path], Node],
    pg18: Database,
    tmp_path: Path,
    steps: tuple[str, ...],
    seed: int,
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node, workload = start(lend_node, points, pg18, 300, seed=seed)
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    for name in steps:
        arm(points, name, "kill")
        pg18.transactions([workload.transaction() for _ in range(15)])
        wait_reached(node, points, name)
        pg18.transactions([workload.transaction() for _ in range(5)])
        mirror.caught_up()
        assert node.value(BALANCE) == "0"
    mirror.assert_equal(TABLES)
    assert_equal_outside(node, pg18.conninfo(), TABLES)


def test_sigkill_before_a_position_above_the_log_is_sent(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node, workload = start(lend_node, points, pg18, 30, seed=23)
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    pg18.transactions([workload.transaction()])
    mirror.caught_up()
    for action in ("kill", "enospc", "kill-tree"):
        arm(points, "confirmed.recorded", action)
        # WAL that has nothing for us: the position follows keepalives.
        pg18.psql("create table passing (id int); drop table passing")
        wait_reached(node, points, "confirmed.recorded")
        if action == "kill-tree":
            node.wait_end()
            node.start()
        pg18.transactions([workload.transaction() for _ in range(5)])
        mirror.caught_up()
    mirror.assert_equal(TABLES)
    assert_equal_outside(node, pg18.conninfo(), TABLES)


def test_sigkill_of_the_whole_tree_in_the_middle_of_everything(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node, workload = start(lend_node, points, pg18, 300, seed=41)
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    pg18.transactions([workload.transaction() for _ in range(30)])
    node.kill("tree")
    pg18.transactions([workload.transaction() for _ in range(30)])
    node.start()
    assert node.value(BALANCE) == "0"
    mirror.assert_equal(TABLES)
    assert_equal_outside(node, pg18.conninfo(), TABLES)


@pytest.mark.slow
def test_sigkill_of_the_whole_tree_at_each_durable_step_of_streaming(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    """The other victim: nobody is left to start anything again."""
    points = tmp_path / "points"
    points.mkdir()
    node, workload = start(lend_node, points, pg18, 300, seed=59)
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    for name in (*RECEIVING, *APPLYING, "lake.commit_synced"):
        arm(points, name, "kill-tree")
        pg18.transactions([workload.transaction() for _ in range(15)])
        node.wait_end()
        assert not (points / name).exists(), f"{name} was not reached"
        pg18.transactions([workload.transaction() for _ in range(5)])
        node.start()
        mirror.caught_up()
        assert node.value(BALANCE) == "0"
    mirror.assert_equal(TABLES)
    assert_equal_outside(node, pg18.conninfo(), TABLES)


@pytest.mark.parametrize(
    "steps",
    [COPYING, *(pytest.param((name,), marks=pytest.mark.slow) for name in COPYING)],
    ids=["all", *COPYING],
)
def test_sigkill_at_each_durable_step_of_a_copy(
    steps: tuple[str, ...],
    lend_node: Callable[[Path], Node],
    pg18: Database,
    tmp_path: Path,
) -> None:
    """At all of them one after the other: each step is that of a copy which goes on after a kill
    at the step before."""
    points = tmp_path / "points"
    points.mkdir()
    seed = 83 + COPYING.index(steps[0])
    node, workload = start(lend_node, points, pg18, 3000, seed=seed)
    arm(points, steps[0], "kill")
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
    )
    for name, following in itertools.zip_longest(steps, steps[1:]):
        pg18.transactions([workload.transaction() for _ in range(20)])
        wait_reached(node, points, name)
        if following is not None:
            # It takes seconds until another engine gets there.
            arm(points, following, "kill")
    pg18.transactions([workload.transaction() for _ in range(20)])
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    mirror.assert_equal(TABLES)
    assert_equal_outside(node, pg18.conninfo(), TABLES)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True], ids=["first copies", "recopies"])
@pytest.mark.parametrize("action", ["kill", "kill-tree"])
@pytest.mark.parametrize(
    "steps",
    [COPYING[:2], COPYING[2:], COMMITTING[:2], COMMITTING[2:]],
    ids=["read", "copied", "commit", "committed"],
)
def test_sigkill_in_each_state_of_copies_beside_a_running_stream(
    steps: tuple[str, ...],
    action: str,
    again: bool,
    lend_node: Callable[[Path], Node],
    pg18: Database,
    tmp_path: Path,
) -> None:
    """d with nothing, with a range, in the commit and behind it; f; s. In one node, whose other
    tables stream on (or are copied again, too)."""
    points = tmp_path / "points"
    points.mkdir()
    node, workload = start(lend_node, points, pg18, 1000, seed=97)
    node.sql(
        f"create subscription k connection {quote_literal(pg18.conninfo())} publication k"
    )
    mirror = Mirror(node, pg18.conninfo(), "k")
    mirror.synced()
    tables = list(TABLES)

    def write() -> None:
        pg18.transactions([workload.transaction() for _ in range(10)])
        for name in tables[len(TABLES) :]:
            pg18.psql(f"update {name} set v = v + 1; insert into {name} (v) values (0)")

    for number, name in enumerate(steps):
        refresh = "alter subscription k refresh publication"
        write()
        mirror.caught_up()
        if not again:
            # It is published at once, so from its rows on apply waits for the REFRESH.
            tables.append(f"public.more{number}")
            pg18.psql(
                f"create table more{number} (id serial primary key, v int);"
                f" insert into more{number} (v) select generate_series(1, 500)"
            )
        arm(points, name, action)
        with contextlib.suppress(PublisherError):
            node.sql(f"{refresh} {'with (recopy = true)' if again else ''}")
        wait_reached(node, points, name)
        if action == "kill-tree":
            node.wait_end()
        write()
        if action == "kill-tree":
            node.start()
        node.wait_ready()
        assert node.value(BALANCE) == "0"
        # It may have killed the command, too.
        node.sql(refresh)
        mirror.synced()
        write()
        mirror.assert_equal(tables)
    slots = "select slot_name from pg_replication_slots where database = '{}'"
    assert pg18.psql(slots.format(pg18.name)) == "k"


@pytest.mark.slow
def test_a_table_of_many_ranges_is_copied_through_kills_while_it_is_written(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    pg18.psql(
        "create table wide (id int primary key, v text);"
        " insert into wide select i, repeat('x', 230) || i"
        " from generate_series(1, 25000) i;"
        " create publication k for table wide"
    )
    ranges = int(pg18.psql("select pg_relation_size('wide') / (1 << 20)"))
    assert ranges >= 6
    written, done = threading.Event(), threading.Event()

    def write() -> None:
        for round_ in itertools.count(1):
            pg18.psql(
                f"update wide set v = 'round {round_}' where id % 500 = {round_ % 500};"
                f" delete from wide where id = {round_ * 17};"
                f" insert into wide values ({100_000 + round_}, 'new');"
                f" update wide set id = -id where id = {round_ * 13}"
            )
            written.set()
            if done.wait(0.05):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert written.wait(30)
        arm(points, "copy.range_recorded", "kill")
        node.sql(
            f"create subscription k connection {quote_literal(pg18.conninfo())}"
            " publication k"
        )
        # The point is passed only by a range that was not finished before.
        for again in (True, False):
            wait_reached(node, points, "copy.range_recorded")
            if again:
                arm(points, "copy.range_recorded", "kill")
        mirror = Mirror(node, pg18.conninfo(), "k")
        mirror.synced()
    finally:
        done.set()
        writer.join(60)
    mirror.assert_equal(["public.wide"])
    assert_equal_outside(node, pg18.conninfo(), ("public.wide",))
