"""The front door from outside: psql, psycopg and SQLAlchemy against a node and its source.

One table with all common types is mirrored for the module; what a client sees of it at the
node must be what the same client sees at the source.
"""

from __future__ import annotations

import datetime
import itertools
import os
import signal
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from tests.conftest import Database

from wal2lake.launch.processes import session_members
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

TABLE = """
create schema fd;
create table fd.t (id int primary key, i2 int2, i8 int8, b bool, n numeric,
 nn numeric(20,5), f4 real, f8 double precision, t text, vc varchar(20), ch char(5),
 by bytea, tz timestamptz, ts timestamp, d date, u uuid, jb jsonb, j json, iv interval,
 tm time, ia int[], ta text[], na numeric(8,2)[], da date[], ba bool[], fa float8[]);
insert into fd.t values
(1, -32768, 9223372036854775807, true, 1.50000000000000000001, 12345.67890, 1.1, 1e-300,
 E'a|b\\ttab', 'var', 'ab', '\\x00ff', '2024-07-01 12:00+02',
 '1999-12-31 23:59:59.999999', '2024-02-29', '6f1c2b1e-0000-4000-8000-000000000001',
 '{"b": 2, "a": [1, null]}', '{"a":  1}', '1 year 2 days 03:04:05.5', '23:59:59.5',
 '{1,NULL,3}', '{"a,b","q\\"",NULL,""}', '{1.50,-2.25}', '{2024-02-29,NULL}',
 '{t,f,NULL}', '{NaN,-0,1e300,Infinity}'),
(3, 0, -1, false, 'NaN', 0, 'NaN', 'NaN', '', '', '', '', '0001-01-01 00:00+00',
 '9999-12-31 00:00', '0001-01-01', '00000000-0000-0000-0000-000000000000', '[]', 'null',
 '-1 mons', '00:00', '{}', '{}', '{}', '{}', '{}', '{}'),
(4, 1, 1, true, -0.0, -1, '-0', '-0', E'two\\nlines', 'ü', 'ü', '\\xdeadbeef', 'epoch',
 'epoch', '1582-10-04', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '"ü"', '[1]', '0',
 '12:00:00.000001', '{-1}', '{ü}', '{0}', '{1970-01-01}', '{f}', '{0.1}'),
(5, 1, 1, true, 1e30, 1, '-Infinity', 'Infinity', '日本', 'x', 'x', 'x', '1900-01-01',
 '1900-01-01', '1900-01-01', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '1', '1',
 '1 day -00:00:01', '00:00:01', '{1}', '{x}', '{1}', '{1970-01-01}', '{f}',
 '{123456789.123456789}');
insert into fd.t (id) values (2);
create table fd.many as select i as id from generate_series(1, 20000) i;
create publication fd for table fd.t, fd.many;
"""


@dataclass(frozen=True)
class Pair:
    """The source and the node that mirrors it."""

    source: Database
    node: Node

    @property
    def both(self) -> tuple[str, str]:
        """Connection strings: the source's, the node's."""
        return self.source.conninfo(), self.node.conninfo()


@pytest.fixture(scope="module")
def pair(
    node: Node, postgres_server: Callable[[int], PostgresServer]
) -> Iterator[Pair]:
    """``fd.t`` at a source and, equal, at the shared node."""
    server = postgres_server(18)
    server.psql("create database front_door")
    source = Database(server, "front_door")
    source.psql(TABLE)
    node.sql(
        f"create subscription fd connection {quote_literal(source.conninfo())}"
        " publication fd"
    )
    Mirror(node, source.conninfo(), "fd").synced()
    yield Pair(source, node)
    node.sql("drop subscription fd")
    node.sql("drop schema fd cascade")
    server.psql("drop database front_door with (force)")


@pytest.fixture
def connection(node: Node) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(node.conninfo(), autocommit=True) as opened:
        yield opened


# ---- psql ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-A", "-F", ";"],
        ["-x"],
        ["--csv"],
        ["-H", "-P", "null=(null)"],
        ["-c", "set timezone = 'America/New_York'"],
        ["-c", "set bytea_output = escape", "-c", "set timezone = 'Europe/Berlin'"],
        ["-c", "set extra_float_digits = 0"],
    ],
    ids=" ".join,
)
def test_psql_prints_a_table_as_it_does_on_the_source(
    pair: Pair, psql: Any, arguments: list[str]
) -> None:
    theirs, ours = (
        psql(conninfo, *arguments, "-c", "select * from fd.t order by id")
        for conninfo in pair.both
    )
    assert theirs.returncode == 0, theirs.stderr
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)


