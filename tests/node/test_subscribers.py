"""Real subscribers of each major version: what they do from CREATE to DROP SUBSCRIPTION."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.conftest import Database
from tests.node.conftest import answers
from tests.older_postgres import PUBLISHERS

from wal2lake.pg.client import Client, Failure
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

SCHEMA = "sub"

C = (
    "id int primary key, v text, n numeric(8,2), b bytea, f float8, u uuid, j jsonb,"
    " at timestamp, t interval, k text[], i inet, s smallint, o boolean"
)
MORE = (
    "'-Infinity', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\": [1, null]}',"
    " '1999-12-31 23:59:59.000001', '1 day 02:00:00', array['x', null, 'y z'],"
    " '10.0.0.1', -7, true"
)
"""Types with and without a binary form here."""

OPTIONS = {
    14: "binary = true, streaming = on",
    15: "disable_on_error = true",
    16: "origin = none, streaming = parallel, binary = true",
    17: "failover = true, origin = none",
    18: "failover = true, streaming = parallel, origin = none, binary = true",
}
"""What each version has beyond the ones before it."""


@pytest.fixture
def publisher(node: Node) -> Iterator[Node]:
    """The shared node with two published tables."""
    node.sql(f"create schema {SCHEMA}")
    node.sql(f"create table {SCHEMA}.a ({C})")
    node.sql(f"create table {SCHEMA}.b (id bigint primary key, at timestamptz, t date)")
    rows = ", ".join(f"({n}, 'r\t{n}', {n}.5, '\\x00ff', {MORE})" for n in range(300))
    node.sql(f"insert into {SCHEMA}.a values {rows}")
    node.sql(f"create publication subs for table {SCHEMA}.a")
    node.sql("create role subscriber login replication password 'secret'")
    node.sql(f"grant usage on schema {SCHEMA} to subscriber")
    node.sql(f"grant select on {SCHEMA}.a, {SCHEMA}.b to subscriber")
    yield node
    node.sql("drop publication subs")
    for table in "ab":
        node.sql(f"drop table {SCHEMA}.{table}")
    node.sql(f"drop schema {SCHEMA}")
    node.sql("drop role subscriber")


def source(node: Node) -> str:
    """As a role of the node, with its password."""
    facts = dict(one.split("=", 1) for one in node.conninfo().split(" ") if "=" in one)
    port = facts["port"].strip("'")
    return f"host=127.0.0.1 port={port} dbname=lake user=subscriber password=secret"


def equal(node: Node, copy: Database, table: str) -> None:
    sql = f"select * from {SCHEMA}.{table} order by 1"
    wanted = ["|".join(v or "" for v in row) for row in node.sql(sql)]
    wait_until(
        lambda: copy.psql(sql).splitlines() == wanted,
        timeout_seconds=60,
        describe=lambda: (
            f"{table} equal; there: {copy.psql(sql)[-500:]}\n"
            f"{copy.server.log_text()[-3000:]}\n{node.log_text()[-2000:]}"
        ),
    )


@pytest.mark.parametrize(
    "version",
    [
        version
        if version in (14, 18)
        else pytest.param(version, marks=pytest.mark.slow)
        for version in PUBLISHERS
    ],
)
def test_a_subscriber_from_its_creation_to_its_end(
    publisher: Node, database: Callable[[int], Database], version: int
) -> None:
    node, copy = publisher, database(version)
    copy.psql(
        f"create schema {SCHEMA};"
        f" create table {SCHEMA}.a ({C});"
        f" create table {SCHEMA}.b (id bigint primary key, at timestamptz, t date)"
    )
    name = f"sub{version}"
    copy.psql(
        f"create subscription {name} connection"
        f" '{source(node)} options=-cwal_sender_timeout=5min' publication subs"
        f" with ({OPTIONS[version]})"
    )
    equal(node, copy, "a")
    node.sql(
        f"begin; update {SCHEMA}.a set v = 'changed', b = null where id < 10;"
        f" delete from {SCHEMA}.a where id between 20 and 29;"
        f" insert into {SCHEMA}.a values (2000, null, -0.5, '', {MORE}); commit"
    )
    node.sql(f"update {SCHEMA}.a set id = 3000 where id = 2000")
    equal(node, copy, "a")
    # A table that joins.
    node.sql(f"insert into {SCHEMA}.b values (1, '2026-01-01 12:00+00', '2026-02-03')")
    node.sql(f"alter publication subs add table {SCHEMA}.b")
    copy.psql(f"alter subscription {name} refresh publication")
    node.sql(f"insert into {SCHEMA}.b values (2, '2026-12-31 23:59:59.5+00', null)")
    equal(node, copy, "b")
    # A subscriber that was away.
    copy.psql(f"alter subscription {name} disable")
    wait_until(
        lambda: (
            node.sql(
                f"select active from pg_replication_slots where slot_name = '{name}'"
            )
            == [("f",)]
        )
    )
    node.sql(f"truncate {SCHEMA}.b")
    node.sql(f"insert into {SCHEMA}.b values (3, null, null)")
    copy.psql(f"alter subscription {name} enable")
    equal(node, copy, "b")
    found = node.sql(
        "select two_phase, temporary, wal_status from pg_replication_slots"
        f" where slot_name = '{name}'"
    )
    assert found == [("t" if "two_phase" in OPTIONS[version] else "f", "f", "reserved")]
    copy.psql(f"drop subscription {name}")
    assert node.sql("select slot_name from pg_replication_slots") == []


CONDITIONS = (
    "u % 2 = 0.5",
    "f::numeric = 0.1 or f = 'NaN'",
    "u + 1 > 1000000",
    "greatest(u, 2) = 2 and v ~ '^.\\t[1-3]+$' and upper(v collate \"C\") like 'é%'",
)
"""Which Spark does not compute, or not for all values."""


@pytest.mark.parametrize(
    "options", ["", pytest.param(", binary = true", marks=pytest.mark.slow)]
)
def test_what_a_row_filter_lets_through_is_copied_and_streamed(
    publisher: Node, database: Callable[[int], Database], options: str
) -> None:
    node, copy = publisher, database(18)
    columns = "id int primary key, u numeric, f float8, v text"
    tables = [f"{SCHEMA}.c{number}" for number in range(len(CONDITIONS))]
    tables.append(f"{SCHEMA}.parted")
    conditions = [*CONDITIONS, CONDITIONS[0]]
    nan = "'NaN'"
    rows = ", ".join(
        f"({n}, {n % 7}.50, {0.1 if n % 3 else nan}, 'é\t{n}')" for n in range(200)
    )
    more = "(1000, 'NaN', 0.5, null), (1001, null, null, 'v'), (1002, -3.5, 0.1, '')"
    copy.psql(f"create schema {SCHEMA}")
    for table in tables:
        copy.psql(f"create table {table} ({columns})")
        parted = "" if table != tables[-1] else " partition by range (id)"
        node.sql(f"create table {table} ({columns}){parted}")
        if parted:
            node.sql(f"create table {SCHEMA}.leaf partition of {table} default")
        node.sql(f"insert into {table} values {rows}, {more}")
        with Client(source(node)) as client:
            asked = f"select id from {table} where {CONDITIONS[0]}"
            (refused,) = client.run(f"copy ({asked}) to stdout")
            assert isinstance(refused, Failure) and refused.sqlstate == "42501"
        node.sql(f"grant select on {table} to subscriber")
    named = ", ".join(
        f"{table} (id, u, f{', v' if number else ''}) where ({condition})"
        for number, (table, condition) in enumerate(
            zip(tables, conditions, strict=True)
        )
    )
    node.sql(
        f"create publication filtered for table {named}"
        " with (publish = 'insert, truncate', publish_via_partition_root)"
    )

    def same() -> None:
        """As PostgreSQL filters all rows, and what is there."""
        for number, (table, condition) in enumerate(
            zip(tables, conditions, strict=True)
        ):
            all_rows = ", ".join(
                "(" + ", ".join(_quoted(value) for value in row) + ")"
                for row in node.sql(f"select id, u, f, v from {table}")
            )
            chosen = "id, u, f, v" if number else "id, u, f"
            wanted = copy.psql(
                f"select {chosen} from (select id::int, u::numeric, f::float8, v"
                f" from (values {all_rows}) x (id, u, f, v)) y where {condition}"
                " order by id"
            )
            assert wanted
            sql = f"select {chosen} from {table} order by id"
            wait_until(
                partial(answers, copy.psql, sql, wanted.strip()),
                timeout_seconds=60,
                describe=partial(differs, sql, wanted),
            )

    def differs(sql: str, wanted: str) -> str:
        return (
            f"{wanted}\nthere: {copy.psql(sql)}\n"
            f"{copy.server.log_text()[-3000:]}\n{node.log_text()[-2000:]}"
        )

    try:
        copy.psql(
            f"create subscription filtered connection '{source(node)}'"
            f" publication filtered with (slot_name = 'filtered'{options})"
        )
        same()
        for table in tables:
            node.sql(
                f"insert into {table} select id + 5000, u, f, v from {table}"
                " where id < 30"
            )
        same()
    finally:
        copy.psql("drop subscription filtered")
        node.sql("drop publication filtered")
        for table in tables:
            node.sql(f"drop table {table}")


def _quoted(value: str | None) -> str:
    return "null" if value is None else "'" + value.replace("'", "''") + "'"
