"""Fixtures of all layers, and the marker of each.

A test's folder is its layer: pure needs nothing; postgres, spark, node and faults are
markers as well. Servers live for the session; every test has a database of its own on them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings as hypothesis_settings
from tests.examples import examples
from tests.older_postgres import PUBLISHERS, Unavailable, installation

from wal2lake.changelog import files
from wal2lake.errors import PublisherError
from wal2lake.launch import is_locked
from wal2lake.observe.failpoints import VARIABLE
from wal2lake.observe.locks import VARIABLE as CHECK_LOCKS
from wal2lake.pg.connection import CONNECT_TIMEOUT
from wal2lake.pg.quoting import quote_literal
from wal2lake.sql.grammar import quote_identifier
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer, available_versions
from wal2lake.testing.waits import wait_until

# Nodes that tests start check the order in which their threads take locks.
os.environ.setdefault(CHECK_LOCKS, "1")

# A busy machine takes longer for an example: that says nothing about it.
hypothesis_settings.register_profile(
    "wal2lake", deadline=None, max_examples=examples(100)
)
hypothesis_settings.load_profile("wal2lake")

LAYERS = ("postgres", "spark", "node", "faults")

FAST_RETRY = {
    "subscription.wal_retrieve_retry_interval_ms": 300,
    # A table that joins a publication is found at once.
    "subscription.auto_refresh_interval_ms": 200,
}
"""Settings of a node whose workers come back soon after they failed."""

LENT_SETTINGS = {
    **FAST_RETRY,
    # The log is trimmed as soon as something is applied.
    "log.history_bytes": 0,
    # A table of some megabytes is copied in several ranges.
    "subscription.copy_range_bytes": 1 << 20,
}
"""Settings of a node that is lent (``lend_node``)."""

QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=400m -Xmn256m"
)
"""Of every JVM of a test: no test runs long enough to earn what the optimising compiler and
the concurrent collector cost it, which is half of a node's CPU time up to its first MERGE.

The quick compiler alone has 48 MB for its code by default. Spark fills 33 MB of them in its
first 30 seconds of CPU time and 58 MB within three minutes; from then on methods would be
thrown away and compiled again. A young generation of the default size is collected about once
per CPU-second, which moves what a statement still needs to the old one."""

os.environ.setdefault(
    "WAL2LAKE_SPARK_CONF", f'{{ "spark.driver.extraJavaOptions" = "{QUICK_JAVA}" }}'
)

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore this process's log, which a test may have set up on a stream that ends with it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that cannot cut the power: there, fsync would only cost time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(files, "sync_data", lambda descriptor: None)


@pytest.fixture(autouse=True)
def the_environment_stays() -> Iterator[None]:
    """What ``limit_connecting`` sets is for its process; here it would be an operator's word
    for every node that is started later."""
    before = os.environ.get(CONNECT_TIMEOUT)
    yield
    if before is None:
        os.environ.pop(CONNECT_TIMEOUT, None)
    else:
        os.environ[CONNECT_TIMEOUT] = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        layer = item.path.relative_to(Path(__file__).parent).parts[0]
        if layer in LAYERS:
            item.add_marker(layer)


@dataclass(frozen=True)
class Database:
    """An empty database on a server that other tests use too."""

    server: PostgresServer
    name: str

    def conninfo(self, **parameters: str) -> str:
        """A libpq connection string."""
        return self.server.conninfo(self.name, **parameters)

    def psql(self, sql: str) -> str:
        """Run statements with psql, each in its own transaction."""
        return self.server.psql(sql, self.name)

    def transactions(self, bodies: Sequence[str]) -> None:
        """Run each of them as a transaction of its own."""
        self.psql("\n".join(f"begin; {body}; commit;" for body in bodies))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[int], PostgresServer]]:
    """The session's server of a major version, started when it is first asked for; fetched
    if it must be, and the test is skipped if that fails."""
    servers: dict[int, PostgresServer] = {}

    def get(version: int) -> PostgresServer:
        if version not in servers:
            try:
                found = installation(version)
            except Unavailable as error:
                pytest.skip(f"NOT TESTED with PostgreSQL {version}: {error}")
            servers[version] = PostgresServer(found)
        return servers[version]

    yield get
    for server in servers.values():
        server.close()


@pytest.fixture
def database(
    postgres_server: Callable[[int], PostgresServer],
) -> Iterator[Callable[..., Database]]:
    """Makes databases on the session's servers; they are dropped after the test."""
    made: list[Database] = []

    def make(version: int, name: str | None = None) -> Database:
        found = Database(postgres_server(version), name or f"test{next(_numbers)}")
        found.server.psql(f"create database {found.name}")
        made.append(found)
        return found

    yield make
    for found in made:
        wait_until(partial(drop, found), describe=f"{found.name} is dropped")


def drop(found: Database) -> bool:
    """Drop a database and its slots; False: somebody still uses them."""
    # A slot keeps its database, and an active one cannot be dropped. A walsender takes a
    # moment to end, and a receiver that still runs comes back.
    mine = f"database = '{found.name}'"
    found.server.psql(
        "select pg_terminate_backend(active_pid) from pg_replication_slots"
        f" where {mine} and active_pid is not null"
    )
    try:
        found.server.psql(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            f" where {mine};"
            f" drop database {found.name} with (force)"
        )
    except RuntimeError:
        return False
    return True


@pytest.fixture
def pg18(database: Callable[[int], Database]) -> Database:
    """An empty database on PostgreSQL 18."""
    return database(18)


