"""A whole node on a cluster whose machines share nothing but a store: tables, log, staged changes.

A master and two workers of Spark's own, started here, and moto's server, Azurite or the tests' own
of Google. Everything of the node is in a directory that is hidden from the workers, as it would be
on other machines; a file with a key is outside of it, as each worker must find it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.objectstores import (
    Server,
    azure_server,
    keyed_gcs_server,
    s3_server,
)
from tests.node.conftest import create

from wal2lake.lake.store import store_at
from wal2lake.testing.cluster import SETTINGS, Cluster, hides
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

TABLES = ("cs.item", "cs.note")

LARGE = 300_000
"""Changes of a batch that the engine does not convert itself."""

SECONDS = 300.0
"""For a machine that has more to do than this."""


@pytest.fixture(
    params=[
        pytest.param(s3_server, id="s3"),
        pytest.param(azure_server, id="azure"),
        pytest.param(keyed_gcs_server, id="google"),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with an empty bucket."""
    with request.param() as server:
        yield server


def settings_of(server: Server, master: str, **conf: str) -> dict[str, object]:
    """Settings of a node on a cluster."""
    pairs = ", ".join(
        f'"{name}" = "{value}"' for name, value in {**SETTINGS, **conf}.items()
    )
    return {
        "spark.master": master,
        "spark.warehouse": f"{server.url}/tables",
        "spark.driver_memory": "1g",
        "spark.conf": f"{{ {pairs} }}",
        "apply.upsert_bytes": 8 << 20,
        "subscription.copy_range_bytes": 1 << 20,
        "store.endpoint": server.endpoint,
        **{f"store.{name}": value for name, value in server.config},
    }


@pytest.fixture
def node(private: Path, cluster: Cluster, server: Server) -> Iterator[Node]:
    events = private / "events"
    events.mkdir()
    conf = {
        "spark.cores.max": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    found = Node(private / "data", settings=settings_of(server, cluster.url, **conf))
    with found:
        found.init().start(wait=False).wait_ready(SECONDS)
        yield found
        assert found.stop() == 0


def secret_of(server: Server) -> str:
    """What nothing may show."""
    config = dict(server.config)
    if "credentials_file" in config:
        key = json.loads(Path(config["credentials_file"]).read_text())["private_key"]
        return str(key.splitlines()[1])
    return config.get("secret_access_key") or config["account_key"]


def staged(server: Server) -> list[str]:
    """Files of changes that wait for their commit."""
    store = store_at(f"{server.url}/tables-log", server.options())
    assert store is not None
    return list(store.list_below("staging", lambda folder: True))


@pytest.mark.slow
def test_a_node_on_a_cluster_that_shares_only_the_store(
    pg18: Database, private: Path, server: Server, cluster: Cluster, node: Node
) -> None:
    assert hides()
    pg18.psql(
        "create schema cs;"
        " create table cs.item (id int primary key, n int, v text);"
        " create table cs.note (a int, b text);"
        " alter table cs.note replica identity full;"
        " insert into cs.item select i, i % 7, repeat(md5(i::text), 2)"
        "  from generate_series(1, 60000) i;"
        " insert into cs.note select i % 3, 'n' from generate_series(1, 30) i;"
        " create publication cs for tables in schema cs"
    )
    create(node, pg18, "cs")
    mirror = Mirror(node, pg18.conninfo(), "cs")
    mirror.synced(SECONDS)

    # ---- queries and statements whose files executors read and write
    assert node.sql(
        "select n, count(*) from cs.item group by n order by n limit 1"
    ) == [("0", "8571")]
    node.sql("create table own (id int primary key, v text)")
    node.sql("insert into own select id, upper(v) from cs.item where id <= 1000")
    node.sql("update own set v = v || id where id < 500")
    assert node.sql("select count(*) from own where v like '%499'") == [("1",)]

    # ---- a transaction that is streamed, and one that is not; the node dies while executors work
    pg18.transactions(
        [
            f"insert into cs.item select i, 0, 'e' || i"
            f"  from generate_series(100001, {100_000 + LARGE}) i;"
            " update cs.item set v = reverse(v) where id <= 60000;"
            " delete from cs.item where id between 30000 and 31000",
            "update cs.note set b = b || 'x' where ctid = (select min(ctid) from cs.note)",
        ]
    )
    wait_until(
        lambda: staged(server),
        timeout_seconds=SECONDS,
        describe="executors have written changes for the driver",
    )
    node.kill("tree")
    pg18.psql("update cs.item set n = n + 1 where id % 10 = 0")
    node.start(wait=False).wait_ready(SECONDS)
    mirror.caught_up(SECONDS)
    mirror.assert_equal(TABLES)
    assert not staged(server)
    methods = node.sql("select method from wal2lake.apply_methods")
    assert ("upsert",) in methods

    # ---- nothing that shows Spark's settings has the key
    secret = secret_of(server)
    logs = [*(private / "events").iterdir(), *cluster.directory.glob("*.log")]
    assert logs
    for path in logs:
        files = [path] if path.is_file() else path.iterdir()
        assert not any(secret in file.read_text(errors="replace") for file in files)
    node.sql("drop subscription cs")


@pytest.mark.slow
def test_a_node_on_a_cluster_of_one_machine(pg18: Database, private: Path) -> None:
    """Spark's ``local-cluster``: executors are processes of their own, as on other machines."""
    pg18.psql(
        "create schema cs;"
        " create table cs.item (id int primary key, n int, v text);"
        " insert into cs.item select i, i % 7, repeat(md5(i::text), 2)"
        "  from generate_series(1, 60000) i;"
        " create publication cs for tables in schema cs"
    )
    with (
        s3_server() as server,
        Node(
            private / "data", settings=settings_of(server, "local-cluster[2,1,1024]")
        ) as node,
    ):
        node.init().start(wait=False).wait_ready(SECONDS)
        create(node, pg18, "cs")
        mirror = Mirror(node, pg18.conninfo(), "cs")
        mirror.synced(SECONDS)
        node.sql("create table own (id int primary key, v text)")
        node.sql("insert into own select id, upper(v) from cs.item where id <= 1000")
        node.sql("update own set v = v || id where id < 500")
        assert node.sql("select count(*) from own where v like '%499'") == [("1",)]
        pg18.transactions(
            [
                f"insert into cs.item select i, 0, 'e' || i"
                f"  from generate_series(100001, {100_000 + LARGE}) i;"
                " update cs.item set v = reverse(v) where id <= 60000"
            ]
        )
        mirror.caught_up(SECONDS)
        mirror.assert_equal(["cs.item"])
        assert not staged(server)
        node.sql("drop subscription cs")
        assert node.stop() == 0
