"""A whole node whose warehouse is in S3: copy, changes, queries of both kinds, local writes.

The server is moto, with the settings of [store] in the node's environment. What the tables hold is
read by delta-rs, too, as another program would.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator

import deltalake
import pyarrow as pa
import pytest
from tests.conftest import Database
from tests.fakes.objectstores import BUCKET, Server, s3_server
from tests.node.conftest import create

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

TABLES = ("s3.item", "s3.note", 's3."Übrige Dinge"')

SECRET = "the-secret-of-the-store"

SECONDS = 180.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An S3 server with an empty bucket."""
    with s3_server() as found:
        yield found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Node]:
    """A node with its warehouse there."""
    directory = tmp_path_factory.mktemp("s3") / "data"
    found = Node(
        directory,
        settings={
            "spark.warehouse": f"s3://{BUCKET}/tables/",
            "spark.driver_memory": "1g",
            "store.endpoint": f"http://127.0.0.1:{server.port}",
            "store.region": "eu-central-1",
            "store.access_key_id": "key",
            "store.secret_access_key": SECRET,
        },
    )
    with found:
        yield found.init().start()
        assert found.stop() == 0


def read_by_delta_rs(server: Server, path: str) -> Counter[tuple[object, ...]]:
    """The rows of a table as delta-rs reads them with plain options."""
    table = deltalake.DeltaTable(
        f"s3://{BUCKET}/tables/{path}",
        storage_options={
            "endpoint": f"http://127.0.0.1:{server.port}",
            "allow_http": "true",
            "region": "eu-central-1",
            "access_key_id": "key",
            "secret_access_key": SECRET,
        },
    )
    rows = deltalake.QueryBuilder().register("t", table).execute("select * from t")
    found = pa.table(rows.read_all()).to_pylist()
    return Counter(tuple(row.values()) for row in found)


@pytest.fixture
def mirror(pg18: Database, node: Node) -> Iterator[Mirror]:
    """Tables of the source, and a subscription that has copied them."""
    pg18.psql(
        "create schema s3;"
        " create table s3.item (id int primary key, n int, v text);"
        " create table s3.note (a int, b text);"
        " alter table s3.note replica identity full;"
        ' create table s3."Übrige Dinge" ("Nr. 1" int primary key, "%20" text);'
        " insert into s3.item select i, i % 7, md5(i::text)"
        "  from generate_series(1, 20000) i;"
        " insert into s3.note select i % 3, 'n' from generate_series(1, 30) i;"
        " insert into s3.\"Übrige Dinge\" values (1, 'eins');"
        " create publication s3 for tables in schema s3"
    )
    create(node, pg18, "s3")
    mirror = Mirror(node, pg18.conninfo(), "s3")
    mirror.synced(SECONDS)
    yield mirror
    node.sql("drop subscription s3")
    node.sql(f"drop table {', '.join(TABLES)}")


def test_a_node_whose_warehouse_is_in_s3(
    pg18: Database, server: Server, node: Node, mirror: Mirror
) -> None:
    pg18.psql(
        "update s3.item set n = n + 1 where id % 50 = 7;"
        " delete from s3.item where id % 50 = 8;"
        " insert into s3.item values (30000, 0, 'new');"
        " delete from s3.note where ctid = (select min(ctid) from s3.note);"
        ' update s3."Übrige Dinge" set "%20" = \'uno\', "Nr. 1" = 2'
    )
    mirror.caught_up(SECONDS)
    # Spark reads these.
    assert node.sql(
        "select n, count(*), max(v) from s3.item group by n order by n"
    ) == [
        tuple(map(str, row))
        for row in mirror_rows(
            pg18, "select n, count(*), max(v) from s3.item group by n order by n"
        )
    ]
    mirror.assert_equal(TABLES)
    source = {
        (int(row[0]), int(row[1]), row[2])
        for row in mirror_rows(pg18, "select id, n, v from s3.item")
    }
    assert read_by_delta_rs(server, "s3/item") == Counter(source)

    # ---- statements of clients, plain ones and those by Spark
    node.sql("create table own (id int primary key, v text)")
    with node.connect() as session:
        session.rows("begin")
        session.rows("insert into own values (1, 'a'), (2, 'b'), (3, 'd')")
        session.rows("update own set v = upper(v) || id where id < 3")
        session.rows("delete from own where id = 2")
        session.rows("commit")
    node.sql("insert into own select id + 100, v from s3.item where id < 4")
    assert node.sql("select id, v from own where id < 100 order by id") == [
        ("1", "A1"),
        ("3", "d"),
    ]
    assert node.sql("select count(*) from own o join s3.item i on i.v = o.v") == [
        ("3",)
    ]
    node.sql("drop table own")

    # ---- secrets
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True)
    assert SECRET.encode() not in shown.stdout
    assert SECRET not in node.log_text()
    for path in node.directory.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def mirror_rows(source: Database, sql: str) -> list[tuple[str, ...]]:
    """Rows of the source, as text."""
    return [tuple(line.split("|")) for line in source.psql(sql).splitlines()]


@pytest.mark.slow
def test_a_killed_node_goes_on_in_s3(
    pg18: Database, node: Node, mirror: Mirror
) -> None:
    for number in range(6):
        pg18.psql(
            f"update s3.item set n = n + 1 where id % 6 = {number};"
            f" insert into s3.note values ({number}, 'again')"
        )
        node.kill("engine" if number % 2 else "tree")
        if number % 2 == 0:
            node.start()
    mirror.caught_up(SECONDS)
    mirror.assert_equal(TABLES)