@pytest.fixture
def pg16(database: Callable[[int], Database]) -> Database:
    """An empty database on PostgreSQL 16."""
    return database(16)


@pytest.fixture(
    params=sorted({*PUBLISHERS, *available_versions()}),
    ids=lambda version: f"pg{version}",
)
def any_pg(
    request: pytest.FixtureRequest, database: Callable[[int], Database]
) -> Database:
    """An empty database on each version that may be a publisher, and on each other one
    that is here (see WAL2LAKE_TEST_POSTGRES)."""
    return database(request.param)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One running node for all tests that do not harm it; its workers come back soon, and
    its failpoints can be armed (``points``).

    A test takes schemas and subscriptions of its own name and drops what it made.
    """
    directory = tmp_path_factory.mktemp("node")
    (directory / "points").mkdir()
    environ = {VARIABLE: str(directory / "points")}
    with Node(directory / "data", settings=FAST_RETRY, environ=environ) as shared:
        yield shared.init().start()
        assert shared.stop() == 0


@pytest.fixture
def points(node: Node) -> Iterator[Path]:
    """Where failpoints of ``node`` are armed; none is left for the next test."""
    directory = node.directory.parent / "points"
    yield directory
    for path in directory.iterdir():
        path.unlink()


class LentNode(Node):
    """A running node that one test after the other has for itself."""

    def __init__(self, directory: Path) -> None:
        self._points = directory.parent / "points"
        environ = {VARIABLE: str(self._points)}
        super().__init__(directory, settings=LENT_SETTINGS, environ=environ)

    def lend(self, points: Path) -> None:
        """Failpoints are armed in ``points`` from now on; what was logged is forgotten."""
        self._points.unlink(missing_ok=True)
        self._points.symlink_to(points)
        if self.log.exists():
            os.truncate(self.log, 0)

    def take_back(self) -> None:
        """Whatever became of it: it runs, has no subscription, no table, no schema of a test, no
        slot, and no file of a subscription."""
        self._points.unlink(missing_ok=True)
        if not is_locked(self.directory):
            self.start()
        self.wait_for("select 1")
        for (subname,) in self.sql("select subname from pg_subscription"):
            name = quote_identifier(str(subname))
            try:
                self.sql(f"drop subscription {name}")
            except PublisherError:
                # Its publisher is gone, or another.
                self.sql(f"alter subscription {name} disable")
                self.sql(f"alter subscription {name} set (slot_name = none)")
                self.sql(f"drop subscription {name}")
        for (slot,) in self.sql("select slot_name from pg_replication_slots"):
            self.sql(f"select pg_drop_replication_slot({quote_literal(str(slot))})")
        for (gid,) in self.sql("select gid from pg_prepared_xacts"):
            self.sql(f"rollback prepared {quote_literal(str(gid))}")
        for table, schema in self.sql(
            "select c.relname, n.nspname from pg_class c join pg_namespace n"
            " on n.oid = c.relnamespace where c.relkind in ('r', 'p') and"
            " n.nspname not in ('pg_catalog', 'information_schema', 'wal2lake')"
        ):
            qualified = map(quote_identifier, (str(schema), str(table)))
            self.sql(f"drop table {'.'.join(qualified)}")
        for (schema,) in self.sql(
            "select nspname from pg_namespace where nspname not in"
            " ('pg_catalog', 'information_schema', 'wal2lake', 'public')"
            " and nspname not like 'pg\\_%'"
        ):
            self.sql(f"drop schema {quote_identifier(str(schema))} cascade")
        wait_until(
            lambda: (
                not list((self.directory / "log").glob("[0-9]*"))
                and not list((self.directory / "run").glob("*.progress"))
            ),
            describe="nothing is left of the subscriptions",
        )


@pytest.fixture(scope="session")
def idle_node() -> Iterator[list[LentNode]]:
    """The one that no test has at the moment, if there is one."""
    idle: list[LentNode] = []
    yield idle
    for found in idle:
        found.close()


@pytest.fixture
def lend_node(
    idle_node: list[LentNode],
    tmp_path_factory: pytest.TempPathFactory,
    database: object,
) -> Iterator[Callable[[Path], Node]]:
    """``lend_node(points)`` is a running node with ``LENT_SETTINGS`` for a test alone, whose
    failpoints are armed in the directory ``points``. It may be killed.

    A start costs more than most tests, so the next one gets the same node, emptied.
    ``database`` is asked for because a subscription goes before its source.
    """
    lent: list[LentNode] = []

    def lend(points: Path) -> Node:
        if idle_node:
            found = idle_node.pop()
        else:
            found = LentNode(tmp_path_factory.mktemp("lent") / "node")
            found.init()
        lent.append(found)
        found.lend(points)
        return found if is_locked(found.directory) else found.start()

    yield lend
    failed: list[BaseException] = []
    for found in lent:
        try:
            found.take_back()
        except BaseException as error:
            failed.append(error)
            try:
                found.close()
            except BaseException as another:
                failed.append(another)
        else:
            idle_node.append(found)
    if failed:
        for other in failed[1:]:
            failed[0].add_note(f"and: {other!r}")
        raise failed[0]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes nodes of a test's own, to be killed; ``make_node(settings=..., environ=...)``
    is initialised and not yet started."""
    made: list[Node] = []

    def make(**arguments: Any) -> Node:
        found = Node(tmp_path / f"node{len(made) + 1}", **arguments).init()
        made.append(found)
        return found

    yield make
    for found in made:
        found.close()
