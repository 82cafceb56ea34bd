"""What the tests of this layer share: psql at the node, subscriptions that are removed, a native
subscriber, an S3 server, a cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.objectstores import Server, s3_server

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.cluster import Cluster
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import find_installation

Psql = Callable[..., subprocess.CompletedProcess[str]]
"""``psql(conninfo, *arguments, stdin="", program=None, **environment)``: run PostgreSQL's own
client."""


@pytest.fixture(scope="session")
def psql() -> Psql:
    """PostgreSQL 18's psql (or ``program``), without the caller's own settings."""
    newest = find_installation(18).bin / "psql"

    def run(
        conninfo: str,
        *arguments: str,
        stdin: str = "",
        program: str | None = None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        return subprocess.run(
            [
                program or newest,
                "-X",
                "-w",
                "-P",
                "pager=off",
                "-d",
                conninfo,
                *arguments,
            ],
            input=stdin,
            env={**own, "LC_ALL": "C", "PGCLIENTENCODING": "UTF8", **environment},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    return run


Subscribe = Callable[..., Mirror]
"""``subscribe(source, name, options="")``"""


@pytest.fixture
def subscriber(node: Node) -> Node:
    """The node that ``subscribe`` is about; a module with a node of its own says so."""
    return node


@pytest.fixture
def subscribe(subscriber: Node) -> Iterator[Subscribe]:
    """Subscribe to a publication of the subscription's name; it goes after the test, and so
    does the schema of that name."""
    made: list[str] = []

    def go(source: Database, name: str, options: str = "") -> Mirror:
        made.append(name)
        create(subscriber, source, name, options)
        return Mirror(subscriber, source.conninfo(), name)

    yield go
    for name in made:
        subscriber.sql(f"drop subscription if exists {name}")
        subscriber.sql(f"drop schema if exists {name} cascade")


@pytest.fixture
def peer(database: Callable[[int], Database]) -> Iterator[Database]:
    """A native subscriber's database."""
    subscriber = database(18)
    yield subscriber
    # It could not be dropped with its subscription.
    for name in subscriber.psql("select subname from pg_subscription").splitlines():
        subscriber.psql(f"drop subscription {name}")


@pytest.fixture
def s3() -> Iterator[Server]:
    """An S3 server with an empty bucket."""
    with s3_server() as server:
        yield server


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """What only the node's machine has."""
    directory = tmp_path / "private"
    directory.mkdir()
    return directory


@pytest.fixture
def cluster(tmp_path: Path, private: Path) -> Iterator[Cluster]:
    """A cluster of Spark's own, whose workers do not see ``private``."""
    with Cluster(tmp_path / "cluster", hidden=private) as running:
        yield running


def answers(psql: Callable[[str], str], sql: str, expected: str) -> bool:
    """Whether a server's answer is this one."""
    return psql(sql).strip() == expected


def refused(node: Node, sql: str) -> tuple[str | None, str]:
    """SQLSTATE and message of a statement that must fail."""
    try:
        node.sql(sql)
    except PublisherError as error:
        return error.sqlstate, error.message
    raise AssertionError(f"not refused: {sql}")


def create(node: Node, source: Database, name: str, options: str = "") -> None:
    """CREATE SUBSCRIPTION to a publication of its name."""
    node.sql(
        f"create subscription {name} connection {quote_literal(source.conninfo())}"
        f" publication {name} {options}"
    )
