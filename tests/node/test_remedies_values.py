"""What hints about values that a column cannot hold say, followed on a whole node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.node.test_remedies import ERROR, stopped

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node


@pytest.mark.slow
def test_each_value_that_does_not_fit_is_taken_after_its_hint(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    """One subscription, stopped by one value after the other."""
    pg18.psql(
        "create schema rv; create table rv.arr (id int primary key, v int[] not null);"
        " create table rv.near (id int primary key, v int not null);"
        " create table rv.nul (id int primary key, v text);"
        " create table rv.key (id bigint primary key, v text);"
        " create table rv.full (id int, v text); alter table rv.full replica identity full;"
        " create table rv.small (id int primary key, v bigint);"
        " create table rv.other (id int primary key, v text);"
        " create publication rv for tables in schema rv"
    )
    node.sql(
        "create schema rv; create table rv.nul (id int primary key, v text not null);"
        " create table rv.full (id int primary key, v text);"
        " create table rv.near (id int primary key, v smallint not null);"
        " create table rv.key (id int primary key, v text);"
        " create table rv.small (id int primary key, v int);"
        " create table rv.other (id int primary key, v interval)"
    )
    mirror = subscribe(pg18, "rv")
    mirror.synced()
    anew = "drop table rv.{0}", "alter subscription rv refresh publication"
    for table, row, hint, remedies in (
        (
            "arr",
            "(1, '{{1,2},{3,4}}')",
            'HINT:  Transactions before this one have been applied. Add "rv.arr.v = string"'
            " to type_mappings (ALTER SUBSCRIPTION ... SET), drop the table here and run"
            " ALTER SUBSCRIPTION ... REFRESH PUBLICATION: it is created with a text column,"
            " and copied.",
            (
                "alter subscription rv set (type_mappings = 'rv.arr.v = string')",
                *anew,
            ),
        ),
        (
            "near",
            "(1, 70000)",
            'Add "rv.near.v = clamp" (the nearest value, if there is one) to value_policies'
            " (ALTER SUBSCRIPTION ... SET);",
            ("alter subscription rv set (value_policies = 'rv.near.v = clamp')",),
        ),
        (
            "nul",
            "(1, null)",
            "ALTER TABLE ... ALTER COLUMN v DROP NOT NULL here lets it go on",
            ("alter table rv.nul alter column v drop not null",),
        ),
        (
            "key",
            "(5000000000, 'a')",
            'Add "rv.key.id = string" to type_mappings',
            (
                "alter subscription rv set (type_mappings ="
                " 'rv.arr.v = string, rv.key.id = string')",
                *anew,
            ),
        ),
        (
            "full",
            "(null, 'a')",
            "If NULL is allowed at the source, drop the table here",
            anew,
        ),
        (
            "small",
            "(1, 5000000000)",
            'or, to keep the value, add "rv.small.v = string"',
            (
                "alter subscription rv set (type_mappings ="
                " 'rv.arr.v = string, rv.key.id = string, rv.small.v = string')",
                *anew,
            ),
        ),
        (
            "other",
            "(1, '1 fortnight')",
            "ALTER SUBSCRIPTION ... SET (binary = false), if it is true; then drop the table"
            " here and run ALTER SUBSCRIPTION ... REFRESH PUBLICATION",
            ("alter subscription rv set (binary = false)", *anew),
        ),
    ):
        pg18.psql(f"insert into rv.{table} values {row}")
        error = stopped(node, "rv", f'relation "rv.{table}"')
        assert hint in error
        for sql in remedies:
            node.sql(sql.format(table))
        mirror.synced()
        mirror.caught_up()
        count = node.value(f"select count(*) from rv.{table}")
        assert count == "1", table
    assert node.sql(ERROR.format("rv")) == []
    assert node.sql("select v from rv.arr") == [("{{1,2},{3,4}}",)]
    assert node.sql("select v from rv.near") == [("32767",)]
    mirror.assert_equal(["rv.nul", "rv.full", "rv.other"])
