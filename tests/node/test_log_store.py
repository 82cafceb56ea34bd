"""A node whose machine may be lost: log and catalog are in S3, and nothing else stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.failpoints import wait_reached
from tests.fakes.objectstores import BUCKET, s3_server
from tests.node.conftest import create

from wal2lake.catalog import Catalog
from wal2lake.cli.restore.rewriting import with_value
from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node, run_cli
from wal2lake.testing.waits import wait_until

SECONDS = 240.0

TABLES = ("kept.item", "kept.note")


def configure(directory: Path, port: int) -> None:
    """Write the settings into the file, which goes to the store with the catalog."""
    path = directory / "wal2lake.toml"
    text = path.read_text()
    for section, name, value in (
        ("spark", "warehouse", f"s3://{BUCKET}/tables"),
        ("spark", "driver_memory", "1g"),
        ("log", "confirm", "store"),
        ("store", "endpoint", f"http://127.0.0.1:{port}"),
        ("store", "region", "eu-central-1"),
        ("store", "access_key_id", "key"),
        ("store", "secret_access_key", "secret"),
    ):
        text = with_value(text, section, name, value)
    path.write_text(text)


def stored(port: int) -> dict[str, str]:
    """What init --from has to be told: the settings are in the store."""
    return {
        "WAL2LAKE_STORE_ENDPOINT": f"http://127.0.0.1:{port}",
        "WAL2LAKE_STORE_REGION": "eu-central-1",
        "WAL2LAKE_STORE_ACCESS_KEY_ID": "key",
        "WAL2LAKE_STORE_SECRET_ACCESS_KEY": "secret",
    }


def back(directory: Path, port: int) -> str:
    shutil.rmtree(directory)
    url = f"s3://{BUCKET}/tables-log"
    done = run_cli("init", "-D", directory, "--from", url, environ=stored(port))
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_stored(directory: Path) -> bool:
    """Whether the last image has what matters of the catalog."""
    catalog = Catalog(directory / "catalog.sqlite")
    state = json.loads((directory / "run" / "archive.state").read_text())
    return bool(catalog.images.digest() == state["digest"])


@pytest.mark.slow
def test_a_node_whose_directory_is_deleted_goes_on_from_its_store(
    pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    pg18.psql(
        "create schema kept;"
        " create table kept.item (id int primary key, n int, v text);"
        " create table kept.note (a int, b text);"
        " alter table kept.note replica identity full;"
        " insert into kept.item select i, i % 7, md5(i::text)"
        "  from generate_series(1, 5000) i;"
        " create publication kept for tables in schema kept"
    )
    node = Node(tmp_path / "data", environ={VARIABLE: str(points)})
    with s3_server() as server, node:
        node.init()
        configure(node.directory, server.port)
        node.start()
        create(node, pg18, "kept")
        mirror = Mirror(node, pg18.conninfo(), "kept")
        mirror.synced(SECONDS)
        node.sql("create role reader login password 'r'")
        node.sql("create table own (id serial primary key, v text)")
        node.sql("insert into own (v) values ('a'), ('b')")
        pg18.psql(
            "update kept.item set n = n + 1 where id % 50 = 7;"
            " insert into kept.note select i, 'n' from generate_series(1, 500) i"
        )
        mirror.caught_up(SECONDS)
        wait_until(
            lambda: is_stored(node.directory),
            timeout_seconds=SECONDS,
            describe="the catalog is in the store",
        )

        # ---- killed when a segment is in the store, and its position is not confirmed
        arm(points, "archive.segment", "kill-tree")
        pg18.psql("delete from kept.item where id % 50 = 8")
        wait_reached(node, points, "archive.segment")
        node.kill("tree")
        pg18.psql(
            "update kept.item set id = id + 100000 where id % 100 = 9;"
            " delete from kept.note where a < 100"
        )
        told = back(node.directory, server.port)
        assert "1 subscription" in told
        node.start()
        mirror.caught_up(SECONDS)
        mirror.assert_equal(TABLES)
        assert node.sql("select id, v from own order by id") == [("1", "a"), ("2", "b")]
        assert node.sql("select rolname from pg_roles where rolname = 'reader'") == [
            ("reader",)
        ]
        node.sql("insert into own (v) values ('c')")
        assert node.sql("select max(id) > 2, count(*) from own") == [("t", "3")]

        # ---- killed with changes under way; and nothing is wrong afterwards
        pg18.psql(
            "insert into kept.item select i, 0, 'x' from generate_series(200001, 220000) i"
        )
        node.kill("tree")
        back(node.directory, server.port)
        node.start()
        pg18.psql("insert into kept.note values (0, 'last')")
        mirror.caught_up(SECONDS)
        mirror.assert_equal(TABLES)
        assert node.sql("select subname, message from wal2lake.problems") == []
        assert node.stop() == 0
    pg18.psql(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
        " where database = current_database()"
    )
