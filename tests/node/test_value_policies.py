"""type_mappings and value_policies on a whole node, from CREATE SUBSCRIPTION to the views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database

from wal2lake.pg.publisher import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

Subscribe = Callable[..., Mirror]

EVENTS = (
    "select columnname, phase, policy, reason, events, example"
    " from wal2lake.coercions where subname = '{}' order by 1, 2, 4"
)
ERROR = "select error from wal2lake.subscription_errors where subname = '{}'"


def create(source: Database, name: str, options: str) -> str:
    """CREATE SUBSCRIPTION to the publication of its own name."""
    return (
        f"create subscription {name} connection {quote_literal(source.conninfo())}"
        f" publication {name} with ({options})"
    )


@pytest.mark.parametrize("binary", ["false", "true"])
def test_each_policy_says_what_becomes_of_a_value_in_copy_and_stream(
    pg18: Database, node: Node, subscribe: Subscribe, binary: str
) -> None:
    name = f"vp_{binary}"
    pg18.psql(
        f"create schema {name}; create table {name}.t (id int primary key,"
        " d date, c date, n numeric(6,2), w numeric, f numeric, s timestamptz,"
        " l date, a date[], o oid, must date not null default '2020-01-01');"
        f"insert into {name}.t values (1, '2020-01-01', '2020-01-01', 1, 1.5, 1.5,"
        " '2020-01-01', '2020-01-01', '{2020-01-01}', 7),"
        " (2, 'infinity', 'infinity', 'NaN', 1e40, 0.12345678901234567890, '0044-03-15 BC',"
        " 'infinity', '{2020-01-01,infinity}', 4294967295);"
        f"create publication {name} for tables in schema {name}"
    )
    mirror = subscribe(
        pg18,
        name,
        "with (type_mappings = 'oid = bigint, numeric = decimal(20,3),"
        f" {name}.t.f = double', value_policies = '* = null, {name}.t.c = clamp,"
        f" {name}.t.w = clamp, {name}.t.f = clamp, {name}.t.s = clamp,"
        f" {name}.t.l = lossless, date[] = clamp', binary = {binary})",
    )
    mirror.synced()
    pg18.psql(
        f"insert into {name}.t select id + 10, d, c, n, w, f, s, l, a, o"
        f" from {name}.t; update {name}.t set d = '-infinity', w = 0.00051 where id = 1;"
        f" update {name}.t set d = '5874897-12-31' where id = 1"
    )
    mirror.caught_up()
    rows = node.sql(f"select id, d, c, n, w, f, s, l, a, o from {name}.t order by id")
    odd = (
        None, "9999-12-31", None, "99999999999999999.999", "0.12345678901234568",
        "0001-01-01 00:00:00+00", "infinity", "{2020-01-01,9999-12-31}", "4294967295",
    )  # fmt: skip
    plain = (
        "2020-01-01", "2020-01-01", "1.00", "1.500", "1.5", "2020-01-01 00:00:00+00",
        "2020-01-01", "{2020-01-01}", "7",
    )  # fmt: skip
    first = (None, "2020-01-01", "1.00", "0.001", *plain[4:])
    assert rows == [("1", *first), ("2", *odd), ("11", *plain), ("12", *odd)]
    types = node.sql(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute a"
        f" join pg_class c on c.oid = attrelid where relname = 't' and attnum > 0"
        f" and relnamespace = '{name}'::regnamespace order by attnum"
    )
    assert dict(types) | {"w": "numeric(20,3)", "f": "double precision"} == dict(types)
    assert dict(types)["l"] == "text"
    assert dict(types)["o"] == "bigint"
    events = node.sql(EVENTS.format(name))
    inexact = "numeric cannot be stored exactly as "
    beyond = "numeric field overflow: it does not fit decimal(20,3)"
    dates = "date infinity cannot be stored"
    assert [row[:5] for row in events] == [
        ("a", "copy", "clamp", dates, "1"),
        ("a", "stream", "clamp", dates, "1"),
        ("c", "copy", "clamp", dates, "1"),
        ("c", "stream", "clamp", dates, "1"),
        ("d", "copy", "null", dates, "1"),
        ("d", "stream", "null", dates, "2"),
        ("d", "stream", "null", "date out of range", "1"),
        ("f", "copy", "clamp", f"{inexact}double precision", "1"),
        ("f", "stream", "clamp", f"{inexact}double precision", "1"),
        ("n", "copy", "null", 'numeric "NaN" cannot be stored as decimal(6,2)', "1"),
        ("n", "stream", "null", 'numeric "NaN" cannot be stored as decimal(6,2)', "1"),
        ("s", "copy", "clamp", "timestamp out of range", "1"),
        ("s", "stream", "clamp", "timestamp out of range", "1"),
        ("w", "copy", "clamp", beyond, "1"),
        ("w", "stream", "clamp", f"{inexact}decimal(20,3)", "2"),
        ("w", "stream", "clamp", beyond, "1"),
    ]
    examples = {(row[0], row[3]): row[5] for row in events}
    assert examples["d", "date out of range"] == "5874897-12-31"
    assert examples["s", "timestamp out of range"] == "0044-03-15 00:00:00+00 BC"
    assert examples["a", dates] == "{2020-01-01,infinity}"
    # A value that is stored as NULL may not be one where NULL may not be.
    pg18.psql(f"insert into {name}.t (id, must) values (99, 'infinity')")
    found = node.wait_for(ERROR.format(name))
    assert f'table "{name}.t"' in str(found) or f'"{name}.t"' in str(found)
    assert 'column "must"' in str(found)
