"""One node subscribes to servers of several versions at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

VERSIONS = (14, 15, 17)
"""The others are the publishers of the tests beside this one."""


@pytest.fixture
def sources(
    database: Callable[[int], Database], node: Node
) -> Iterator[dict[int, Database]]:
    """A database on each version; subscriptions ``v<version>`` go after the test."""
    yield {version: database(version) for version in VERSIONS}
    for version in VERSIONS:
        node.sql(f"drop subscription if exists v{version}")
        node.sql(f"drop schema if exists v{version} cascade")


def test_publishers_of_several_versions_are_mirrored_side_by_side(
    sources: dict[int, Database], node: Node
) -> None:
    for version, source in sources.items():
        table = f"v{version}.t"
        source.psql(
            f"create schema v{version}; create type v{version}.mood as enum ('sad', 'ok');"
            f" create table {table} (id int primary key, v text, n numeric(8,2),"
            f" at timestamptz, f float8, m v{version}.mood, tags text[]);"
            f" alter table {table} alter v set storage external;"
            f" insert into {table} select i, repeat('x', 3000) || i, i, now(), i / 10.0,"
            " 'ok', array['a', null, i::text] from generate_series(1, 300) i;"
            f" create publication v{version} for table {table}"
        )
        node.sql(
            f"create subscription v{version} connection"
            f" {quote_literal(source.conninfo())} publication v{version}"
        )
    mirrors = {
        version: Mirror(node, source.conninfo(), f"v{version}")
        for version, source in sources.items()
    }
    for mirror in mirrors.values():
        mirror.synced()
    for version, source in sources.items():
        table = f"v{version}.t"
        source.psql(
            f"begin; insert into {table} values (1000, 'new', 1, null, 'NaN', null, '{{}}');"
            f" update {table} set n = n + 1, m = 'sad' where id < 50; commit;"
            f" update {table} set id = -id where id between 60 and 70;"
            f" delete from {table} where id > 200 and id < 250;"
        )
    for version, mirror in mirrors.items():
        mirror.assert_equal([f"v{version}.t"])
