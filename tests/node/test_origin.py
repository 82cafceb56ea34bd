"""The option origin: a publisher that is itself a subscriber of another database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client, Failure
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

COPIED_FROM_ELSEWHERE = (
    'subscription "og" requested copy_data with origin = NONE but might copy data that had'
    " a different origin",
    'The subscription being created subscribes to a publication ("og") that contains tables'
    " that are written to by other subscriptions.",
)


@pytest.fixture
def elsewhere(
    pg18: Database, database: Callable[[int], Database]
) -> Iterator[Database]:
    """Where ``pg18`` has the rows of og.t from, until after the test."""
    origin = database(18)
    origin.psql(
        "create schema og; create table og.t (id int primary key);"
        " insert into og.t values (1); create publication og for table og.t"
    )
    origin.psql("select pg_create_logical_replication_slot('upstream', 'pgoutput')")
    pg18.psql("create schema og; create table og.t (id int primary key)")
    pg18.psql("create publication og for table og.t")
    pg18.psql(
        f"create subscription upstream connection {quote_literal(origin.conninfo())}"
        " publication og with (create_slot = false)"
    )
    yield origin
    pg18.psql("alter subscription upstream disable")
    pg18.psql("alter subscription upstream set (slot_name = none)")
    pg18.psql("drop subscription upstream")


@pytest.fixture
def warnings(node: Node) -> Iterator[Callable[[str], list[tuple[str, str | None]]]]:
    """Run a statement at the node; the texts and details of its warnings. Subscription
    and schema ``og`` go after the test."""

    def run(sql: str) -> list[tuple[str, str | None]]:
        told: list[Failure] = []
        with Client(node.conninfo(), on_notice=told.append) as client:
            client.rows(sql)
        return [(n.message, n.detail) for n in told if n.severity == "WARNING"]

    yield run
    node.sql("drop subscription if exists og")
    node.sql("drop schema if exists og cascade")


def create(source: Database, options: str) -> str:
    return (
        f"create subscription og connection {quote_literal(source.conninfo())}"
        f" publication og with ({options})"
    )


def test_origin_none_takes_what_began_at_the_publisher_and_any_takes_all(
    elsewhere: Database,
    pg18: Database,
    node: Node,
    warnings: Callable[[str], list[tuple[str, str | None]]],
) -> None:
    wait_until(lambda: pg18.psql("select id from og.t") == "1")
    assert warnings(create(pg18, "origin = NONE")) == [COPIED_FROM_ELSEWHERE]
    assert node.value("select suborigin from pg_subscription") == "none"
    mirror = Mirror(node, pg18.conninfo(), "og")
    mirror.synced()
    mirror.assert_equal(["og.t"])

    def arrives_here(number: int) -> None:
        elsewhere.psql(f"insert into og.t values ({number})")
        wait_until(lambda: str(number) in pg18.psql("select id from og.t").split())

    arrives_here(2)
    pg18.psql("insert into og.t values (3)")
    mirror.caught_up()
    assert node.sql("select id from og.t order by id") == [("1",), ("3",)]
    # Known tables are not copied again: nothing to warn of.
    assert warnings("alter subscription og refresh publication") == []

    assert warnings("alter subscription og set (origin = any)") == []
    assert node.value("select suborigin from pg_subscription") == "any"
    wait_until(
        lambda: (
            "origin 'any'"
            in pg18.psql(
                "select query from pg_stat_activity where application_name = 'og'"
                " and query like 'START_REPLICATION%'"
            )
        ),
        timeout_seconds=60,
    )
    arrives_here(4)
    mirror.caught_up()
    assert node.sql("select id from og.t order by id") == [("1",), ("3",), ("4",)]


def test_without_a_copy_or_with_any_origin_there_is_nothing_to_warn_of(
    elsewhere: Database,
    pg18: Database,
    node: Node,
    warnings: Callable[[str], list[tuple[str, str | None]]],
) -> None:
    wait_until(lambda: pg18.psql("select id from og.t") == "1")
    assert warnings(create(pg18, "origin = none, copy_data = false")) == []
    node.sql("drop subscription og")
    assert warnings(create(pg18, "origin = any")) == []


def test_a_publisher_that_does_not_know_origins_is_refused_in_its_words(
    database: Callable[[int], Database], node: Node
) -> None:
    source = database(15)
    source.psql("create publication og")
    with pytest.raises(PublisherError) as caught:
        node.sql(create(source, "origin = none"))
    error = caught.value
    assert (error.sqlstate, error.message) == (
        "0A000",
        "unrecognized pgoutput option: origin",
    )
    assert error.detail == "The publisher is older than PostgreSQL 16."
    assert node.sql("select 1 from pg_subscription where subname = 'og'") == []
    assert source.psql("select count(*) from pg_replication_slots") == "0"
