"""``wal2lake backup`` that is killed, and backups beside VACUUM and writers."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder

from wal2lake.cli.backup.manifest import read_manifest
from wal2lake.observe.failpoints import arm
from wal2lake.testing.node import COMMAND, Node, run_cli

SETTINGS = {
    "node.authentication": "trust",
    "lake.retention_ms": 0,
    "lake.orphan_age_ms": 60_000,
    "lake.vacuum_interval_ms": 0,
}


def rows_of(root: Path) -> list[tuple[int, int]]:
    found = QueryBuilder().register("t", DeltaTable(str(root)))
    rows = found.execute("select id, v from t").read_all()
    return sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


@pytest.mark.slow
def test_backups_beside_vacuum_and_after_a_kill(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    environ = {"WAL2LAKE_FAILPOINTS": str(points)}
    node = make_node(settings=SETTINGS).start()
    for table in ("a", "b"):
        node.sql(
            f"create table {table} (id int primary key, v int) with"
            " (\"delta.checkpointInterval\" = '4')"
        )
        node.sql(f"insert into {table} select i, 0 from generate_series(1, 50) i")
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.wait(0.05):
            number += 1
            node.sql(
                f"begin; update a set v = {number}; update b set v = {number}; commit"
            )

    def vacuum() -> None:
        while not ended.wait(0.1):
            node.sql("vacuum")

    threads = [threading.Thread(target=act) for act in (write, vacuum)]
    for thread in threads:
        thread.start()
    try:
        for step in ("backup.linked", "backup.file_copied"):
            killed = tmp_path / step
            arm(points, step, "kill")
            done = run_cli(
                "backup", "-D", node.directory, "--to", killed, environ=environ
            )
            assert done.returncode == -9, done.stderr
            assert list(node.directory.rglob(".wal2lake-backup*"))
            done = run_cli("restore", killed, "-D", tmp_path / "none")
            assert done.returncode == 1
            assert "has no complete backup" in done.stderr
            assert not (tmp_path / "none").exists()

        # One that is ended leaves nothing.
        arm(points, "backup.file_copied", "pause 30")
        ending = subprocess.Popen(
            [*COMMAND, "backup", "-D", node.directory, "--to", tmp_path / "ended"],
            env={**os.environ, **environ},
        )
        while (points / "backup.file_copied").exists():
            assert ending.poll() is None
        ending.terminate()
        assert ending.wait(60) == 130
        assert not (tmp_path / "ended").exists()
        assert not list(node.directory.rglob(".wal2lake-backup*"))

        values = []
        for number in range(3):
            backup = tmp_path / f"backup{number}"
            # VACUUM goes on for a second between the first links and the moment.
            arm(points, "backup.linked", "pause 1")
            done = run_cli(
                "backup", "-D", node.directory, "--to", backup, environ=environ
            )
            assert done.returncode == 0, done.stderr
            assert set(read_manifest(backup).versions) == {"public/a", "public/b"}
            a = rows_of(backup / "warehouse/public/a")
            assert a == rows_of(backup / "warehouse/public/b")
            assert [row[0] for row in a] == list(range(1, 51))
            assert len({row[1] for row in a}) == 1
            values.append(a[0][1])
        assert values == sorted(set(values)), "each is of a later moment"
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    node.stop()
    done = run_cli("restore", backup, "-D", tmp_path / "restored")
    assert done.returncode == 0, done.stderr
    with Node(tmp_path / "restored", settings=SETTINGS) as restored:
        restored.start()
        shown = [(str(i), str(v)) for i, v in a]
        assert restored.sql("select * from a order by id") == shown
        restored.sql("begin; update a set v = -1; update b set v = -1; commit")
        assert restored.sql("select distinct v from a") == [("-1",)]
        restored.sql("vacuum")
        assert restored.sql("select * from b where v <> -1") == []
