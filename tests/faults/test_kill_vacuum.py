"""SIGKILL in the middle of VACUUM: every state that is still listed reads, and the next VACUUM does
the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

STEPS = ("vacuum.file_removed",)
MORE_STEPS = ("vacuum.files_removed", "vacuum.commit_removed")


def rows_outside(root: Path, version: int) -> int:
    found = (
        QueryBuilder()
        .register("t", DeltaTable(str(root), version=version))
        .execute("select count(*) as n from t")
        .read_all()
    )
    return int(found["n"][0].as_py())


@pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(MORE_STEPS, marks=pytest.mark.slow)]
)
def test_sigkill_at_each_step_leaves_versions_that_read(
    make_node: Callable[..., Node], tmp_path: Path, steps: tuple[str, ...]
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    settings = {
        "lake.retention_ms": 0,
        "lake.orphan_age_ms": 1000,
        "lake.vacuum_interval_ms": 0,
    }
    environ = {"WAL2LAKE_FAILPOINTS": str(points)}
    node = make_node(settings=settings, environ=environ).start()
    node.sql(
        "create table t (id int) with (\"delta.checkpointInterval\" = '4')",
    )
    root = node.directory / "warehouse" / "public" / "t"
    for step in steps:
        for number in range(4):
            node.sql(f"insert into t values ({number})")
            node.sql(f"delete from t where id = {number}")
        node.sql("insert into t values (-1)")
        kept = DeltaTable(str(root)).version()
        rows = rows_outside(root, kept)
        arm(points, step, "kill")

        def killed(step: str = step) -> bool:
            try:
                node.sql("vacuum t")
            except PublisherError:
                return not (points / step).exists()
            return False

        wait_until(killed, timeout_seconds=60)
        node.wait_for("select 1")
        assert DeltaTable(str(root)).version() == kept
        assert rows_outside(root, kept) == rows
        assert node.sql("select count(*) from t") == [(str(rows),)]
        node.sql("vacuum t")
        assert rows_outside(root, kept) == rows
    node.sql("insert into t values (100)")
    assert node.sql("select count(*) from t") == [(str(rows + 1),)]


@pytest.mark.slow
def test_what_a_killed_node_has_left_goes(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """Files of a transaction that was killed between writing and committing them."""
    points = tmp_path / "points"
    points.mkdir()
    settings = {
        "lake.retention_ms": 3_600_000,
        "lake.orphan_age_ms": 1000,
        "lake.vacuum_interval_ms": 0,
    }
    environ = {"WAL2LAKE_FAILPOINTS": str(points)}
    node = make_node(settings=settings, environ=environ).start()
    node.sql("create table a (id int)")
    node.sql("create table b (id int)")
    root = node.directory / "warehouse" / "public" / "a"
    arm(points, "local.files_carried", "kill-tree")
    with pytest.raises(PublisherError):
        node.sql("begin; insert into a values (1); insert into b values (1); commit")
    node.wait_end()
    node.start()
    assert list(root.glob("*.parquet"))

    def gone() -> bool:
        node.sql("vacuum")
        return not list(root.glob("*.parquet"))

    wait_until(gone, timeout_seconds=30)
    node.sql("insert into a values (2)")
    assert node.sql("select * from a") == [("2",)]