def test_psqls_backslash_commands_describe_what_is_there(pair: Pair, psql: Any) -> None:
    user = conninfo_to_dict(pair.node.conninfo())["user"]

    def ask(conninfo: str, command: str) -> str:
        done = psql(conninfo, "-A", "-c", "set search_path = fd", "-c", command)
        assert done.stderr == ""
        return str(done.stdout).removeprefix("SET\n")

    theirs, ours = (ask(conninfo, r"\d t") for conninfo in pair.both)
    # The source also says which publications have the table.
    assert ours.rstrip() == theirs.split("Publications:")[0].rstrip()
    for command in (r"\d", r"\dt", r"\dt fd.*"):
        theirs, ours = (ask(conninfo, command) for conninfo in pair.both)
        assert ours == theirs.replace("|postgres", f"|{user}")
    assert f"fd|{user}" in ask(pair.both[1], r"\dn")
    assert f"lake|{user}|UTF8" in ask(pair.both[1], r"\l")
    assert (
        'Did not find any relation named "nope"'
        in psql(pair.both[1], "-c", r"\d nope").stderr
    )


def test_psql_is_told_names_codes_and_hints_of_errors(pair: Pair, psql: Any) -> None:
    def error(sql: str) -> list[str]:
        done = psql(pair.node.conninfo(), "-v", "VERBOSITY=verbose", "-c", sql)
        assert done.returncode == 1
        return str(done.stderr).splitlines()

    assert error("select * from fd.nope")[0] == (
        'ERROR:  42P01: relation "fd.nope" does not exist'
    )
    assert error("select nope from fd.t")[0] == (
        'ERROR:  42703: column "nope" does not exist'
    )
    assert error("selec 1")[0] == 'ERROR:  42601: syntax error at or near "selec"'
    assert error("select 1 / 0 from fd.t")[0] == "ERROR:  22012: division by zero"
    assert error("create extension hstore")[0].startswith("ERROR:  0A000: ")
    # The passfile's line is for the one database there is.
    line = (pair.node.directory / "passfile").read_text().strip()
    other = pair.node.conninfo(dbname="other")
    done = psql(other, "-c", "select 1", PGPASSWORD=line.rpartition(":")[2])
    assert done.returncode == 2
    assert 'FATAL:  database "other" does not exist' in done.stderr


QUERIES = """
select id, f8 from fd.t where f8 = 'NaN'
select id from fd.t where f4 = 'NaN'
select id from fd.t where f8 > 1e308 order by id
select id from fd.t order by t desc nulls last, id limit 2 offset 1
select id from fd.t order by id limit null
select id, ia[1], ia[3], ta[9] from fd.t order by id
select b, count(*) from fd.t group by b having count(*) > 1 order by b
select sum(i8), min(d), max(tz), count(distinct b) from fd.t where id > 1
with x as (select id, vc from fd.t) select max(id) from x where vc <> ''
select id from fd.t where d between '1900-01-01' and '2024-02-29' union select 9 order by 1
select row_number() over (order by id desc), id from fd.t order by id
select id from fd.t where t like 'a%' or u = 'ffffffff-ffff-ffff-ffff-ffffffffffff' order by 1
select nn + 1, i2 * 2, t || '!' from fd.t where id in (1, 4) order by id
values (1, 'a'), (2, null)
""".strip().splitlines()


def test_queries_answer_as_on_the_source(pair: Pair, psql: Any) -> None:
    different = []
    for query in QUERIES:
        theirs, ours = (
            psql(conninfo, "-A", "-c", query).stdout for conninfo in pair.both
        )
        if theirs != ours:
            different.append((query, theirs, ours))
    assert not different, different


# ---- psycopg ------------------------------------------------------------------------


