"""A transaction that cannot be applied: ALTER SUBSCRIPTION ... SKIP, and disable_on_error.

As PostgreSQL's manual tells it (Conflicts): the error names the finish LSN, which SKIP takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

Subscribe = Callable[..., Mirror]


def finish_lsn(node: Node, name: str) -> str:
    """Of the transaction that the subscription has stopped at."""

    def told(rows: list[tuple[str | None, ...]]) -> bool:
        return any("finished at" in str(row) for row in rows)

    rows = node.wait_for(
        f"select error from wal2lake.subscription_errors where subname = '{name}'", told
    )
    found = re.search(r"finished at ([0-9A-F]+/[0-9A-F]+)", str(rows))
    assert found is not None
    return found[1]


def test_the_transaction_that_an_error_names_is_left_out_whole(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sk; create table sk.t (id int primary key, v text);"
        " create table sk.u (id int primary key);"
        " insert into sk.t values (1, 'copied');"
        " create publication sk for tables in schema sk"
    )
    mirror = subscribe(pg18, "sk")
    mirror.synced()
    node.sql("insert into sk.t values (5, 'ours')")
    pg18.psql("insert into sk.t values (2, 'before')")
    pg18.psql(
        "begin; insert into sk.t values (5, 'theirs'); insert into sk.u values (1); commit"
    )
    pg18.psql("insert into sk.t values (6, 'behind'); insert into sk.u values (2)")
    lsn = finish_lsn(node, "sk")
    assert node.sql("select id from sk.t order by id") == [("1",), ("2",), ("5",)]
    with pytest.raises(PublisherError) as caught:
        node.sql("alter subscription sk skip (lsn = '0/1')")
    assert caught.value.sqlstate == "22023"
    assert "must be greater than origin LSN" in caught.value.message
    node.sql(f"alter subscription sk skip (lsn = '{lsn}')")
    mirror.caught_up()
    assert node.sql("select id, v from sk.t order by id") == [
        ("1", "copied"),
        ("2", "before"),
        ("5", "ours"),
        ("6", "behind"),
    ]
    assert node.sql("select id from sk.u") == [("2",)], "it is left out in every table"
    assert (
        node.value("select subskiplsn from pg_subscription where subname = 'sk'")
        == "0/0"
    )
    for word in ("starts", "completed"):
        assert f"{word} skipping transaction at LSN {lsn}" in node.log_text()
    # What was left out can be met again: still an error, never a second row.
    pg18.psql("update sk.t set v = 'changed' where id = 5")
    mirror.caught_up()
    assert node.value("select v from sk.t where id = 5") == "changed"


def test_a_name_that_is_not_the_next_ones_is_cleared(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sc; create table sc.t (id int primary key);"
        " create publication sc for tables in schema sc"
    )
    mirror = subscribe(pg18, "sc")
    mirror.synced()
    node.sql("alter subscription sc skip (lsn = 'F/0')")
    assert (
        node.value("select subskiplsn from pg_subscription where subname = 'sc'")
        == "F/0"
    )
    node.sql("alter subscription sc skip (lsn = none)")
    assert (
        node.value("select subskiplsn from pg_subscription where subname = 'sc'")
        == "0/0"
    )
    node.sql("alter subscription sc skip (lsn = 'F/0')")
    pg18.psql("insert into sc.t values (1)")
    mirror.caught_up()
    node.wait_for(
        "select subskiplsn from pg_subscription where subname = 'sc'",
        lambda rows: rows == [("0/0",)],
    )
    assert 'skip-LSN of subscription "sc" cleared' in node.log_text()
    mirror.assert_equal(["sc.t"])


def test_an_error_disables_the_subscription_that_asks_for_it(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sd; create table sd.t (id int primary key);"
        " create publication sd for tables in schema sd"
    )
    mirror = subscribe(pg18, "sd", "with (disable_on_error = true)")
    mirror.synced()
    assert (
        node.value("select subdisableonerr from pg_subscription where subname = 'sd'")
        == "t"
    )
    node.sql("insert into sd.t values (1)")
    pg18.psql("insert into sd.t values (1)")
    node.wait_for(
        "select subenabled from pg_subscription where subname = 'sd'",
        lambda rows: rows == [("f",)],
    )
    lsn = finish_lsn(node, "sd")
    assert 'subscription "sd" has been disabled because of an error' in node.log_text()
    assert (
        int(
            str(
                node.value(
                    "select apply_error_count from pg_stat_subscription_stats"
                    " where subname = 'sd'"
                )
            )
        )
        >= 1
    )
    node.wait_for(
        "select pid from pg_stat_subscription where subname = 'sd'",
        lambda rows: rows == [(None,)],
    )
    node.sql(f"alter subscription sd skip (lsn = '{lsn}')")
    node.sql("alter subscription sd enable")
    pg18.psql("insert into sd.t values (2)")
    mirror.caught_up()
    assert node.sql("select id from sd.t order by id") == [("1",), ("2",)]
    node.sql("alter subscription sd set (disable_on_error = false)")
    assert (
        node.value("select subdisableonerr from pg_subscription where subname = 'sd'")
        == "f"
    )
