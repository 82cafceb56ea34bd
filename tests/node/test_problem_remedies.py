"""Remedies of problems, run statement by statement as they are written, until the problem ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.node.conftest import Subscribe

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.slow

Row = tuple[str | None, ...]


def follow(node: Node, name: str, kind: str, message: str) -> str:
    """Run the remedy of a problem, then wait until the subscription has no problem. Returns the
    remedy."""
    (row,) = node.wait_for(
        "select remedy from wal2lake.problems"
        f" where subname = '{name}' and kind = '{kind}' and message like '%{message}%'"
    )
    remedy = row[0]
    assert remedy is not None
    for statement in remedy.splitlines():
        node.sql(statement)
    node.wait_for(
        f"select message from wal2lake.problems where subname = '{name}'",
        lambda rows: not rows,
    )
    return remedy


@pytest.fixture
def mirror(pg18: Database, node: Node, subscribe: Subscribe) -> Mirror:
    pg18.psql(
        "create schema rem; create table rem.t (id int primary key, v text, n numeric,"
        " d int[]); insert into rem.t values (1, 'one');"
        " create publication rem for tables in schema rem"
    )
    mirror = subscribe(pg18, "rem")
    mirror.synced()
    return mirror


def test_definitions_that_are_stricter_than_the_source(
    pg18: Database, node: Node, mirror: Mirror
) -> None:
    node.sql("alter table rem.t alter column v set not null")
    pg18.psql("insert into rem.t values (2, null)")
    assert follow(node, "rem", "errored", "not-null constraint") == (
        'ALTER TABLE "rem"."t" ALTER COLUMN v DROP NOT NULL;'
    )
    node.sql("alter table rem.t add constraint small check (n < 10)")
    pg18.psql("insert into rem.t values (3, 'x', 11)")
    assert follow(node, "rem", "errored", "check constraint") == (
        'ALTER TABLE "rem"."t" DROP CONSTRAINT "small";'
    )
    mirror.caught_up()


def test_a_value_that_its_column_cannot_hold(
    pg18: Database, node: Node, mirror: Mirror
) -> None:
    pg18.psql("insert into rem.t values (4, 'x', 1, '{{1,2},{3,4}}')")
    remedy = follow(node, "rem", "errored", "multidimensional")
    assert remedy == (
        "ALTER SUBSCRIPTION \"rem\" SET (value_policies = 'rem.t.d = null');"
    )
    assert node.sql("select d from rem.t where id = 4") == [(None,)]


def test_a_column_that_is_missing(pg18: Database, node: Node, mirror: Mirror) -> None:
    pg18.psql("alter table rem.t add column more int; insert into rem.t values (5)")
    assert follow(node, "rem", "errored", "missing replicated column") == (
        'DROP TABLE "rem"."t";\nALTER SUBSCRIPTION "rem" REFRESH PUBLICATION;'
    )
    mirror.synced()
    mirror.assert_equal(["rem.t"])


def test_a_row_that_is_not_there(pg18: Database, node: Node, mirror: Mirror) -> None:
    node.sql(
        "alter subscription rem set (conflict_resolution = 'delete_missing = error')"
    )
    node.sql("delete from rem.t where id = 1")
    pg18.psql("delete from rem.t where id = 1")
    assert follow(node, "rem", "errored", "delete_missing") == (
        "SELECT wal2lake.recopy_table('\"rem\".\"t\"', 'rem');"
    )
    mirror.synced()


def test_a_slot_that_was_dropped(pg18: Database, node: Node, mirror: Mirror) -> None:
    node.sql("alter subscription rem disable")
    slots = "select count(*) from pg_replication_slots where active"
    wait_until(lambda: pg18.psql(slots).strip() == "0")
    pg18.psql("select pg_drop_replication_slot('rem')")
    pg18.psql("insert into rem.t values (6, 'missed')")
    node.sql("alter subscription rem enable")
    assert follow(node, "rem", "slot_lost", "does not exist") == (
        'ALTER SUBSCRIPTION "rem" REFRESH PUBLICATION WITH (recopy = true);'
    )
    mirror.synced()
    mirror.assert_equal(["rem.t"])


def test_a_table_that_has_rows_before_its_copy(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema rows; create table rows.t (id int primary key);"
        " insert into rows.t values (1);"
        " create publication rows for tables in schema rows"
    )
    node.sql("create schema rows")
    node.sql("create table rows.t (id int primary key)")
    node.sql("insert into rows.t values (1)")
    mirror = subscribe(pg18, "rows")
    assert follow(node, "rows", "table_errored", "cannot be copied") == (
        "SELECT wal2lake.recopy_table('\"rows\".\"t\"', 'rows');"
    )
    mirror.synced()
    mirror.assert_equal(["rows.t"])
