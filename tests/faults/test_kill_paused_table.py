"""SIGKILL around the pause of a table, its way back and its copy alone: it stands where it stood,
the others are exactly the source, and so is it in the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.fakes.outside import assert_equal_outside

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

TABLES = ("public.a", "public.b")

STAND = "select stands_at from wal2lake.sync_progress where tablename = 'a'"


class World:
    """A subscription of two tables, each of whose transactions writes both."""

    def __init__(
        self, make_node: Callable[..., Node], source: Database, points: Path
    ) -> None:
        points.mkdir()
        self.points, self.source = points, source
        settings = {**FAST_RETRY, "log.history_bytes": 0, "apply.batch_rows": 10}
        self.node = make_node(
            settings=settings, environ={VARIABLE: str(points)}
        ).start()
        source.psql(
            "create table public.a (id int primary key, v int);"
            " create table public.b (id int primary key, v int);"
            " insert into public.a select i, 0 from generate_series(1, 50) i;"
            " insert into public.b select i, 0 from generate_series(1, 50) i;"
            " create publication k for all tables"
        )
        self.node.sql(
            f"create subscription k connection {quote_literal(source.conninfo())}"
            " publication k"
        )
        self.mirror = Mirror(self.node, source.conninfo(), "k")
        self.mirror.synced()
        self.writes = 0

    def write(self, count: int = 4) -> None:
        bodies = []
        for _ in range(count):
            self.writes += 1
            n, m = self.writes, self.writes % 50 + 1
            bodies.append(
                ";".join(
                    f"insert into {t} values ({1000 + n}, {n});"
                    f" update {t} set v = {n} where id = {m};"
                    f" delete from {t} where id = {995 + n}"
                    for t in TABLES
                )
            )
        self.source.transactions(bodies)

    def ask(self, function: str) -> None:
        self.node.sql(f"select wal2lake.{function}_table('a')")

    def killed(self, name: str, function: str) -> None:
        """The whole tree dies at a step of what a function has set going, and comes back."""
        arm(self.points, name, "kill-tree")
        with contextlib.suppress(PublisherError):
            self.ask(function)
        self.node.wait_end()
        assert not (self.points / name).exists(), f"{name} was not reached"
        self.write(2)
        self.node.start()

    def the_other_goes_on(self) -> None:
        wait_until(
            lambda: not self.mirror.differences(TABLES[1:]),
            describe=lambda: f"b is equal\n{self.node.log_text()[-3000:]}",
        )

    def equal(self) -> None:
        self.mirror.synced()
        self.mirror.assert_equal(TABLES)


def test_sigkill_around_a_pause(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    world = World(make_node, pg18, tmp_path / "points")
    node = world.node
    world.write()
    world.mirror.caught_up()
    world.killed("pause.recorded", "pause")
    at = node.value(STAND)
    assert at is not None
    world.write()
    world.the_other_goes_on()
    assert node.value(STAND) == at
    assert node.value("select count(*) from a where v > 4") == "0"
    # In its second batch of the way back; the first is in the table, and nobody has seen it.
    world.write(8)
    world.the_other_goes_on()
    world.killed("apply.table_committed", "resume")
    world.equal()

    assert_equal_outside(node, pg18.conninfo(), TABLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("resume", "resume.recorded"),
        ("resume", "apply.staged"),
        ("resume", "lake.committed"),
        ("resume", "lake.commit_synced"),
        ("resume", "apply.vector_recorded"),
        ("recopy", "recopy.table_recorded"),
        ("recopy", "copy.snapshot_taken"),
        ("recopy", "copy.range_recorded"),
        ("recopy", "copy.committed"),
        ("recopy", "copy.state_written"),
        ("recopy", "apply.vector_recorded"),
    ],
)
def test_sigkill_at_each_step_of_the_way_back(
    function: str,
    name: str,
    make_node: Callable[..., Node],
    pg18: Database,
    tmp_path: Path,
) -> None:
    world = World(make_node, pg18, tmp_path / "points")
    world.ask("pause")
    world.write()
    world.the_other_goes_on()
    world.killed(name, function)
    world.write()
    world.equal()
    assert_equal_outside(world.node, pg18.conninfo(), TABLES)
