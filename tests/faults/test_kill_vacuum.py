"""SIGKILL in the middle of VACUUM: every state that is still listed reads, and the next VACUUM does
the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

SETTINGS = {
    "lake.retention_ms": 0,
    "lake.orphan_age_ms": 60_000,
    "lake.vacuum_interval_ms": 0,
}

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
    arm(points, "vacuum.ages", "ahead 59")
    environ = {"WAL2LAKE_FAILPOINTS": str(points)}
    node = make_node(settings=SETTINGS, environ=environ).start()
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
    arm(points, "vacuum.ages", "ahead 59")
    settings = {
        "lake.retention_ms": 3_600_000,
        "lake.orphan_age_ms": 60_000,
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


def unnamed(root: Path) -> set[str]:
    """Data files that the newest version does not have."""
    named = {Path(uri).name for uri in DeltaTable(str(root)).file_uris()}
    return {path.name for path in root.rglob("*.parquet")} - named


@pytest.mark.slow
def test_what_a_killed_copy_and_a_killed_batch_have_left_goes(
    pg18: Database, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    points = tmp_path / "points"
    arm(points, "vacuum.ages", "ahead 59")
    settings = {**SETTINGS, "subscription.wal_retrieve_retry_interval_ms": 500}
    environ = {"WAL2LAKE_FAILPOINTS": str(points)}
    node = make_node(settings=settings, environ=environ).start()
    pg18.psql(
        "create table kv (id int primary key, v int);"
        " insert into kv select i, 0 from generate_series(1, 500) i;"
        " create publication kv for table kv"
    )
    root = node.directory / "warehouse" / "public" / "kv"
    arm(points, "copy.range_recorded", "kill")
    conninfo = quote_literal(pg18.conninfo())
    node.sql(f"create subscription kv connection {conninfo} publication kv")
    mirror = Mirror(node, pg18.conninfo(), "kv")
    try:
        wait_until(lambda: not (points / "copy.range_recorded").exists())
        node.wait_for("select 1", timeout_seconds=120)
        # While the copy goes on, what it has written stays.
        node.sql("vacuum kv")
        mirror.synced()
        arm(points, "lake.files_synced", "kill")
        pg18.psql("update kv set v = 1 where id <= 100; insert into kv values (900, 9)")
        wait_until(lambda: not (points / "lake.files_synced").exists())
        node.wait_for("select 1", timeout_seconds=120)
        mirror.caught_up()
        assert unnamed(root), "the batch has left a file"

        def gone() -> bool:
            node.sql("vacuum kv")
            return not unnamed(root)

        wait_until(gone, timeout_seconds=60)
        mirror.assert_equal(["public.kv"])
    finally:
        node.sql("drop subscription kv")
        pg18.psql("drop publication kv; drop table kv")