def test_psycopgs_text_and_binary_results_are_those_of_the_source(pair: Pair) -> None:
    """``real`` apart: its text is shortest, its binary exact, also at the source."""
    answers = []
    for conninfo, binary in itertools.product(pair.both, (False, True)):
        with psycopg.connect(conninfo, autocommit=True) as connection:
            description = connection.execute("select * from fd.t limit 0").description
            assert description is not None
            names = [c.name for c in description]
            sql: Any = f"select {', '.join(names)} from fd.t order by id"
            cursor = connection.cursor(binary=binary)
            rows = cursor.execute(sql).fetchall()
            assert cursor.description is not None
            columns = [
                (c.name, c.type_code, c.precision, c.scale) for c in cursor.description
            ]
            if not binary:
                real = names.index("f4")
                rows = [
                    (*r[:real], r[real] and _as_real(r[real]), *r[real + 1 :])
                    for r in rows
                ]
            # NaN is not equal to itself, its repr is; -0.0 is equal to 0.0.
            answers.append((columns, repr(rows)))
    assert answers[1:] == answers[:1] * 3


def _as_real(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


PARAMETERS: dict[str, Any] = {
    "id": 1,
    "i8": 9223372036854775807,
    "t": "a|b\ttab",
    "b": False,
    "nn": Decimal("12345.67890"),
    "f8": float("nan"),
    "d": datetime.date(2024, 2, 29),
    "ts": datetime.datetime(1999, 12, 31, 23, 59, 59, 999999),
    "tz": datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.UTC),
    "u": uuid.UUID("6f1c2b1e-0000-4000-8000-000000000001"),
    "by": b"\x00\xff",
    "vc": None,
}
"""A column, and a value to compare it with."""


@pytest.mark.parametrize("form", ["%s", "%b", "%t"])
def test_parameters_compare_as_they_do_at_the_source(pair: Pair, form: str) -> None:
    compared = ", ".join(f"{column} = {form} as is_{column}" for column in PARAMETERS)
    sql: Any = f"select id, {compared} from fd.t order by id"
    answers = []
    for conninfo in pair.both:
        with psycopg.connect(conninfo, autocommit=True) as opened:
            answers.append(opened.execute(sql, list(PARAMETERS.values())).fetchall())
    assert answers[1] == answers[0]
    assert all(any(row[i] for row in answers[0]) for i in range(len(PARAMETERS)))


def test_parameters_of_limit_and_offset_are_numbers(
    pair: Pair, connection: psycopg.Connection[Any]
) -> None:
    for _ in range(7):  # After five executions psycopg prepares by name.
        rows = connection.execute(
            "select id from fd.t order by id limit %s offset %s", (2, 1)
        ).fetchall()
        assert rows == [(2,), (3,)]


def test_a_large_result_streams_whole_and_in_order(
    pair: Pair, connection: psycopg.Connection[Any]
) -> None:
    rows = connection.cursor().stream("select id from fd.many order by id")
    assert [row[0] for row in rows] == list(range(1, 20001))


# ---- copy ---------------------------------------------------------------------------

COPIES = (
    "copy (select * from fd.t order by id) to stdout",
    "copy (select * from fd.t order by id) to stdout csv header force quote t",
    "copy (select * from fd.t order by id) to stdout (format binary)",
    "copy (table fd.t order by 1 desc limit 2) to stdout (delimiter ';')",
    "copy (select id, t from only fd.t where (id > 1) order by id) to stdout",
    "copy (values (1, 'a'), (2, null)) to stdout (format csv)",
    "copy (select count(*), 'x' as y from fd.t) to stdout (header)",
    "copy (select id from fd.t where false) to stdout (format binary)",
    "copy (select nspname from pg_namespace where nspname = 'fd') to stdout",
)

BAD_COPIES = (
    "copy nosuch to stdout",
    "copy fd.nosuch to stdout",
    "copy fd.t (id, nosuch) to stdout",
    "copy fd.t to stdout (format 'xml')",
    "copy nosuch to stdout (format 'xml')",
    "copy (select 1 from nosuch) to stdout",
    "copy (select id from fd.t) to stdout (format csv, force_quote (t))",
    "copy pg_tables to stdout",
    "copy information_schema.tables to stdout",
    "copy (select $1) to stdout",
)


def copied(connection: psycopg.Connection[Any], sql: str) -> tuple[bytes, int]:
    """All that comes, and the tag's number."""
    with connection.cursor() as cursor:
        with cursor.copy(sql.encode()) as copy:
            data = b"".join(map(bytes, copy))
        return data, cursor.rowcount


def refused(connection: psycopg.Connection[Any], sql: str) -> tuple[str | None, ...]:
    """What is said of a bad COPY."""
    with pytest.raises(psycopg.Error) as caught:
        copied(connection, sql)
    told = caught.value.diag
    return told.sqlstate, told.message_primary, told.message_hint


