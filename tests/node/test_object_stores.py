"""A whole node whose warehouse is in an object store: copy, changes, queries, local writes.

The servers are moto, Azurite and ``gcsserver``, with the settings of [store] in the node's
environment; credentials for Google are printed by a command. What the
tables hold is read by delta-rs, too, as another program would.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator

import deltalake
import pyarrow as pa
import pytest
from tests.conftest import Database
from tests.fakes.objectstores import (
    GCS_TOKEN,
    Server,
    azure_server,
    closed_gcs_server,
    gcs_account,
    s3_server,
)
from tests.node.conftest import create

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

TABLES = ("lake.item", "lake.note", 'lake."Übrige Dinge"')

SECONDS = 180.0

SERVERS = [
    pytest.param(s3_server, id="s3"),
    pytest.param(azure_server, id="azure", marks=pytest.mark.slow),
    pytest.param(closed_gcs_server, id="google", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with an empty bucket."""
    with request.param() as found:
        yield found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Node]:
    """A node with its warehouse there."""
    found = Node(
        tmp_path_factory.mktemp("store") / "data",
        settings={
            "spark.warehouse": f"{server.url}/tables/",
            "spark.driver_memory": "1g",
            "store.endpoint": server.endpoint,
            **{f"store.{name}": value for name, value in server.config},
        },
    )
    with found:
        yield found.init().start()
        assert found.stop() == 0


def secret_of(server: Server) -> str:
    """The secret by which the server knows the node."""
    config = dict(server.config)
    return config.get("secret_access_key") or config.get("account_key") or GCS_TOKEN


def read_by_delta_rs(server: Server, path: str) -> Counter[tuple[object, ...]]:
    """The rows of a table as delta-rs reads them with plain options."""
    options = {"endpoint": server.endpoint, "allow_http": "true", **dict(server.config)}
    if server.url.startswith("gs:"):
        options = {"google_service_account_key": gcs_account(server.endpoint)}
    if server.url.startswith("abfss:"):
        options["account_name"] = server.path.strip("/")
    table = deltalake.DeltaTable(f"{server.url}/tables/{path}", storage_options=options)
    rows = deltalake.QueryBuilder().register("t", table).execute("select * from t")
    found = pa.table(rows.read_all()).to_pylist()
    return Counter(tuple(row.values()) for row in found)


@pytest.fixture
def mirror(pg18: Database, node: Node) -> Iterator[Mirror]:
    """Tables of the source, and a subscription that has copied them."""
    pg18.psql(
        "create schema lake;"
        " create table lake.item (id int primary key, n int, v text);"
        " create table lake.note (a int, b text);"
        " alter table lake.note replica identity full;"
        ' create table lake."Übrige Dinge" ("Nr. 1" int primary key, "%20" text);'
        " insert into lake.item select i, i % 7, md5(i::text)"
        "  from generate_series(1, 20000) i;"
        " insert into lake.note select i % 3, 'n' from generate_series(1, 30) i;"
        " insert into lake.\"Übrige Dinge\" values (1, 'eins');"
        " create publication stores for tables in schema lake"
    )
    create(node, pg18, "stores")
    mirror = Mirror(node, pg18.conninfo(), "stores")
    mirror.synced(SECONDS)
    yield mirror
    node.sql("drop subscription stores")
    node.sql(f"drop table {', '.join(TABLES)}")


def test_a_node_whose_warehouse_is_in_an_object_store(
    pg18: Database, server: Server, node: Node, mirror: Mirror
) -> None:
    pg18.psql(
        "update lake.item set n = n + 1 where id % 50 = 7;"
        " delete from lake.item where id % 50 = 8;"
        " insert into lake.item values (30000, 0, 'new');"
        " delete from lake.note where ctid = (select min(ctid) from lake.note);"
        ' update lake."Übrige Dinge" set "%20" = \'uno\', "Nr. 1" = 2'
    )
    mirror.caught_up(SECONDS)
    # Spark reads these.
    assert node.sql(
        "select n, count(*), max(v) from lake.item group by n order by n"
    ) == [
        tuple(map(str, row))
        for row in mirror_rows(
            pg18, "select n, count(*), max(v) from lake.item group by n order by n"
        )
    ]
    mirror.assert_equal(TABLES)
    source = {
        (int(row[0]), int(row[1]), row[2])
        for row in mirror_rows(pg18, "select id, n, v from lake.item")
    }
    assert read_by_delta_rs(server, "lake/item") == Counter(source)

    # ---- statements of clients, plain ones and those by Spark
    node.sql("create table own (id int primary key, v text)")
    with node.connect() as session:
        session.rows("begin")
        session.rows("insert into own values (1, 'a'), (2, 'b'), (3, 'd')")
        session.rows("update own set v = upper(v) || id where id < 3")
        session.rows("delete from own where id = 2")
        session.rows("commit")
    node.sql("insert into own select id + 100, v from lake.item where id < 4")
    assert node.sql("select id, v from own where id < 100 order by id") == [
        ("1", "A1"),
        ("3", "d"),
    ]
    assert node.sql("select count(*) from own o join lake.item i on i.v = o.v") == [
        ("3",)
    ]
    node.sql("drop table own")

    # ---- secrets
    secret = secret_of(server)
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True)
    assert secret.encode() not in shown.stdout
    assert secret not in node.log_text()
    for path in node.directory.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


def mirror_rows(source: Database, sql: str) -> list[tuple[str, ...]]:
    """Rows of the source, as text."""
    return [tuple(line.split("|")) for line in source.psql(sql).splitlines()]


@pytest.mark.slow
def test_a_killed_node_goes_on_in_an_object_store(
    pg18: Database, node: Node, mirror: Mirror
) -> None:
    for number in range(6):
        pg18.psql(
            f"update lake.item set n = n + 1 where id % 6 = {number};"
            f" insert into lake.note values ({number}, 'again')"
        )
        node.kill("engine" if number % 2 else "tree")
        if number % 2 == 0:
            node.start()
    mirror.caught_up(SECONDS)
    mirror.assert_equal(TABLES)
