"""SIGKILL at each step of storing a prepared transaction, and the machine's directory is lost.

The log's store is a mounted directory. A new directory of the same node goes on each time, and
commits or rolls back what the former one had prepared.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.failpoints import wait_reached
from tests.node.conftest import create

from wal2lake.catalog import Catalog
from wal2lake.cli.restore.rewriting import with_value
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node, run_cli
from wal2lake.testing.waits import wait_until

SECONDS = 240.0

PREPARED = "select count(*) from pg_prepared_xacts"
STATE = "select subtwophasestate from pg_subscription where subname = 'lm'"

# What the source does, and where the node and its directory go.
STEPS = (
    ("prepare transaction 'lm1'", "archive.transaction"),
    ("prepare transaction 'lm2'", "archive.prepared"),
    ("prepare transaction 'lm3'", "archive.segment"),
    ("commit prepared 'lm1'", "archive.prepared"),
    ("rollback prepared 'lm2'", "archive.segment"),
)


def configure(node: Node, place: Path) -> None:
    """Write the settings into the file, which goes to the store with the catalog."""
    path = node.directory / "wal2lake.toml"
    text = path.read_text()
    for section, name, value in (
        ("spark", "warehouse", str(place / "tables")),
        ("log", "store", str(place / "stored")),
        ("log", "confirm", "store"),
    ):
        text = with_value(text, section, name, value)
    path.write_text(text)


def lose_machine(node: Node, place: Path) -> None:
    """Remove the directory, and make one from the store."""
    shutil.rmtree(node.directory)
    done = run_cli("init", "-D", node.directory, "--from", place / "stored")
    assert done.returncode == 0, done.stderr
    node.start()


def is_stored(node: Node) -> bool:
    """Whether the last image has what matters of the catalog."""
    catalog = Catalog(node.directory / "catalog.sqlite")
    state = json.loads((node.directory / "run" / "archive.state").read_text())
    return bool(catalog.images.digest() == state["digest"])


@pytest.mark.slow
def test_prepared_transactions_outlive_the_machine_at_each_step(
    database: Callable[[int], Database], tmp_path: Path
) -> None:
    source = database(18)
    points = tmp_path / "points"
    points.mkdir()
    source.psql(
        "create schema lm; create table lm.t (id int primary key, v text);"
        " insert into lm.t values (0, 'copied'); create publication lm for table lm.t"
    )
    with Node(tmp_path / "data", environ={VARIABLE: str(points)}) as node:
        node.init()
        configure(node, tmp_path)
        node.start()
        create(node, source, "lm", "with (two_phase = true)")
        mirror = Mirror(node, source.conninfo(), "lm")
        mirror.synced(SECONDS)
        node.wait_for(STATE, lambda rows: rows == [("e",)], timeout_seconds=SECONDS)
        mirror.caught_up(SECONDS)
        wait_until(
            lambda: is_stored(node),
            timeout_seconds=SECONDS,
            describe="the catalog is in the store",
        )
        for number, (statement, step) in enumerate(STEPS):
            arm(points, step, "kill-tree")
            if statement.startswith("prepare"):
                # Large enough to have pieces, and a transaction of its own beside it.
                statement = (
                    f"begin; insert into lm.t select {number} * 1000 + i, repeat('x', 300)"
                    f" from generate_series(1, 500) i; {statement}"
                )
            source.psql(statement)
            wait_reached(node, points, step)
            source.psql(f"insert into lm.t values (-{number} - 1, 'meanwhile')")
            node.kill("tree")
            lose_machine(node, tmp_path)
            mirror.caught_up(SECONDS)
            mirror.assert_equal(("lm.t",))
            node.wait_for(PREPARED, [(source.psql(PREPARED),)].__eq__)
        # Lost once more when everything has been confirmed: nothing comes again.
        node.kill("tree")
        lose_machine(node, tmp_path)
        node.wait_for(PREPARED, lambda rows: rows == [("1",)])
        source.psql("commit prepared 'lm3'")
        mirror.caught_up(SECONDS)
        mirror.assert_equal(("lm.t",))
        assert node.value("select count(*) from lm.t") == str(1 + 5 + 2 * 500)
        node.wait_for(PREPARED, lambda rows: rows == [("0",)])
        assert node.sql("select subname, message from wal2lake.problems") == []
        assert node.stop() == 0
    source.psql(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
        " where database = current_database()"
    )
