"""ALTER TABLE at the publisher, with schema_changes = follow."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from deltalake import DeltaTable
from tests.conftest import Database
from tests.fakes.outside import assert_equal_outside

from wal2lake.lake.capture import ALTERS
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node, Rows

Subscribe = Callable[..., Mirror]

HISTORY = (
    "select tablename, change, outcome from wal2lake.schema_history"
    " where subname = '{}' order by lsn"
)
COLUMNS = (
    "select attname, format_type(atttypid, atttypmod), attnotnull from pg_attribute"
    " where attrelid = '{}'::regclass and attnum > 0 and not attisdropped order by attnum"
)


def have_rows(expected: set[tuple[str | None, ...]], rows: Rows) -> bool:
    return set(rows) == expected


def agree(node: Node, source: Database, mirror: Mirror, *tables: str) -> None:
    """Rows and columns, by name; a column that comes takes the last place on both sides."""
    mirror.caught_up()
    mirror.synced()
    mirror.assert_equal(tables)
    with mirror.source() as session:
        for table in tables:
            theirs = {tuple(row) for row in session.query(COLUMNS.format(table))}
            # NOT NULL comes when all that the server had then is here.
            node.wait_for(COLUMNS.format(table), partial(have_rows, theirs))


def alterations(node: Node, table: str) -> int:
    """How many commits altered the table."""
    history = DeltaTable(node.directory / "warehouse" / table).history()
    return sum(commit.get("userMetadata") == ALTERS for commit in history)


def test_columns_come_go_and_change_their_names(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sc; create table sc.t (id int primary key, a text, b numeric(5,2));"
        " create table sc.other (id int primary key, v text);"
        " alter table sc.t alter a set storage external;"
        " insert into sc.t select g, repeat('l', 2500) || g, g from generate_series(1, 50) g;"
        " insert into sc.other values (1, 'one'); create publication sc for all tables"
    )
    mirror = subscribe(pg18, "sc", "with (schema_changes = follow)")
    mirror.synced()
    assert node.sql(
        "select schema_changes from wal2lake.subscription_options where subname = 'sc'"
    ) == [("follow",)]
    pg18.transactions(
        [
            "insert into sc.t values (100, 'before', 1)",
            'alter table sc.t add c int default 5, add d text, add "Sp ace" date'
            " not null default '2020-02-29'",
            "update sc.t set b = b + 1 where id < 10",
            "insert into sc.t (id, d) values (101, 'after')",
            # Rows of both kinds in one transaction.
            "insert into sc.t (id, a) values (102, 'old columns');"
            " update sc.t set b = 7 where id = 11;"
            " alter table sc.t add e int default 9, drop b;"
            " alter table sc.t rename a to renamed;"
            " insert into sc.t (id, renamed) values (103, 'new columns');"
            " update sc.t set e = 10 where id in (12, 102)",
            # Nothing of this happens.
            "savepoint s; alter table sc.t drop renamed;"
            " insert into sc.t (id) values (104); rollback to s;"
            " insert into sc.t (id, renamed) values (105, 'stays')",
            # Names go round.
            "alter table sc.t rename c to x; alter table sc.t rename e to c;"
            " alter table sc.t rename x to e; update sc.t set e = -1 where id = 13",
            # The column is another one.
            "alter table sc.t drop d; alter table sc.t add d int; update sc.t set d = id"
            " where id < 5",
            "update sc.other set v = 'two'",
        ]
    )
    agree(node, pg18, mirror, "sc.t", "sc.other")
    history = node.sql(HISTORY.format("sc"))
    said = [(change, outcome) for table, change, outcome in history if table == "t"]
    assert said[:3] == [
        ('ADD COLUMN "c" integer', "added, with '5' in the rows that are here"),
        ('ADD COLUMN "d" text', "added"),
        (
            'ADD COLUMN "Sp ace" date',
            "added, with '2020-02-29' in the rows that are here",
        ),
    ]
    assert ('DROP COLUMN "b"', "dropped") in said
    assert ('RENAME COLUMN "a" TO "renamed"', "renamed") in said
    # Each row has a value of its own: only a copy can bring them.
    pg18.psql(
        "alter table sc.t add r float default random(), add s serial;"
        " update sc.t set d = 0 where id = 14"
    )
    agree(node, pg18, mirror, "sc.t", "sc.other")
    # NOT NULL comes when there is no row of before.
    node.wait_for(
        HISTORY.format("sc"),
        lambda rows: (
            rows[-2:]
            == [
                (
                    "t",
                    'adding column "r" has written all rows anew',
                    "the table is copied anew",
                ),
                ("t", 'ALTER COLUMN "s" SET NOT NULL', "changed"),
            ]
        ),
    )
    pg18.psql("update sc.t set e = 3 where id < 20; delete from sc.t where id > 100")
    agree(node, pg18, mirror, "sc.t")
    assert_equal_outside(node, pg18.conninfo(), ("sc.t",))


@pytest.mark.slow
def test_types_nulls_and_names_of_tables(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sy; create table sy.t (id int primary key, n numeric(5,2), v varchar(5),"
        " i int, w text not null);"
        " insert into sy.t select g, g + 0.25, 'v' || g, g, g from generate_series(1, 50) g;"
        " create schema sy_moved; create publication sy for tables in schema sy, sy_moved"
    )
    mirror = subscribe(pg18, "sy", "with (schema_changes = follow)")
    mirror.synced()
    pg18.transactions(
        [
            "alter table sy.t alter n type numeric(9,2), alter v type varchar(20);"
            " update sy.t set n = 1234567.25, v = 'longer than five' where id = 1",
            "alter table sy.t alter v type text, alter w drop not null;"
            " update sy.t set w = null where id = 2",
        ]
    )
    agree(node, pg18, mirror, "sy.t")
    # Rows of the time before NOT NULL are still to come when it is heard of.
    node.sql("alter subscription sy disable")
    pg18.transactions(
        [
            "insert into sy.t (id, w) values (51, '7')",
            "update sy.t set v = 'null' where v is null",
            "update sy.t set w = '0' where w is null",
            "alter table sy.t alter v set not null, add z int not null default 5",
            "insert into sy.t (id, v, w) values (52, 'v', '1')",
            # Names that change, and change back.
            "alter table sy.t rename v to x; update sy.t set x = 'there' where id = 6",
            "alter table sy.t rename x to v; update sy.t set v = 'back' where id = 7",
            "alter table sy.t rename v to x; alter table sy.t rename w to v;"
            " alter table sy.t rename x to w; update sy.t set v = '8' where id = 8",
            "alter table sy.t rename v to x; alter table sy.t rename w to v;"
            " alter table sy.t rename x to w; update sy.t set w = '9' where id = 9",
        ]
    )
    node.sql("alter subscription sy enable")
    agree(node, pg18, mirror, "sy.t")
    pg18.psql("alter table sy.t alter v drop not null, drop z")
    # All rows are written anew, by whatever USING says.
    pg18.transactions(
        [
            "alter table sy.t alter i type bigint; update sy.t set i = 1::bigint << 40"
            " where id = 3",
            "alter table sy.t alter w type int using coalesce(w::int, 0) * 2;"
            " update sy.t set w = -1 where id = 4",
        ]
    )
    agree(node, pg18, mirror, "sy.t")
    pg18.psql(
        "alter table sy.t alter w set not null; update sy.t set i = 0 where id = 5"
    )
    agree(node, pg18, mirror, "sy.t")
    pg18.psql(
        "alter table sy.t rename to u; insert into sy.u (id, w) values (60, 1);"
        " alter table sy.u set schema sy_moved;"
        " insert into sy_moved.u (id, w) values (61, 1)"
    )
    mirror.caught_up()
    assert node.sql("select id from sy.t where id >= 60 order by id") == [
        ("60",),
        ("61",),
    ]
    # Rows that are there may have null until it is validated.
    pg18.psql(
        "alter table sy_moved.u add constraint vn not null v not valid;"
        " insert into sy_moved.u (id, v, w) values (62, 'v', 1)"
    )
    mirror.caught_up()
    strict = "select attnotnull from pg_attribute where attname = 'v'"
    strict += " and attrelid = 'sy.t'::regclass"
    assert node.sql(strict) == [("f",)]
    pg18.psql(
        "update sy_moved.u set v = 'x' where v is null;"
        " alter table sy_moved.u validate constraint vn;"
        " insert into sy_moved.u (id, v, w) values (63, 'v', 1)"
    )
    node.wait_for(strict, lambda rows: rows == [("t",)])


@pytest.mark.slow
def test_large_transactions_and_prepared_ones_alter_their_tables(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sl; create table sl.t (id int primary key, a text);"
        " insert into sl.t values (1, 'one'); create publication sl for table sl.t"
    )
    pg18.psql(f"alter database {pg18.name} set logical_decoding_work_mem = '64kB'")
    mirror = subscribe(
        pg18, "sl", "with (schema_changes = follow, streaming = on, two_phase = on)"
    )
    mirror.synced()
    many = (
        "insert into sl.t (id, a) select g, repeat('x', 100) from generate_series({}) g"
    )
    pg18.psql(
        f"begin; {many.format('1000, 3000')}; savepoint s;"
        " alter table sl.t add gone int default 1;"
        " insert into sl.t (id) select generate_series(5000, 7000); rollback to s;"
        f" alter table sl.t add b int default 3; {many.format('3001, 5000')};"
        " update sl.t set b = 4 where id = 1; commit"
    )
    agree(node, pg18, mirror, "sl.t")
    pg18.psql(
        "begin; alter table sl.t rename b to c; update sl.t set c = 5 where id = 1;"
        " prepare transaction 'sl'"
    )
    pg18.psql("commit prepared 'sl'; insert into sl.t values (2, 'two', 2)")
    agree(node, pg18, mirror, "sl.t")
    # Its end comes in another run of the receiver, after what it has altered.
    pg18.psql(
        "begin; alter table sl.t add d int default 8; update sl.t set d = 9 where id = 1;"
        " prepare transaction 'sl2'"
    )
    mirror.caught_up()
    for how in ("disable", "enable"):
        node.sql(f"alter subscription sl {how}")
    pg18.psql("commit prepared 'sl2'")
    agree(node, pg18, mirror, "sl.t")


def test_rows_that_keep_their_type_are_copied_anew(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sw; create table sw.t (id int primary key, v text, w text, g text generated"
        " always as (lower(w)) stored); create table sw.moved (id int primary key, v text);"
        " insert into sw.t select g, 'v' || g, 'W' || g from generate_series(1, 9) g;"
        " insert into sw.moved values (1, 'one'), (2, 'two');"
        " create publication sw for tables in schema sw"
        " with (publish_generated_columns = stored)"
    )
    mirror = subscribe(pg18, "sw", "with (schema_changes = follow)")
    mirror.synced()
    anew = ("t", "ALTER TABLE has written all rows anew", "the table is copied anew")
    for number, sql in enumerate(
        (
            "alter table sw.t alter v type text using upper(v)",
            "alter table sw.t alter g set expression as (w || '!')",
            "alter table sw.t alter id type int using id + 1000",
        ),
        1,
    ):
        pg18.transactions(
            [sql, f"update sw.t set v = v || 'x' where id % 10 = {number}"]
        )
        agree(node, pg18, mirror, "sw.t")
        assert node.sql(HISTORY.format("sw")) == [anew] * number
    # With a type that is another one, too.
    pg18.transactions(
        [
            "alter table sw.t alter v type varchar(9) using left(v, 3) || '-'",
            "update sw.t set v = v || 'y' where id % 10 = 4",
        ]
    )
    agree(node, pg18, mirror, "sw.t")
    told = (
        "t",
        'the new type of column "v" has written all rows anew',
        "the table is copied anew",
    )
    assert node.sql(HISTORY.format("sw"))[-1] == told
    # The key is another one: rows are found by it.
    pg18.psql(
        "delete from sw.t where id = 1005; vacuum full sw.moved;"
        " insert into sw.moved values (3, 'three'); truncate sw.moved;"
        " insert into sw.moved values (4, 'four')"
    )
    agree(node, pg18, mirror, "sw.t", "sw.moved")
    assert node.sql(HISTORY.format("sw"))[-1] == told


@pytest.mark.slow
def test_a_subscription_that_follows_from_later_on(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sf; create table sf.t (id int primary key, a text);"
        " create table sf.stuck (id int primary key, a text);"
        " insert into sf.t values (1, 'one'); insert into sf.stuck values (1, 'one');"
        " create publication sf for tables in schema sf"
    )
    mirror = subscribe(pg18, "sf", "with (schema_changes = follow)")
    mirror.synced()
    node.sql("alter subscription sf set (schema_changes = manual)")
    # Nobody has noted where these columns begin in the log, and no row of b comes later.
    pg18.transactions(
        [
            "alter table sf.stuck add b int default 7",
            "insert into sf.stuck values (2, 'two', 2)",
        ]
    )
    node.wait_for(
        "select error from wal2lake.subscription_errors where subname = 'sf'",
        lambda rows: bool(rows) and "missing replicated column" in str(rows[0][0]),
    )
    node.sql("alter subscription sf set (schema_changes = follow)")
    agree(node, pg18, mirror, "sf.t", "sf.stuck")
    pg18.transactions(
        [
            "alter table sf.t add c int default 5",
            "insert into sf.t values (2, 'two', 6)",
        ]
    )
    agree(node, pg18, mirror, "sf.t", "sf.stuck")
    assert node.sql(HISTORY.format("sf")) == [
        (
            "stuck",
            'ADD COLUMN "b" integer',
            "added, with '7' in the rows that are here",
        ),
        (
            "stuck",
            'column "b" was there before it was published',
            "the table is copied anew",
        ),
        ("t", 'ADD COLUMN "c" integer', "added, with '5' in the rows that are here"),
    ]
    # A copy takes the source's columns before a row has them.
    pg18.psql("alter table sf.t add d text default 'd', drop a")
    node.sql("select wal2lake.recopy_table('sf.t')")
    agree(node, pg18, mirror, "sf.t")
    pg18.psql("alter table sf.t add e text default 'e'")
    node.sql("alter subscription sf refresh publication with (recopy = true)")
    agree(node, pg18, mirror, "sf.t", "sf.stuck")


@pytest.mark.slow
def test_labels_of_an_enum_get_other_names(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema se; create type se.mood as enum ('sad', 'ok');"
        " create table se.keyed (m se.mood primary key, n int);"
        " create table se.whole (m se.mood[], n int); alter table se.whole replica identity"
        " full; create table se.plain (id int primary key);"
        " insert into se.keyed values ('sad', 1), ('ok', 2);"
        " insert into se.whole values ('{sad}', 1), ('{ok,sad}', 2);"
        " create publication se for tables in schema se"
    )
    mirror = subscribe(pg18, "se", "with (schema_changes = follow)")
    mirror.synced()
    # Nothing comes after it.
    pg18.psql("alter type se.mood rename value 'sad' to 'blue'")
    node.wait_for(
        "select m, n from se.keyed order by n",
        lambda rows: rows == [("blue", "1"), ("ok", "2")],
    )
    mirror.synced()
    # The old name comes again, for another value; rows come before it is noticed.
    pg18.psql(
        "alter type se.mood rename value 'ok' to 'sad';"
        " update se.keyed set n = 20 where m = 'sad'; delete from se.whole where n = 2;"
        " update se.whole set n = 10 where m = '{blue}'"
    )
    renamed = "ALTER TYPE se.mood RENAME VALUE '{}' TO '{}'"
    anew = "the table is copied anew"
    expected = {
        (table, renamed.format(*names), anew)
        for table in ("keyed", "whole")
        for names in (("sad", "blue"), ("ok", "sad"))
    }
    node.wait_for(
        HISTORY.format("se"),
        lambda rows: len(rows) == 4 and set(rows) == expected,
    )
    agree(node, pg18, mirror, "se.plain")
    mirror.assert_equal(("se.keyed", "se.whole"))


@pytest.mark.slow
def test_a_label_gets_another_name_right_after_the_copy_of_its_table(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sj; create type sj.mood as enum ('sad', 'ok');"
        " create table sj.first (id int primary key); create publication sj"
        " for tables in schema sj"
    )
    mirror = subscribe(pg18, "sj", "with (schema_changes = follow)")
    mirror.synced()
    pg18.psql(
        "create table sj.joined (m sj.mood primary key); insert into sj.joined values ('sad')"
    )
    node.sql("alter subscription sj refresh publication")
    mirror.synced()
    assert node.sql("select m from sj.joined") == [("sad",)]
    pg18.psql(
        "alter type sj.mood rename value 'sad' to 'blue'; insert into sj.joined values ('ok');"
        " delete from sj.joined where m = 'blue'"
    )
    node.wait_for("select m from sj.joined", lambda rows: rows == [("ok",)])
    mirror.assert_equal(("sj.first", "sj.joined"))


@pytest.mark.slow
def test_a_column_list_and_manual(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sm; create table sm.t (id int primary key, a text, b text);"
        " insert into sm.t values (1, 'one', 'x'); create publication sm for table sm.t (id, a)"
    )
    mirror = subscribe(pg18, "sm", "with (schema_changes = follow)")
    mirror.synced()
    pg18.psql(
        "alter publication sm set table sm.t; insert into sm.t values (2, 'two', 'y')"
    )
    agree(node, pg18, mirror, "sm.t")
    pg18.psql(
        "alter publication sm set table sm.t (id, a); insert into sm.t values (3, 'three', 'z')"
    )
    mirror.caught_up()
    assert node.sql("select * from sm.t order by id") == [
        ("1", "one", "x"),
        ("2", "two", "y"),
        ("3", "three", None),
    ]
    node.sql("alter subscription sm set (schema_changes = manual)")
    pg18.psql(
        "alter publication sm set table sm.t;"
        " alter table sm.t add c int; insert into sm.t values (4, 'four', 'u', 4)"
    )
    node.wait_for(
        "select error from wal2lake.subscription_errors where subname = 'sm'",
        lambda rows: (
            bool(rows)
            and 'relation "sm.t" is missing replicated column: "c"' in str(rows[0][0])
        ),
    )
    node.sql("alter table sm.t add column c int")
    mirror.caught_up()
    assert node.sql("select id, c from sm.t where id = 4") == [("4", "4")]
    with pytest.raises(Exception, match='unrecognized schema_changes value: "often"'):
        node.sql("alter subscription sm set (schema_changes = often)")


@pytest.mark.slow
def test_any_changes_in_any_order(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """While rows come, and while the apply worker is behind."""
    pg18.psql(
        "create schema sr; create table sr.t (id int primary key, c0 int);"
        " insert into sr.t values (1, 1); create publication sr for table sr.t"
    )
    mirror = subscribe(pg18, "sr", "with (schema_changes = follow)")
    mirror.synced()
    rng = random.Random(11)
    names, number, next_id = ["c0"], 1, 2
    for _ in range(4):
        statements = []
        for _ in range(8):
            steps = []
            for _ in range(rng.randint(1, 2)):
                kind = rng.choice("ard")
                if kind == "a" or not names:
                    default = rng.choice(["", f" default {rng.randint(0, 99)}"])
                    steps.append(f"alter table sr.t add c{number} int{default}")
                    names.append(f"c{number}")
                    number += 1
                elif kind == "r":
                    i = rng.randrange(len(names))
                    steps.append(f"alter table sr.t rename {names[i]} to c{number}")
                    names[i] = f"c{number}"
                    number += 1
                else:
                    gone = names.pop(rng.randrange(len(names)))
                    steps.append(f"alter table sr.t drop {gone}")
                if rng.random() < 0.7:
                    steps.append(f"insert into sr.t (id) values ({next_id})")
                    next_id += 1
                if names and rng.random() < 0.7:
                    steps.append(
                        f"update sr.t set {rng.choice(names)} = {rng.randint(100, 999)}"
                        f" where id % 3 = {rng.randint(0, 2)}"
                    )
            statements.append("; ".join(steps))
        pg18.transactions(statements)
        pg18.psql(f"insert into sr.t (id) values ({next_id})")
        next_id += 1
        agree(node, pg18, mirror, "sr.t")


def test_columns_of_a_backlog_come_at_once_but_not_those_behind_a_row_that_fails(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema once; create table once.t (id int primary key, a int);"
        " insert into once.t values (1, 1), (2, 2); create publication once for all tables"
    )
    mirror = subscribe(pg18, "once", "with (schema_changes = follow)")
    mirror.synced()
    node.sql("insert into once.t values (55, 0)")
    node.sql("alter subscription once disable")
    pg18.transactions(
        [
            "alter table once.t add c1 int default 1; insert into once.t (id) values (3)",
            "insert into once.t (id, c1) values (4, 44)",
            "alter table once.t add c2 int default 2; insert into once.t (id) values (5)",
            "insert into once.t (id, a) values (55, 5)",
            "alter table once.t add c3 int default 3; insert into once.t (id) values (6)",
        ]
    )
    node.sql("alter subscription once enable")
    # As at the publisher when the row was inserted that there is here.
    node.wait_for("select count(*) from once.t", lambda rows: rows == [("6",)])
    assert node.sql("select * from once.t order by id") == [
        ("1", "1", "1", "2"),
        ("2", "2", "1", "2"),
        ("3", None, "1", "2"),
        ("4", None, "44", "2"),
        ("5", None, "1", "2"),
        ("55", "0", "1", "2"),
    ]
    node.sql("delete from once.t where id = 55")
    agree(node, pg18, mirror, "once.t")
    assert alterations(node, "once/t") == 3
    # Without such a row they are one commit.
    node.sql("alter subscription once disable")
    pg18.transactions(
        [
            f"alter table once.t add d{n} int default {n}; update once.t set d{n} = id"
            for n in range(5)
        ]
    )
    node.sql("alter subscription once enable")
    agree(node, pg18, mirror, "once.t")
    assert alterations(node, "once/t") == 4
    added = [row for row in node.sql(HISTORY.format("once")) if "ADD" in str(row[1])]
    assert [row[1] for row in added] == [
        f'ADD COLUMN "c{n}" integer' for n in (1, 2, 3)
    ] + [f'ADD COLUMN "d{n}" integer' for n in range(5)]
