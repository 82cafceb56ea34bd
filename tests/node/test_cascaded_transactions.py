"""What a node has from a publisher it sends on as the publisher's transactions: one for each, with
the same changes in the same order, at the same time."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.fakes import random_changes
from tests.node.conftest import Subscribe

from wal2lake.testing.node import Node
from wal2lake.wire.pgoutput import Commit, Origin, read_message

SEED = int(os.environ.get("WAL2LAKE_STREAM_SEED", "9"))
ROUNDS = int(os.environ.get("WAL2LAKE_STREAM_ROUNDS", "6"))

LONG = "(select string_agg(md5(g::text), '') from generate_series(1, {0}) g)"
"""A text that PostgreSQL keeps apart from its row, and does not send unless it has changed."""

TABLES = (
    "create table {0}.t (id int primary key, v text)",
    "create table {0}.pair (a int, v text, b text, n numeric(6,2), primary key (b, a))",
    "create table {0}.whole (a int, v text, n numeric(6,2), at timestamptz, k text[])",
    "alter table {0}.whole replica identity full",
    "create table {0}.fully (id int primary key, v text, f float8)",
    "alter table {0}.fully replica identity full",
    "create table {0}.added (a bigint, v text, d date, j jsonb)",
    "create table {0}.long (id int primary key, v text, w text, n int)",
    "insert into {0}.t values (1, 'one'), (2, 'two'), (3, null)",
    "insert into {0}.pair values (1, 'v', 'x', 1.50), (2, null, 'it''s', null)",
    "insert into {0}.whole values (1, 'a', 1.10, '2026-01-01 12:00+00', '{{x,null}}'),"
    " (1, 'b', null, null, null), (2, null, 0, null, null), (2, null, 0, null, null)",
    "insert into {0}.fully values (1, 'one', 0.1), (2, 'two', null), (3, null, 1e300)",
    f"insert into {{0}}.long values (1, {LONG.format(300)}, 'w', 1),"
    f" (2, {LONG.format(301)}, {LONG.format(302)}, 2)",
)

SINGLE = (
    "insert into {0}.t values (4, 'four')",
    "update {0}.t set v = 'eins' where id = 1",
    "update {0}.t set id = 10 where id = 2",
    "update {0}.t set v = v where id = 1",
    "delete from {0}.t where id = 3",
    "insert into {0}.t values (3, 'again')",
    "update {0}.pair set b = b || '!', v = 'w' where a = 2",
    "update {0}.whole set v = 'c' where v = 'b'",
    "update {0}.whole set a = 3, v = 'two of them' where a = 2",
    "update {0}.fully set id = 20 where id = 2",
    "update {0}.fully set f = 'NaN' where id = 1",
    "insert into {0}.added values (1, 'x', '2026-02-03', '{{\"a\": [1, null]}}'),"
    " (2, null, null, null)",
    "update {0}.long set n = n + 1",
    "update {0}.long set id = 3, n = 7 where id = 1",
    f"update {{0}}.long set v = {LONG.format(400)} where id = 2",
    "update {0}.long set w = 'short' where id = 2",
)

BLOCKS = (
    "begin; insert into {0}.t values (50, 'a'), (51, 'b'); update {0}.t set v = 'd' where id = 50;"
    " insert into {0}.pair values (7, 'v', 'seven', 1); delete from {0}.t where id = 51;"
    " update {0}.pair set v = 'w' where a = 7; insert into {0}.t values (51, 'anew'); commit",
    "begin; update {0}.t set v = v || '+'; savepoint a; delete from {0}.t; rollback to a;"
    " update {0}.t set v = v || '-' where id < 3; release a; commit",
    "begin; update {0}.t set id = -1 where id = 1; update {0}.t set id = 1 where id = 10;"
    " update {0}.t set id = 10 where id = -1; commit",
    "begin; insert into {0}.whole values (5, 'five'); update {0}.whole set v = 'V' where a = 5;"
    " delete from {0}.whole where a = 5; insert into {0}.fully values (60, 'stays', 2.5); commit",
    "begin; update {0}.long set n = 100 where id = 3; update {0}.long set id = 4 where id = 3;"
    " update {0}.long set n = 101 where id = 4;"
    f" insert into {{0}}.long values (3, 'v', {LONG.format(99)}, 1);"
    " update {0}.long set n = 2 where id = 3; commit",
    "begin; truncate {0}.added, {0}.t; insert into {0}.t values (8, 'eight');"
    " update {0}.t set v = 'acht'; insert into {0}.added values (8, 'eight', null, 'null'); commit",
    "truncate {0}.t restart identity",
    "insert into {0}.pair values (8, 'v', 'gone', 1); truncate {0}.pair cascade",
    "insert into {0}.t select i, 'row ' || i from generate_series(1, 300) i",
    "update {0}.t set v = v || '!' where id % 3 = 0",
)

NAMES = ("t", "pair", "whole", "fully", "added", "long")


def transactions(lines: list[str]) -> list[tuple[list[str], str]]:
    """Changes and time of each transaction that has any."""
    found: list[tuple[list[str], str]] = []
    changes: list[str] = []
    for line in lines:
        if line.startswith("BEGIN"):
            changes = []
        elif line.startswith("COMMIT"):
            time = re.search(r"\(at (.*)\)", line)
            assert time is not None, line
            if changes:
                found.append((changes, time[1]))
        else:
            changes.append(line)
    return found


def in_order(line: str) -> str:
    """Of several tables that one TRUNCATE empties the log has no order."""
    tables, truncate, options = line.partition(": TRUNCATE: ")
    if not truncate:
        return line
    names = sorted(tables.removeprefix("table ").split(", "))
    return f"table {', '.join(names)}{truncate}{options}"


def same(
    found: list[tuple[list[str], str]], wanted: list[tuple[list[str], str]]
) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one[1] == other[1], one[0]
        assert len(one[0]) == len(other[0])
        for line, like in zip(
            map(in_order, one[0]), map(in_order, other[0]), strict=True
        ):
            # A lake table's row is told whole.
            parts = like.split("unchanged-toast-datum")
            pattern = "('[^']+'|null)".join(map(re.escape, parts))
            assert re.fullmatch(pattern, line), like


OPTIONS = "'include-xids', 'false', 'include-timestamp', 'true'"


@pytest.mark.parametrize("paused", [False, True], ids=["one by one", "in one batch"])
def test_each_transaction_of_the_publisher_is_one_downstream(
    node: Node,
    database: Callable[[int], Database],
    subscribe: Subscribe,
    paused: bool,
) -> None:
    # PostgreSQL 17 as it is installed has test_decoding, the wheel of 18 has not.
    source, name = database(17), "cascaded"
    source.psql(f"create schema {name}")
    for sql in TABLES:
        source.psql(sql.format(name))
    source.psql(f"create publication {name} for tables in schema {name}")
    mirror = subscribe(source, name)
    mirror.synced()
    # A table without a key has the publisher's replica identity already.
    node.sql(f"alter table {name}.fully replica identity full")
    slot = "select pg_create_logical_replication_slot('told', 'test_decoding')"
    node.sql(slot)
    source.psql(slot)
    try:
        if paused:
            node.sql(f"alter subscription {name} disable")
        for sql in (*SINGLE, *BLOCKS):
            source.psql(sql.format(name))
        if paused:
            node.sql(f"alter subscription {name} enable")
        mirror.caught_up()
        mirror.assert_equal([f"{name}.{table}" for table in NAMES])
        call = f"pg_logical_slot_get_changes('told', null, null, {OPTIONS})"
        mine = [str(row[0]) for row in node.sql(f"select data from {call}")]
        theirs = source.psql(f"select data from {call}").splitlines()
        same(transactions(mine), transactions(theirs))
    finally:
        drop = "select pg_drop_replication_slot('told')"
        node.sql(drop)
        source.psql(drop)


@pytest.mark.slow
def test_random_histories_are_sent_on_as_they_were(
    node: Node,
    database: Callable[[int], Database],
    subscribe: Subscribe,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its identity changes, and then it is not the node's.
    monkeypatch.delitem(random_changes.TABLES, "rs.sw")
    source = database(17)
    source.psql(
        f"create schema rs; {random_changes.SOURCE} {random_changes.OUT_OF_LINE};"
        " create publication rs for tables in schema rs"
    )
    mirror = subscribe(source, "rs")
    mirror.synced()
    node.sql("alter table rs.fk replica identity full")
    slot = "select pg_create_logical_replication_slot('told', 'test_decoding')"
    node.sql(slot)
    source.psql(slot)
    call = f"pg_logical_slot_get_changes('told', null, null, {OPTIONS})"
    changes = random_changes.RandomChanges(random.Random(SEED))
    source.transactions(list(changes.first()))
    try:
        for _ in range(ROUNDS):
            node.sql("alter subscription rs disable")
            # What a TRUNCATE undoes of a table whose publisher's rows are found by all their
            # values has met nobody knows what.
            source.transactions(
                [
                    one
                    for one in changes.transactions(40)
                    if re.search(r"truncate [^;]*\brs\.(fk|no)\b", one) is None
                ]
            )
            node.sql("alter subscription rs enable")
            mirror.caught_up()
            mine = [str(row[0]) for row in node.sql(f"select data from {call}")]
            theirs = source.psql(f"select data from {call}").splitlines()
            same(transactions(mine), transactions(theirs))
        mirror.assert_equal([f"rs.{name}" for name in random_changes.NAMES])
    finally:
        drop = "select pg_drop_replication_slot('told')"
        node.sql(drop)
        source.psql(drop)


def test_a_subscriber_is_told_whose_they_are(
    node: Node, database: Callable[[int], Database], subscribe: Subscribe
) -> None:
    source, name, slot = database(17), "whose", "told_whose"
    source.psql(
        f"create schema {name}; create table {name}.t (id int primary key, v text);"
        f" create publication {name} for tables in schema {name}"
    )
    mirror = subscribe(source, name)
    mirror.synced()
    ((subid,),) = node.sql(f"select oid from pg_subscription where subname = '{name}'")
    node.sql(f"create publication {name} for tables in schema {name}")
    node.sql(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    source.psql(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    call = (
        f"pg_logical_slot_peek_binary_changes('{slot}', null, null,"
        f" 'proto_version', '1', 'publication_names', '{name}')"
    )
    try:
        node.sql(f"alter subscription {name} disable")
        for n in range(12):
            source.psql(f"insert into {name}.t values ({n}, 'v'), (-{n} - 1, null)")
        node.sql(f"alter subscription {name} enable")
        mirror.caught_up()
        asked = f"select encode(data, 'hex') from {call}"
        mine, theirs = (
            [read_message(bytes.fromhex(str(row))) for row in rows]
            for rows in (
                [row[0] for row in node.sql(asked)],
                source.psql(asked).splitlines(),
            )
        )
        ends = [one.end_lsn for one in theirs if isinstance(one, Commit)]
        times = [one.commit_time for one in theirs if isinstance(one, Commit)]
        origins = [one for one in mine if isinstance(one, Origin)]
        assert [one.origin_lsn for one in origins] == ends
        assert {one.name for one in origins} == {f"pg_{subid}"}
        assert times == [one.commit_time for one in mine if isinstance(one, Commit)]
        shapes = [
            [type(one).__name__ for one in said if not isinstance(one, Origin)]
            for said in (mine, theirs)
        ]
        assert shapes[0] == shapes[1]
    finally:
        drop = f"select pg_drop_replication_slot('{slot}')"
        node.sql(drop)
        source.psql(drop)
        node.sql(f"drop publication {name}")


def test_old_rows_are_those_of_a_table_that_others_write_too(
    node: Node, database: Callable[[int], Database], subscribe: Subscribe
) -> None:
    # A subscriber without a key finds a row by all its values.
    source, name, slot = database(17), "theirs", "told_theirs"
    source.psql(
        f"create schema {name}; create table {name}.t (id int primary key, v text, w text);"
        f" alter table {name}.t replica identity full;"
        f" insert into {name}.t values (1, 'a', 'x'), (2, 'b', 'y');"
        f" create publication {name} for tables in schema {name}"
    )
    mirror = subscribe(source, name)
    mirror.synced()
    node.sql(f"alter table {name}.t replica identity full")
    node.sql(f"select pg_create_logical_replication_slot('{slot}', 'test_decoding')")
    try:
        node.sql(f"update {name}.t set v = 'local'")
        source.psql(f"update {name}.t set w = 'z' where id = 1")
        source.psql(f"delete from {name}.t where id = 2")
        mirror.caught_up()
        told = [
            str(row[0])
            for row in node.sql(
                f"select data from pg_logical_slot_get_changes('{slot}', null, null)"
            )
        ]
        old = [
            re.sub(r" new-tuple:.*", "", line)
            for line in told
            if ": UPDATE" in line or ": DELETE" in line
        ]
        assert len(old) == 4
        assert [line for line in old[2:] if "'local'" not in line] == []
    finally:
        node.sql(f"select pg_drop_replication_slot('{slot}')")