def test_copies_are_those_of_the_source(pair: Pair, psql: Any, tmp_path: Path) -> None:
    answers: list[list[Any]] = []
    for number, conninfo in enumerate(pair.both):
        found: list[Any] = []
        with psycopg.connect(conninfo, autocommit=True) as connection:
            found += [(sql, copied(connection, sql)) for sql in COPIES]
            found += [(sql, refused(connection, sql)) for sql in BAD_COPIES]
            # A table has no order.
            for sql in ("copy fd.t to stdout csv", "copy fd.many to stdout"):
                data, tag = copied(connection, sql)
                found.append((sql, sorted(data.splitlines()), tag))
            with (
                connection.cursor() as cursor,
                cursor.copy("copy fd.t (id, t) to stdout (format binary)") as copy,
            ):
                copy.set_types(["int4", "text"])
                found.append(sorted(copy.rows()))
        file = tmp_path / str(number)
        query = "select * from fd.t order by id"
        found.append(psql(conninfo, "-c", f"\\copy ({query}) to '{file}' csv").stdout)
        found.append(file.read_bytes())
        answers.append(found)
    for theirs, ours in zip(*answers, strict=True):
        assert ours == theirs


def test_a_copy_is_of_its_transaction_and_of_its_role(
    node: Node, connection: psycopg.Connection[Any]
) -> None:
    newest = "copy (select max(id) from co) to stdout"
    connection.execute("create table co (id int)")
    connection.execute("create role copier")
    try:
        connection.execute("insert into co values (1)")
        connection.execute("begin isolation level repeatable read")
        assert copied(connection, newest)[0] == b"1\n"
        node.sql("insert into co values (2)")
        assert copied(connection, newest)[0] == b"1\n"
        assert refused(connection, "copy co (nosuch) to stdout")[0] == "42703"
        assert refused(connection, "copy co to stdout")[0] == "25P02"
        connection.execute("rollback")
        assert copied(connection, newest)[0] == b"2\n"

        connection.execute("set role copier")
        denied = ("42501", "permission denied for table co", None)
        assert refused(connection, "copy co to stdout") == denied
        connection.execute("reset role")
        connection.execute("grant select on co to copier")
        connection.execute("set role copier")
        assert copied(connection, "copy co to stdout")[1] == 2
        connection.execute("reset role")
        for sql, code in (
            ("copy co to '/tmp/co'", "42501"),
            ("copy co to program 'cat'", "42501"),
            ("copy co from '/tmp/co'", "42501"),
        ):
            assert refused(connection, sql)[0] == code
    finally:
        connection.execute("rollback")
        connection.execute("reset role")
        connection.execute("drop table co")
        connection.execute("drop role copier")


def test_a_copy_is_cancelled_among_its_rows(
    pair: Pair, connection: psycopg.Connection[Any]
) -> None:
    # More than a socket holds.
    query = "select a.id from fd.many a, fd.many b where b.id <= 200"
    with (
        pytest.raises(psycopg.errors.QueryCanceled, match="user request"),
        connection.cursor() as cursor,
        cursor.copy(f"copy ({query}) to stdout".encode()) as copy,
    ):
        assert copy.read()
        connection.cancel_safe()
        while copy.read():
            pass
    assert copied(connection, "copy (select max(id) from fd.many) to stdout") == (
        b"20000\n",
        1,
    )


# ---- cancelling ---------------------------------------------------------------------

ENDLESS = (
    "select count(*) from fd.many a, fd.many b, fd.many c where a.id + b.id <> c.id"
)


def test_a_running_select_is_cancelled_and_the_session_goes_on(
    pair: Pair, connection: psycopg.Connection[Any]
) -> None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            connection.execute(ENDLESS)
        except psycopg.Error as error:
            caught.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    pid = connection.info.backend_pid
    pair.node.wait_for(
        f"select 1 from pg_stat_activity where pid = {pid} and state = 'active'"
    )
    connection.cancel_safe()
    runner.join(15)
    assert not runner.is_alive()
    assert isinstance(caught[0], psycopg.errors.QueryCanceled)
    assert caught[0].sqlstate == "57014"
    assert "canceling statement due to user request" in str(caught[0])
    assert connection.execute("select max(id) from fd.many").fetchone() == (20000,)


