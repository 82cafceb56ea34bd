"""ALTER TABLE at the front door: what PostgreSQL 18 does with the same statements, and what becomes
of tables that a subscription fills, that are being copied, or that a transaction has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

Session = psycopg.Connection[Any]

SCRIPT = r"""
create table al (id int primary key, v text, n int default 5);
alter table nosuch add a int;
alter table if exists nosuch add a int;
alter table al add c int;
select * from al;
insert into al values (1, 'a', 5), (2, 'b', 6);
alter table al add column c int;
alter table al add column if not exists c int;
alter table al add column ctid int;
alter table al drop column nope;
alter table al drop column if exists nope;
alter table al drop column ctid;
alter table al rename column nope to x;
alter table al rename v to n;
alter table al rename ctid to n;
alter table al rename v to xmin;
alter table al alter nope set not null;
alter table al alter nope type int;
alter table al alter nope set default 1;
alter table al alter ctid set not null;
alter table al alter c set not null;
alter table al alter id drop not null;
alter table al add q int not null;
alter table al add q int not null default null;
alter table al add d int default 'x';
alter table al add d int default now();
alter table al add d int default nope;
select * from al order by id;
alter table al add d varchar(3) default 'x' || 'y' not null, add e timestamp default '2024-01-01';
insert into al(id, v) values (3, 'c');
select * from al order by id;
alter table al alter n set default 7, alter d drop default;
insert into al(id, v, d) values (4, 'd', 'z');
insert into al(id, v) values (5, 'd');
alter table al alter v set not null, alter d drop not null;
insert into al(id) values (6);
insert into al(id, v) values (6, 'six');
select * from al order by id;
alter table al drop c, drop column e, rename v to w;
alter table al drop c, drop column e;
alter table al rename v to "A b";
alter table al add v int;
insert into al values (7, 'seven', 70, 'x', 77);
update al set v = n where id < 3;
delete from al where id = 4;
select * from al order by id;
select "A b", count(*) from al where v is null group by "A b" order by 1;
alter table al drop v, add v text default 'again';
select * from al order by id;
alter table al alter n type text;
alter table al alter n type int;
alter table al alter n type int using n::int;
alter table al alter n type int using n::int, alter n type text;
alter table al alter n type bigint using "A b";
alter table al alter n type numeric(4,1), alter d type varchar(10);
select * from al order by id;
alter table al alter "A b" type int using "A b"::int;
alter table al alter v type varchar(3);
alter table al alter v type date;
alter table al alter v type int using (select 1);
alter table al alter id type bigint, drop d;
insert into al values (7, 'twice');
select * from al order by id;
alter table al alter id type bigint using id / 4;
alter table al drop column id cascade;
insert into al values ('no key', 1, 'x'), ('no key', 1, 'x');
select * from al order by 1, 2, 3;
alter table al alter n type int using (n + 0.5)::int, alter n set default 3;
insert into al("A b") values ('last');
select * from al order by 1, 2, 3;
create table alu (a int, primary key (a));
alter table al rename to alu;
alter table alu rename to al;
alter table alu rename to alv;
insert into alv values (1);
alter table alv rename to alu;
create table alv (a int primary key);
insert into alv values (2);
insert into alu values (1);
select a from alu union all select a from alv order by 1;
create schema als;
alter table alu set schema nosuch;
alter table alu set schema als;
select a from als.alu;
select a from alu;
create table alu (b text);
alter table als.alu set schema public;
drop table alu, als.alu, alv;
drop schema als;
create table alp (a int primary key, b int) partition by list (a);
create table alp1 partition of alp default;
insert into alp values (1, 1);
alter table alp1 add c int;
alter table alp1 drop b;
alter table alp1 rename b to c;
alter table alp1 alter b type bigint;
alter table only alp add c int;
alter table only alp drop b;
alter table only alp rename b to c;
alter table only alp alter b type bigint;
alter table alp drop a;
alter table alp alter a type bigint;
alter table alp add c int default 9;
alter table alp rename b to bb;
select a, bb, c from alp1;
insert into alp values (2, 2, 2);
select * from alp1 order by a;
drop table alp;
drop table al
"""

ERROR = "select error from wal2lake.subscription_errors where subname = 'at'"


def outcome(session: Session, sql: str) -> tuple[object, ...]:
    """What a client sees of it."""
    notices: list[tuple[object, ...]] = []

    def note(found: psycopg.errors.Diagnostic) -> None:
        notices.append((found.severity, found.sqlstate, found.message_primary))

    session.add_notice_handler(note)
    try:
        cursor = session.execute(sql)
    except psycopg.Error as error:
        diag = error.diag
        hint = diag.message_hint if diag.sqlstate != "42703" else None
        return "ERROR", diag.sqlstate, diag.message_primary, hint
    finally:
        session.remove_notice_handler(note)
    if cursor.description is None:
        return cursor.statusmessage, notices
    columns = [(column.name, column.type_code) for column in cursor.description]
    found = cursor.pgresult
    assert found is not None
    rows = [
        [found.get_value(row, column) for column in range(found.nfields)]
        for row in range(found.ntuples)
    ]
    return cursor.statusmessage, notices, columns, rows


@pytest.fixture(scope="module")
def peers(
    node: Node, postgres_server: Callable[..., Any]
) -> Iterator[tuple[Session, Session]]:
    """A session of the node and one of PostgreSQL 18."""
    server = postgres_server(18)
    server.psql("create database alter_table")
    source = Database(server, "alter_table")
    with (
        psycopg.connect(source.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):
        ours.prepare_threshold = theirs.prepare_threshold = None
        yield ours, theirs
    server.psql("drop database alter_table with (force)")


@pytest.mark.slow
def test_each_statement_answers_as_postgresql_does(
    peers: tuple[Session, Session],
) -> None:
    ours, theirs = peers
    different = []
    for sql in SCRIPT.strip().split(";\n"):
        here, there = outcome(ours, sql), outcome(theirs, sql)
        if here != there:
            different.append((sql, here, there))
    assert not different, "\n\n".join(
        f"{sql}\n ours   {here}\n theirs {there}" for sql, here, there in different
    )


@pytest.mark.slow
def test_a_table_that_a_subscription_fills_is_altered(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    """It goes on by the columns' names. Each past state has its own columns, and so has a
    transaction that began before; one that has written the table must begin again."""
    pg18.psql(
        "create schema at; create table at.t (a int primary key, v text);"
        " insert into at.t values (1, 'one'), (2, 'two');"
        " create publication at for tables in schema at"
    )
    mirror = subscribe(pg18, "at")
    mirror.synced()
    pg18.psql("update at.t set v = 'two' where a = 2")
    before = mirror.caught_up()
    with (
        psycopg.connect(node.conninfo()) as writing,
        psycopg.connect(node.conninfo()) as reading,
    ):
        reading.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        rows = [(1, "one"), (2, "two")]
        assert reading.execute("select * from at.t order by 1").fetchall() == rows
        writing.execute("update at.t set v = 'mine' where a = 1")

        # A column that is missing stops it; ADD COLUMN lets it go on.
        pg18.psql(
            "alter table at.t add c int; insert into at.t values (3, 'three', 30)"
        )
        node.wait_for(
            ERROR,
            lambda rows: (
                bool(rows)
                and 'target relation "at.t" is missing replicated column: "c"'
                in str(rows[0][0])
            ),
        )
        node.sql("alter table at.t add c int")
        mirror.assert_equal(["at.t"])

        assert reading.execute("select * from at.t order by 1").fetchall() == rows
        reading.rollback()
        mine = writing.execute("select * from at.t order by 1").fetchall()
        assert mine == [(1, "mine"), (2, "two")]
        with pytest.raises(psycopg.errors.SerializationFailure):
            writing.commit()

    # A column of our own keeps its values; dropped, nobody misses it.
    node.sql("alter table at.t add own text default 'x', alter own set default 'y'")
    pg18.psql("update at.t set v = 'changed' where a = 2; insert into at.t values (4)")
    mirror.caught_up()
    found = node.sql("select a, v, c, own from at.t where a in (2, 3) order by 1")
    assert found == [("2", "changed", None, "x"), ("3", "three", "30", "x")]
    node.sql("alter table at.t drop own")
    pg18.psql("update at.t set c = 1; delete from at.t where a = 1")
    mirror.assert_equal(["at.t"])

    # Renamed here only, its values come to nowhere until it is renamed back.
    node.sql("alter table at.t rename v to w")
    assert node.sql("select w from at.t where a = 2") == [("changed",)]
    pg18.psql("insert into at.t values (5, 'five', 5)")
    node.wait_for(
        ERROR,
        lambda rows: bool(rows) and 'missing replicated column: "v"' in str(rows[0][0]),
    )
    node.sql("alter table at.t rename w to v")
    mirror.assert_equal(["at.t"])

    # Rows written anew, between two batches.
    pg18.psql(
        "alter table at.t alter c type bigint; update at.t set c = c + 3000000000"
    )
    node.wait_for(ERROR, lambda rows: bool(rows) and "out of range" in str(rows[0][0]))
    node.sql("alter table at.t alter c type bigint")
    pg18.psql("insert into at.t select i, 'many', i from generate_series(10, 40) i")
    mirror.assert_equal(["at.t"])
    with psycopg.connect(node.conninfo(), autocommit=True) as past:
        past.execute(f"set wal2lake.as_of_lsn = '{before}'")
        assert past.execute("select * from at.t order by a").fetchall() == rows
