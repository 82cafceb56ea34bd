"""A whole node that registers its tables in AWS Glue, as moto's server has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from tests.fakes.objectstores import Server

from wal2lake.testing.node import Node
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

CREDENTIALS = '{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "the-secret"}'

SECONDS = 120.0


@pytest.fixture
def client(s3: Server) -> Iterator[Any]:
    """Another program."""
    client = boto3.client(
        "glue",
        endpoint_url=f"http://127.0.0.1:{s3.port}",
        region_name="eu-central-1",
        aws_access_key_id="them",
        aws_secret_access_key="x",
    )
    yield client
    client.close()


def columns(client: Any, name: str) -> list[tuple[str, str]] | None:
    try:
        table = client.get_table(DatabaseName="lake_public", Name=name)["Table"]
    except client.exceptions.EntityNotFoundException:
        return None
    storage = table["StorageDescriptor"]
    return [(column["Name"], column["Type"]) for column in storage["Columns"]]


def states(node: Node) -> list[tuple[str | None, ...]]:
    return node.sql("select tablename, state from wal2lake.catalog_tables order by 1")


@pytest.mark.slow
def test_glue_follows_the_tables_through_an_outage(
    tmp_path: Path, s3: Server, client: Any
) -> None:
    settings = {
        "spark.driver_memory": "1g",
        "catalog.type": "glue",
        "catalog.credentials_command": f"echo '{CREDENTIALS}'",
        "catalog.region": "eu-central-1",
        "catalog.prefix": "lake_",
        "catalog.interval_ms": "200",
    }
    with TcpProxy("127.0.0.1", s3.port) as proxy:
        settings["catalog.uri"] = f"http://127.0.0.1:{proxy.port}"
        with Node(tmp_path / "data", settings=settings) as node:
            node.init().start()
            node.sql("create table towns (id int primary key, name text)")
            wait_until(lambda: columns(client, "towns"), timeout_seconds=SECONDS)
            assert columns(client, "towns") == [("id", "int"), ("name", "string")]
            node.sql("alter table towns add column people bigint")
            wait_until(
                lambda: len(columns(client, "towns") or ()) == 3,
                timeout_seconds=SECONDS,
            )

            # ---- an outage, in which a table goes and another one comes
            proxy.refuse()
            proxy.cut()
            node.sql("drop table towns")
            node.sql("create table lakes (id int)")
            problems = "select message from wal2lake.problems where kind = 'catalog'"
            wait_until(lambda: node.sql(problems), timeout_seconds=SECONDS)
            assert states(node) == [("lakes", "pending"), ("towns", "leaving")]
            node.sql("insert into lakes values (1)")
            assert node.sql("select id from lakes") == [("1",)]
            assert node.stop() == 0
            proxy.accept()
            node.start()
            wait_until(lambda: columns(client, "lakes"), timeout_seconds=SECONDS)
            wait_until(
                lambda: states(node) == [("lakes", "registered")],
                timeout_seconds=SECONDS,
            )
            assert columns(client, "towns") is None
            assert node.sql(problems) == []
            assert "the-secret" not in node.log_text()
            assert node.stop() == 0
