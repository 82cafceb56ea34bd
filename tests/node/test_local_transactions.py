"""Transactions at the front door: what PostgreSQL 18 does with the same statements.

Every script runs on a PostgreSQL and on the node; tags, rows and errors are equal after each
statement. What has no counterpart there (conflicts are found at COMMIT) is at the end.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import Database
from tests.node.conftest import Subscribe

from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Session = psycopg.Connection[Any]
Both = tuple[Session, Session]
"""The node's, PostgreSQL's."""

_numbers = itertools.count(1)


def outcome(session: Session, sql: str) -> tuple[object, ...]:
    """What a client sees of it."""
    try:
        cursor = session.execute(sql.encode())
    except psycopg.Error as error:
        return (
            "ERROR",
            error.diag.sqlstate,
            error.diag.message_primary,
            error.diag.message_detail if error.diag.sqlstate == "23505" else None,
            session.info.transaction_status,
        )
    status = session.info.transaction_status
    while cursor.nextset():
        pass
    rows = cursor.fetchall() if cursor.description else None
    return cursor.statusmessage, rows, status


def same(both: Both, script: str) -> None:
    """Each line is a query string."""
    ours, theirs = both
    for line in filter(None, map(str.strip, script.splitlines())):
        assert outcome(ours, line) == outcome(theirs, line), line


@pytest.fixture(scope="module")
def source(postgres_server: Callable[..., Any]) -> Iterator[Database]:
    server = postgres_server(18)
    server.psql("create database local_tx")
    yield Database(server, "local_tx")
    server.psql("drop database local_tx with (force)")


@pytest.fixture
def both(node: Node, source: Database) -> Iterator[Both]:
    """A session at each."""
    with (
        psycopg.connect(source.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):
        yield ours, theirs
        for session in (ours, theirs):
            session.execute("rollback")
            session.execute("drop table if exists tx_a, tx_b, tx_u, tx_i, tx_j")


TABLES = """
create table tx_a (id int primary key, v text)
create table tx_b (x int, y text)
create table tx_u (k text, n numeric, v int, primary key (k, n))
create table tx_i (k interval primary key, v int)
create table tx_j (k jsonb, n numeric, primary key (k, n))
insert into tx_a values (1, 'one'), (2, 'two'), (3, 'three')
"""

READ = "select * from tx_a order by id"

BLOCKS = f"""
begin
insert into tx_a values (4, 'four')
insert into tx_b values (1, 'first'), (2, null)
update tx_a set v = v || '!' where id in (1, 4)
delete from tx_a where id = 2
{READ}
select a.id, b.y from tx_a a join tx_b b on a.id = b.x order by 1
insert into tx_a select x + 100, y from tx_b where y is not null
update tx_a set v = (select max(y) from tx_b) where id = (select min(x) from tx_b)
commit
{READ}
select * from tx_b order by x
begin
truncate tx_a, tx_b
select count(*) from tx_a
insert into tx_a values (1, 'anew')
{READ}
rollback
{READ}
begin
truncate tx_b
insert into tx_b values (7, 'seven')
commit
select * from tx_b order by x
begin
insert into tx_a values (50, 'a')
savepoint s
update tx_a set v = 'b' where id = 50
insert into tx_b values (50, 's')
savepoint s
delete from tx_a
rollback to s
{READ}
release s
rollback to s
{READ}
select * from tx_b order by x
insert into tx_a values (51, 'c')
release s
commit
{READ}
begin
insert into tx_a values (60, 'lost')
savepoint s
insert into tx_a values (1, 'taken')
select 1
rollback to savepoint s
insert into tx_a values (61, 'kept')
commit
{READ}
begin
insert into tx_a values (70, 'lost')
select 1/0
insert into tx_a values (71, 'refused')
commit
{READ}
begin
commit
rollback
begin read only
select count(*) from tx_a
insert into tx_a values (80, 'x')
rollback
begin
delete from tx_a where id = 51
delete from tx_a where id = 51
insert into tx_a values (51, 'again')
update tx_a set id = 52 where id = 51
insert into tx_a values (51, 'and again')
commit
{READ}
"""

KEYS = f"""
insert into tx_a values (3, 'taken')
insert into tx_a values (9, 'a'), (10, 'b'), (9, 'c')
insert into tx_a select 11, 'x' from generate_series(1, 2)
insert into tx_a values (null, 'null')
update tx_a set id = 3 where id = 1
update tx_a set id = 30 where id in (1, 2)
update tx_a set id = 40 where id = 2
update tx_a set id = id where id = 1
insert into tx_a values (2, 'free')
{READ}
insert into tx_u values ('it''s', 1.5, 1)
insert into tx_u values ('it''s', 1.5, 2)
insert into tx_u values ('it''s', 1.51, 3), ('its', 1.5, 4)
update tx_u set v = v + 1
select k, n, v from tx_u order by v
"""

TYPED_KEYS = """
insert into tx_i values ('1 day', 1), ('1 mon', 2)
insert into tx_i values ('24:00', 3)
insert into tx_i values ('2 days', 3), ('48:00', 4)
update tx_i set k = '30 days' where v = 1
update tx_i set k = '24 hours' where v = 1
insert into tx_i values ('-1 day', 5)
select k, v from tx_i order by v
insert into tx_j values ('{"a": 1.0}', 1.0)
insert into tx_j values ('{"a": 1.00}', 1)
insert into tx_j values ('{"a": 1.00}', 2), ('{"a": "1.00"}', 1)
"""

STRINGS = f"""
insert into tx_a values (20, 'a'); insert into tx_a values (20, 'b')
insert into tx_a values (21, 'a'); select 1/0; insert into tx_a values (22, 'b')
insert into tx_a values (23, 'a'); update tx_a set v = 'b' where id = 23; select max(v) from tx_a
begin; insert into tx_a values (24, 'a'); commit; insert into tx_a values (25, 'b'); select 1/0
insert into tx_a values (26, 'a'); begin; insert into tx_a values (27, 'b')
rollback
{READ}
"""


def test_statements_of_a_block_see_each_other_and_end_together(both: Both) -> None:
    same(both, TABLES + BLOCKS)


@pytest.mark.slow
def test_a_key_is_taken_once(both: Both) -> None:
    """Within a statement, among rows that are there, and by UPDATE; 1.5 is 1.50, a day is 24
    hours."""
    same(both, TABLES + KEYS + TYPED_KEYS)
    for session in both:
        with pytest.raises(psycopg.errors.UniqueViolation):
            session.execute("insert into tx_u values ('it''s', 1.500, 5)")


@pytest.mark.slow
def test_a_query_string_of_several_statements_is_one_transaction(both: Both) -> None:
    same(both, TABLES + STRINGS)


STATEMENTS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(
                [
                    "insert into tx_a values ({0}, 'i{1}')",
                    "insert into tx_a select {0} + n, 's' from generate_series(0, {1} % 3) n",
                    "update tx_a set v = 'u{1}' where id % 4 = {0} % 4",
                    "update tx_a set id = {1} where id = {0}",
                    "delete from tx_a where id between {0} and {1}",
                    "insert into tx_b select id, v from tx_a where id <= {0}",
                    "delete from tx_b where x in (select id from tx_a)",
                    "truncate tx_b",
                ]
            ),
            st.integers(0, 9),
            st.integers(0, 9),
        ).map(lambda one: one[0].format(one[1], one[2])),
        st.sampled_from(
            ["begin", "commit", "rollback", "savepoint s", "rollback to s", "release s"]
        ),
    ),
    min_size=4,
    max_size=14,
)


def check_model(both: Both, statements: list[str]) -> None:
    ours, theirs = both
    for session in both:
        session.execute("rollback")
        session.execute("drop table if exists tx_a, tx_b")
        session.execute("create table tx_a (id int, v text, primary key (id))")
        session.execute("create table tx_b (x int, y text)")
    # DELETE with a subquery needs a key here.
    plain = [s for s in statements if "from tx_b where x in" not in s]
    for statement in ["begin", *plain, "commit"]:
        expected = outcome(theirs, statement)
        assert outcome(ours, statement) == expected, plain
    for table in ("tx_a", "tx_b"):
        read = f"select * from {table} order by 1, 2"
        assert outcome(ours, read) == outcome(theirs, read), plain


@pytest.mark.slow
@settings(
    max_examples=4,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(statements=STATEMENTS)
def test_any_statements_leave_what_they_leave_in_postgresql(
    both: Both, statements: list[str]
) -> None:
    check_model(both, statements)


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(statements=STATEMENTS)
def test_many_statements_leave_what_they_leave_in_postgresql(
    both: Both, statements: list[str]
) -> None:
    check_model(both, statements)


# ---- drivers, isolation -----------------------------------------------------------------


@pytest.fixture
def table(node: Node) -> Iterator[str]:
    """A table of a test's own: (1, 0) to (10, 0)."""
    name = f"own{next(_numbers)}"
    node.sql(f"create table {name} (id int primary key, v int)")
    node.sql(f"insert into {name} select i, 0 from generate_series(1, 10) i")
    yield name
    node.sql(f"drop table {name}")