def test_statement_timeout_ends_a_running_select(
    pair: Pair, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("set statement_timeout = '500ms'")
    with pytest.raises(psycopg.errors.QueryCanceled) as caught:
        connection.execute(ENDLESS)
    assert "canceling statement due to statement timeout" in str(caught.value)
    connection.execute("reset statement_timeout")
    assert connection.execute("select max(id) from fd.many").fetchone() == (20000,)


# ---- the catalog without Spark ------------------------------------------------------


def test_catalog_views_answer_while_sparks_jvm_stands_still(
    pair: Pair, psql: Any
) -> None:
    """Stopped by a signal it cannot run a job, so nobody can have asked it for one."""
    node = pair.node
    engine = next(w.pid for w in node.status().workers if w.role == "engine")
    java = [
        pid
        for pid in session_members(engine)
        if Path(f"/proc/{pid}/exe").readlink().name == "java"
    ]
    assert java, "an engine has a JVM"
    views = [
        "select subname from pg_subscription",
        "select srsubstate from pg_subscription_rel",
        "select subname, received_lsn from pg_stat_subscription",
        "select * from pg_replication_origin_status",
        "select * from pg_stat_activity",
        "select * from information_schema.columns where table_schema = 'fd'",
        "select * from wal2lake.snapshots",
        "select * from wal2lake.sync_progress",
        "select * from wal2lake.subscription_errors",
        "select 1 + 1, version(), current_user",
        "show timezone",
    ]
    commands = [r"\d fd.t", r"\dt fd.*", r"\dn", r"\l", *views]
    try:
        for pid in java:
            os.kill(pid, signal.SIGSTOP)
        done = psql(
            node.conninfo(options="-c statement_timeout=20s"),
            *[part for command in commands for part in ("-c", command)],
        )
    finally:
        for pid in java:
            os.kill(pid, signal.SIGCONT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n fd") >= 3
    assert node.value("select count(*) from fd.t") == "5"


# ---- SQLAlchemy ---------------------------------------------------------------------


@pytest.fixture
def alchemy(node: Node) -> Iterator[sa.Engine]:
    found = conninfo_to_dict(node.conninfo())
    engine = sa.create_engine(
        sa.URL.create(
            "postgresql+psycopg",
            username=str(found["user"]),
            host=str(found["host"]),
            port=int(str(found["port"])),
            database=str(found["dbname"]),
            query={"passfile": str(found["passfile"])},
        )
    )
    yield engine
    engine.dispose()


def test_sqlalchemy_inspects_what_the_source_has(
    pair: Pair, alchemy: sa.Engine
) -> None:
    source = sa.create_engine(
        sa.URL.create(
            "postgresql+psycopg",
            username="postgres",
            host="127.0.0.1",
            port=pair.source.server.port,
            database=pair.source.name,
        )
    )
    ours, theirs = sa.inspect(alchemy), sa.inspect(source)
    try:
        assert {"fd", "public", "wal2lake"} <= set(ours.get_schema_names())
        assert sorted(ours.get_table_names("fd")) == ["many", "t"]
        for ask in (
            "get_columns",
            "get_pk_constraint",
            "get_indexes",
            "get_foreign_keys",
            "get_unique_constraints",
            "get_check_constraints",
            "get_table_comment",
        ):
            found, expected = (
                getattr(i, ask)("t", schema="fd") for i in (ours, theirs)
            )
            # Types compare by identity; their repr has name and arguments.
            assert repr(found) == repr(expected), ask
        assert not ours.has_table("nope", schema="fd")
    finally:
        source.dispose()


def test_sqlalchemy_queries_a_reflected_table(pair: Pair, alchemy: sa.Engine) -> None:
    t = sa.Table("t", sa.MetaData(schema="fd"), autoload_with=alchemy)
    newest = (
        sa.select(t.c.id, t.c.d, t.c.u, t.c.jb, t.c.ia, t.c.nn)
        .where(t.c.id.in_([1, 4]), t.c.d > datetime.date(1582, 1, 1))
        .order_by(t.c.id.desc())
        .limit(5)
    )
    counts = (
        sa.select(t.c.b, sa.func.count().label("n"))
        .group_by(t.c.b)
        .order_by(sa.desc("n"), t.c.b)
    )
    with alchemy.connect() as connection:
        assert connection.execute(newest).fetchall() == [
            (
                4,
                datetime.date(1582, 10, 4),
                uuid.UUID("ffffffff-ffff-ffff-ffff-ffffffffffff"),
                "ü",
                [-1],
                Decimal("-1.00000"),
            ),
            (
                1,
                datetime.date(2024, 2, 29),
                uuid.UUID("6f1c2b1e-0000-4000-8000-000000000001"),
                {"a": [1, None], "b": 2},
                [1, None, 3],
                Decimal("12345.67890"),
            ),
        ]
        assert connection.execute(counts).fetchall() == [
            (True, 3),
            (False, 1),
            (None, 1),
        ]


def test_sqlalchemy_creates_fills_and_drops_a_table(
    node: Node, alchemy: sa.Engine
) -> None:
    engine = alchemy.execution_options(isolation_level="AUTOCOMMIT")
    metadata = sa.MetaData(schema="sqla")
    item = sa.Table(
        "item",
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(20), nullable=False, server_default="anon"),
        sa.Column("price", sa.Numeric(10, 2)),
    )
    with engine.connect() as connection:
        connection.execute(sa.schema.CreateSchema("sqla"))
    metadata.create_all(engine)
    with engine.connect() as connection:
        connection.execute(item.insert(), [{"id": 1, "name": "x", "price": 1.5}])
        connection.execute(item.insert().values(id=2))
        assert connection.execute(item.update().values(price=3)).rowcount == 2
        assert connection.execute(sa.select(item).order_by(item.c.id)).fetchall() == [
            (1, "x", Decimal("3.00")),
            (2, "anon", Decimal("3.00")),
        ]
    metadata.drop_all(engine)
    with engine.connect() as connection:
        connection.execute(sa.schema.DropSchema("sqla"))
    assert node.sql("select 1 from pg_namespace where nspname = 'sqla'") == []


# ---- tables of the node's own -------------------------------------------------------


LIFE = r"""
create schema own;
create schema own;
create schema if not exists own;
create table own.t (id bigint primary key, name text not null default 'anon',
 price numeric(10,2), at timestamptz default '2024-01-01 00:00:00+00');
create table own.t (id int);
create table if not exists own.t (id int);
create table nowhere.t (id int);
create table own.bad (id nosuchtype);
insert into own.t (id, price) values (1, 1.005), (2, null), (3, -1);
insert into own.t values (4, default, 5);
insert into own.t (id, name) values (5, null);
insert into own.t (id, nope) values (5, 1);
insert into own.t (id, price) values (5, 123456789.0);
update own.t set price = coalesce(price, 0) + 1, name = 'new' where id < 3;
delete from own.t where id = 3;
select * from own.t order by id;
select count(*) from own.t where at = '2024-01-01 00:00:00+00';
create table own.copy (id bigint, name text);
insert into own.copy select id, name from own.t where price > 1;
create table own.b (id int primary key, data bytea);
insert into own.b values (1, '\x00ff'), (2, 'plain'), (3, ''), (4, null);
update own.b set data = '\xdeadBEEF' where id = 2;
insert into own.b select id + 10, data from own.b where id = 1;
select id, data from own.b order by id;
select * from own.copy order by id;
truncate own.t, own.copy;
select count(*) from own.copy;
drop schema own;
drop table own.copy;
drop table own.copy;
drop table if exists own.copy;
drop schema own cascade;
select 1 from own.t;
drop schema if exists own;
"""


def test_a_table_lives_as_it_would_on_the_source(pair: Pair, psql: Any) -> None:
    """From CREATE SCHEMA to DROP SCHEMA CASCADE: tags, rows, errors with their codes."""
    outcomes = []
    for conninfo in pair.both:
        done = psql(conninfo, "-At", "-v", "VERBOSITY=verbose", stdin=LIFE)
        # The node tells neither an error's place nor the values in a row.
        told = [
            line
            for line in done.stderr.splitlines()
            if line.startswith(("ERROR:", "NOTICE:", "HINT:", "DETAIL:  table"))
        ]
        outcomes.append((done.stdout.splitlines(), told))
    theirs, ours = outcomes
    assert ours == theirs
    assert "INSERT 0 3" in theirs[0] and len(theirs[1]) > 10


def test_a_dropped_tables_files_are_gone_and_its_name_is_free(node: Node) -> None:
    node.sql("create schema again; create table again.t (id int, v text)")
    node.sql("insert into again.t values (1, 'old')")
    folder = node.directory / "warehouse" / "again"
    assert list(folder.iterdir())
    node.sql("drop schema again cascade")
    wait_until(lambda: not folder.exists() or not list(folder.iterdir()))
    node.sql("create schema again; create table again.t (other date)")
    assert node.sql("select * from again.t") == []
    node.sql("drop schema again cascade")