def branches(node: Node) -> list[Path]:
    """What open transactions have on the disk."""
    return list((node.directory / "warehouse" / "_transactions").glob("*/*"))


@pytest.mark.slow
def test_psycopg_works_as_it_comes(node: Node, table: str) -> None:
    """Autocommit off is its default; pipelines, nested blocks, executemany; a session that
    dies with an open transaction leaves nothing."""
    with psycopg.connect(node.conninfo()) as session:
        with session.cursor() as cursor:
            cursor.execute(f"insert into {table} values (%s, %s)", (11, 1))
            cursor.executemany(
                f"insert into {table} values (%s, %s)", [(12, 1), (13, 1)]
            )
        assert node.value(f"select count(*) from {table}") == "10"
        session.commit()
        assert node.value(f"select count(*) from {table}") == "13"
        with pytest.raises(psycopg.errors.UniqueViolation), session.transaction():
            session.execute(f"delete from {table} where id > 5")
            with session.transaction():
                session.execute(f"insert into {table} values (1, 1)")
        session.rollback()
        with session.pipeline():
            session.execute(f"update {table} set v = 2 where id = %s", (1,))
            session.execute(f"update {table} set v = v + 1 where id = %s", (1,))
        session.commit()
        assert node.value(f"select v from {table} where id = 1") == "3"
    assert node.value(f"select count(*) from {table}") == "13"
    lost = psycopg.connect(node.conninfo())
    lost.execute(f"truncate {table}")
    assert branches(node)
    lost.close()
    wait_until(lambda: not branches(node), describe="the branch is removed")
    assert node.value(f"select count(*) from {table}") == "13"


@pytest.mark.slow
def test_isolation_is_as_the_decision_says(node: Node, table: str) -> None:
    with (
        psycopg.connect(node.conninfo(), autocommit=True) as one,
        psycopg.connect(node.conninfo(), autocommit=True) as other,
    ):
        count = f"select count(*) from {table}"

        def counted(session: Session) -> int:
            found = session.execute(count.encode()).fetchone()
            assert found is not None
            return int(found[0])

        # READ COMMITTED sees what others have committed, REPEATABLE READ does not.
        one.execute("begin")
        other.execute("begin isolation level repeatable read")
        assert (counted(one), counted(other)) == (10, 10)
        node.sql(f"insert into {table} values (11, 0)")
        assert (counted(one), counted(other)) == (11, 10)
        other.execute(f"insert into {table} values (12, 0)".encode())
        assert counted(other) == 11
        one.execute("commit")
        other.execute("commit")
        assert counted(one) == 12
        # Inserts meet by their key only.
        one.execute("begin")
        other.execute("begin")
        one.execute(f"insert into {table} values (20, 1)".encode())
        other.execute(f"insert into {table} values (21, 2)".encode())
        other.execute("savepoint s")
        one.execute("commit")
        other.execute("commit")
        one.execute("begin")
        one.execute(f"insert into {table} values (30, 1)".encode())
        other.execute(f"insert into {table} values (30, 2)".encode())
        with pytest.raises(psycopg.errors.UniqueViolation) as taken:
            one.execute("commit")
        assert taken.value.diag.message_detail == "Key (id)=(30) already exists."
        # Changes of the same rows: the first one wins.
        one.execute("begin")
        one.execute(f"update {table} set v = v + 1 where id = 1".encode())
        other.execute(f"update {table} set v = v + 10 where id = 1".encode())
        with pytest.raises(psycopg.errors.SerializationFailure):
            one.execute("commit")
        assert node.value(f"select v from {table} where id = 1") == "10"
        assert node.value(f"select v from {table} where id = 30") == "2"
        # ALTER TABLE stays outside.
        one.execute("begin")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            one.execute(f"alter table {table} add column never int".encode())
        one.execute("rollback")


@pytest.mark.slow
def test_two_tables_are_seen_together(node: Node) -> None:
    """Readers never see one table of a transaction without the other."""
    node.sql("create table pair_a (v int)")
    node.sql("create table pair_b (v int)")
    stop = threading.Event()
    torn: list[object] = []

    def read() -> None:
        with closing(node.connect()) as reader:
            while not stop.is_set():
                rows = reader.rows(
                    "select (select count(*) from pair_a), (select count(*) from pair_b)"
                )
                if rows[0][0] != rows[0][1]:
                    torn.append(rows)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        with psycopg.connect(node.conninfo()) as session:
            for number in range(8):
                session.execute("insert into pair_a values (%s)", (number,))
                session.execute("insert into pair_b values (%s)", (number,))
                session.commit()
    finally:
        stop.set()
        thread.join(60)
    assert not torn
    assert node.value("select count(*) from pair_b") == "8"
    node.sql("drop table pair_a, pair_b")


@pytest.mark.slow
def test_local_transactions_and_apply_write_the_same_tables(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    """Rows of both are there in the end, each transaction whole for every reader."""
    pg18.psql(
        "create schema ltx; create table ltx.a (id int primary key, v int);"
        " create table ltx.b (id int primary key, v int);"
        " insert into ltx.a select i, 0 from generate_series(1, 50) i;"
        " insert into ltx.b select i, 0 from generate_series(1, 50) i;"
        " create publication ltx for tables in schema ltx"
    )
    mirror = subscribe(pg18, "ltx")
    mirror.synced()
    stop = threading.Event()

    def work() -> None:
        number = 1000
        while not stop.is_set():
            number += 1
            pg18.psql(
                f"begin; insert into ltx.a values ({number}, 1);"
                f" insert into ltx.b values ({number}, 1); commit"
            )
            stop.wait(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    both = (
        "select (select count(*) from ltx.a), (select count(*) from ltx.b),"
        " (select sum(v) from ltx.a) = (select sum(v) from ltx.b)"
    )
    committed = 0
    try:
        with psycopg.connect(node.conninfo()) as session:
            for number in range(6):
                session.execute("insert into ltx.a values (%s, 100)", (-number,))
                session.execute("insert into ltx.b values (%s, 100)", (-number,))
                session.commit()
                committed += 1
                found = node.sql(both)[0]
                assert found[0] == found[1]
                assert found[2] == "t"
            session.execute("delete from ltx.a where id < 0")
            session.rollback()
    finally:
        stop.set()
        thread.join(60)
    mirror.caught_up()
    expected = pg18.psql("select count(*) from ltx.a")
    assert node.value("select count(*) from ltx.a where id > 0") == expected
    assert node.value("select count(*) from ltx.b where id > 0") == expected
    assert node.value("select count(*) from ltx.a where id <= 0") == str(committed)
    assert node.value("select count(*) from ltx.b where id <= 0") == str(committed)
