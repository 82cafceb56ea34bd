"""binary = true on a whole node: the same tables as with text, by both of its ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database
from tests.node.conftest import Psql, answers

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]

SCHEMA = """
    create schema {s};
    create type {s}.mood as enum ('sad', 'so so');
    create type {s}.pair as (a integer, b text);
    create domain {s}.price as numeric(6,2);
    create table {s}.t (
        id int primary key, b bool, i2 int2, i8 int8, f4 real, f8 double precision,
        n numeric(20,5), w numeric(38,10), n0 numeric, d date, ts timestamp,
        tz timestamptz, tm time, tt timetz, iv interval, j json, jb jsonb, u uuid,
        by bytea, vc varchar(20), ch char(5), ar int[], ta text[], m {s}.mood,
        ma {s}.mood[], p {s}.pair, pr {s}.price, ip inet, r int4range, mr datemultirange,
        bt bit(3), pt point, tv tsvector, acl aclitem, big text);
    alter table {s}.t alter big set storage external;
    insert into {s}.t values (
        1, true, -32768, 9223372036854775807, 1.1, 1e-300, 12345.67890,
        -9999999999999999999999999999.0000000001, 1.50000000000000000001, '2024-02-29',
        '1999-12-31 23:59:59.999999', '2024-07-01 12:00+02', '23:59:59.5',
        '01:02:03.04-05:30', '1 year -2 days 03:04:05', '{{"a": 1}}', '{{"b":2}}',
        '6f1c2b1e-0000-4000-8000-000000000001', '\\x00ff', 'var', 'ab', '{{1,NULL,3}}',
        '{{"a,b","q\\"",NULL}}', 'so so', '{{sad,"so so"}}', '(1,"x y")', 12.5,
        '10.0.0.1/8', '[1,5)', '{{[2020-01-01,2020-02-01)}}', B'101', '(1,-0)',
        'a:1A ''it''''s''', 'postgres=r/postgres', repeat('x', 3000));
    insert into {s}.t (id) values (2);
    insert into {s}.t (id, f4, f8, n0) values (3, 'NaN', '-Infinity', 'NaN'), (4, '-0', 0.1, 0);
    create table {s}.k (n numeric, m {s}.mood, v text, primary key (n, m));
    insert into {s}.k values (1.50, 'sad', 'a'), (2, 'sad', 'b'), (3.0, 'so so', 'c');
    create table {s}.full_row (x int, big text);
    alter table {s}.full_row replica identity full;
    create table {s}.plain (x int8, y jsonb);
    insert into {s}.plain select i, '{{}}' from generate_series(1, 500) i;
    create publication {s} for tables in schema {s};
"""
CHANGES = """
    insert into {s}.t select id + 10, b, i2, i8, f4, f8, n, w, n0, d, ts, tz, tm, tt, iv, j,
        jb, u, by, vc, ch, ar, ta, m, ma, p, pr, ip, r, mr, bt, pt, tv, acl, big from {s}.t;
    update {s}.t set n0 = 2 where id = 1;
    update {s}.t set id = -id, iv = null where id = 11;
    update {s}.t set big = 'short' where id = 1;
    delete from {s}.t where id = 2;
    update {s}.k set v = 'same key' where n = 1.5;
    update {s}.k set n = 1.500 where n = 1.5;
    update {s}.k set m = 'so so', v = 'moved' where n = 2;
    delete from {s}.k where n = 3;
    insert into {s}.full_row values (1, repeat('y', 3000));
    insert into {s}.plain select i, to_jsonb(i) from generate_series(501, 1000) i;
"""
TABLES = ("t", "k", "full_row", "plain")
COPIED_IN_BINARY = {
    # Binary wherever no column needs a text of each value; who has not asked for it, has not been
    # told what types of the user's are.
    "bin_text": {"t": "csv", "k": "csv", "full_row": "binary", "plain": "binary"},
    # aclitem has no binary form, and COPY no text for a single column.
    "bin_binary": {"t": "csv", "k": "binary", "full_row": "binary", "plain": "binary"},
}
STREAMS_IN_BINARY = (
    "select bool_or(query like '%binary ''true''%') from pg_stat_activity"
    " where backend_type = 'walsender' and application_name = '{}'"
)


def stored(
    node: Node, schema: str, tables: Sequence[str] = TABLES
) -> dict[str, list[str]]:
    """The tables' rows as they are in the files, to the last bit."""
    found = {}
    for name in tables:
        table = DeltaTable(str(node.directory / "warehouse" / schema / name))
        answer = QueryBuilder().register("t", table).execute("select * from t")
        rows = pa.table(answer.read_all()).to_pylist()
        found[name] = sorted(repr(row) for row in rows)
    return found


def copy_formats(source: Database, schema: str) -> dict[str, str]:
    """By table: the format in which it was asked for, from the source's own log."""
    statements = re.findall(
        rf"COPY \(SELECT .* FROM (?:ONLY )?{schema}\.(\w+)\b.*\)"
        r" TO STDOUT WITH \(FORMAT (\w+)\)",
        source.server.log_text().replace('"', ""),
    )
    assert len(set(statements)) == len(dict(statements)), "one format for each table"
    return dict(statements)


def test_text_and_binary_subscriptions_store_the_same(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    schemas = ("bin_text", "bin_binary")
    for schema in schemas:
        pg18.psql(SCHEMA.format(s=schema))
    pg18.psql(f"alter database {pg18.name} set log_statement = 'all'")
    mirrors = [
        subscribe(pg18, "bin_text"),
        subscribe(pg18, "bin_binary", "with (binary = true)"),
    ]
    for mirror, schema in zip(mirrors, schemas, strict=True):
        mirror.synced()
        mirror.assert_equal([f"{schema}.{t}" for t in TABLES])
    for schema, formats in COPIED_IN_BINARY.items():
        assert copy_formats(pg18, schema) == formats
    assert pg18.psql(STREAMS_IN_BINARY.format("bin_binary")) == "t"
    assert pg18.psql(STREAMS_IN_BINARY.format("bin_text")) == "f"
    assert node.sql("select subname, subbinary from pg_subscription order by 1") == [
        ("bin_binary", "t"),
        ("bin_text", "f"),
    ]
    copied = [stored(node, schema) for schema in schemas]
    assert copied[0] == copied[1]
    for schema in schemas:
        pg18.psql(CHANGES.format(s=schema))
    for mirror, schema in zip(mirrors, schemas, strict=True):
        mirror.assert_equal([f"{schema}.{t}" for t in TABLES])
    changed = [stored(node, schema) for schema in schemas]
    assert changed[0] == changed[1]
    assert changed != copied


COPY_SCHEMA = """
    create schema bin_copy;
    create table bin_copy.t (id int primary key, m money, v tsvector, q tsquery, ms money[]);
    insert into bin_copy.t values
        (1, -1234567.89, 'a:1A,2 ''it''''s''', 'a:*B & !(b | c) <-> d', '{1,NULL,-0.05}'),
        (2, 0, '', '', '{}'), (3, null, null, null, null);
    create publication bin_copy for tables in schema bin_copy;
"""


def test_a_copy_in_binary_has_the_sources_bytes(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(COPY_SCHEMA)
    subscribe(pg18, "bin_copy").synced()

    def copied(conninfo: str, query: str) -> bytes:
        with psycopg.connect(conninfo) as connection, connection.cursor() as cursor:
            sql = f"copy ({query}) to stdout (format binary)".encode()
            with cursor.copy(sql) as copy:
                return b"".join(map(bytes, copy))

    for query in (
        "select * from bin_copy.t order by id",
        "select 'pg_class'::regclass, 'int4'::regtype, 'pg_catalog'::regnamespace",
    ):
        assert copied(node.conninfo(), query) == copied(pg18.conninfo(), query)


def test_the_format_can_be_changed_while_the_subscription_runs(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema bin_alter; create table bin_alter.t (id int primary key,"
        " n numeric, big text);"
        " alter table bin_alter.t alter big set storage external;"
        " insert into bin_alter.t values (0, 1.10, repeat('x', 3000));"
        " create publication bin_alter for tables in schema bin_alter"
    )
    mirror = subscribe(pg18, "bin_alter")
    mirror.synced()
    for step, setting in enumerate(("true", "false", "true"), start=1):
        pg18.psql(f"insert into bin_alter.t values ({step}, {step}.50, 'before')")
        node.sql(f"alter subscription bin_alter set (binary = {setting})")
        expected = "t" if setting == "true" else "f"
        wait_until(
            partial(
                answers, pg18.psql, STREAMS_IN_BINARY.format("bin_alter"), expected
            ),
            describe=f"the stream has binary = {setting}",
        )
        pg18.psql(
            f"update bin_alter.t set n = n + 1 where id < {step};"
            f" update bin_alter.t set id = id + 100 where id = {step}"
        )
    mirror.assert_equal(["bin_alter.t"])


def test_a_type_that_is_made_later_is_learnt(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema bin_later; create table bin_later.a (id int primary key);"
        " create publication bin_later for tables in schema bin_later"
    )
    mirror = subscribe(pg18, "bin_later", "with (binary = true)")
    mirror.synced()
    pg18.psql(
        "create type bin_later.mood as enum ('sad', 'ok');"
        " create table bin_later.b (id int primary key, m bin_later.mood[]);"
        " insert into bin_later.b values (1, '{sad}')"
    )
    node.sql("alter subscription bin_later refresh publication")
    mirror.synced()
    pg18.psql("insert into bin_later.b values (2, '{ok,sad}')")
    mirror.assert_equal(["bin_later.a", "bin_later.b"])


OBJECTS = """
    create schema reg_objects;
    create table reg_objects."A table" (); create table reg_objects.renamed ();
    create table reg_objects.dropped ();
    create function reg_objects.f(integer) returns integer language sql as 'select 1';
    -- A base type whose binary form is four bytes, and its text a number.
    create type reg_objects.years;
    create function reg_objects.years_in(cstring) returns reg_objects.years
        language internal immutable strict as 'int4in';
    create function reg_objects.years_out(reg_objects.years) returns cstring
        language internal immutable strict as 'int4out';
    create function reg_objects.years_recv(internal) returns reg_objects.years
        language internal immutable strict as 'int4recv';
    create function reg_objects.years_send(reg_objects.years) returns bytea
        language internal immutable strict as 'int4send';
    create type reg_objects.years (input = reg_objects.years_in,
        output = reg_objects.years_out, receive = reg_objects.years_recv,
        send = reg_objects.years_send, like = integer);
    create type reg_objects.named as (a integer, r regclass);
    create domain reg_objects.relation as regclass;
"""
NAMES = {
    "regclass": ["pg_class", 'reg_objects."A table"', "reg_objects.renamed", "-"],
    "regtype": ["integer", "reg_objects.years", "timestamptz[]"],
    "regproc": ["now", "reg_objects.f"],
    "regprocedure": ["abs(integer)", "reg_objects.f(integer)"],
    "regoper": ["||/", "0"],
    "regoperator": ["+(integer,integer)", "-(none,integer)"],
    "regrole": ["postgres"],
    "regnamespace": ["pg_catalog", "reg_objects"],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regcollation": ['"C"'],
    "reg_objects.years": ["7", "-2147483648"],
    "reg_objects.named": ["(1,pg_class)", "(,)"],
    "reg_objects.relation": ["reg_objects.dropped"],
}
"""Values of types whose binary form is not what their text says. A number that is nobody's
OID is shown as it is."""
NOBODYS = "4000000"


def rows_of_names(schema: str, offset: int) -> str:
    count = max(len(v) for v in NAMES.values()) + 2
    rows = []
    for i in range(count):
        cells = []
        for name, values in NAMES.items():
            known = [*values, NOBODYS] if "reg_objects." not in name else values
            cells.append(f"{quote_literal(known[i])}" if i < len(known) else "null")
            array = "array[" + ", ".join(quote_literal(v) for v in known) + ", null]"
            cells.append(f"{array}::{name}[]" if i < 2 else "null")
        rows.append(f"({offset + i}, {i}.50, {', '.join(cells)})")
    return f"insert into {schema}.t values {', '.join(rows)};"


@pytest.mark.parametrize("version", [pytest.param(14, marks=pytest.mark.slow), 18])
def test_names_of_the_publishers_catalog_are_the_same_in_both_formats(
    version: int,
    database: Callable[[int], Database],
    node: Node,
    subscribe: Subscribe,
) -> None:
    source = database(version)
    source.psql(OBJECTS)
    declared = ", ".join(f"c{i} {name}, a{i} {name}[]" for i, name in enumerate(NAMES))
    schemas = ("reg_text", "reg_binary")
    for schema in schemas:
        source.psql(
            f"create schema {schema};"
            f" create table {schema}.t (id int primary key, n numeric(9,2), {declared});"
            + rows_of_names(schema, 0)
            + f"create publication {schema} for table {schema}.t"
        )
    mirrors = [
        subscribe(source, "reg_text"),
        subscribe(source, "reg_binary", "with (binary = true)"),
    ]
    for mirror, schema in zip(mirrors, schemas, strict=True):
        mirror.synced()
        mirror.assert_equal([f"{schema}.t"])
    # What is asked for is kept, what is sent is text.
    assert node.sql(
        "select subname, subbinary from pg_subscription where subname like 'reg%'"
        " order by 1"
    ) == [("reg_binary", "t"), ("reg_text", "f")]
    assert source.psql(STREAMS_IN_BINARY.format("reg_binary")) == "f"
    copied = [stored(node, schema, ("t",)) for schema in schemas]
    assert copied[0] == copied[1]
    # Names are those of the time of the change, whenever it is received.
    for schema in schemas:
        node.sql(f"alter subscription {schema} disable")
        source.psql(
            rows_of_names(schema, 100)
            + f"update {schema}.t set n = n + 1 where id in (1, 2);"
            f"delete from {schema}.t where id = 0"
        )
    source.psql(
        "alter table reg_objects.renamed rename to other;"
        " drop table reg_objects.dropped"
    )
    for schema, mirror in zip(schemas, mirrors, strict=True):
        node.sql(f"alter subscription {schema} enable")
        mirror.caught_up()
    changed = [stored(node, schema, ("t",)) for schema in schemas]
    assert changed[0] == changed[1]
    assert changed != copied
    shown = node.sql(
        "select c0, c13 from reg_binary.t where id in (100, 102) order by id"
    )
    assert shown == [("pg_class", "reg_objects.dropped"), ("reg_objects.renamed", None)]


def test_a_user_is_told_why_a_stream_is_not_binary(
    pg18: Database, node: Node, subscribe: Subscribe, psql: Psql
) -> None:
    pg18.psql(
        "create schema bin_told; create table bin_told.t (id int primary key);"
        " create publication bin_told for tables in schema bin_told"
    )
    mirror = subscribe(pg18, "bin_told", "with (binary = true)")
    mirror.synced()
    assert pg18.psql(STREAMS_IN_BINARY.format("bin_told")) == "t"
    pg18.psql("create table bin_told.named (id int primary key, price regtype)")
    done = psql(
        node.conninfo(), "-c", "alter subscription bin_told refresh publication"
    )
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        'NOTICE:  subscription "bin_told" receives changes in text format',
        'DETAIL:  Column "price" of table "bin_told.named": cannot decode the binary'
        " format of type regtype: its text is a name in the publisher's catalog.",
        "HINT:  The publisher sends all columns in one format. Leave these out of the"
        " publication to receive the others in binary format.",
        'NOTICE:  table "bin_told.named" added to subscription "bin_told", and will be copied',
    ]
    pg18.psql("insert into bin_told.named values (1, 'integer')")
    mirror.synced()
    mirror.assert_equal(["bin_told.t", "bin_told.named"])
    assert pg18.psql(STREAMS_IN_BINARY.format("bin_told")) == "f"
    assert (
        'subscription "bin_told" receives changes in text format: Column "price"'
        in node.log_text()
    )


@pytest.mark.slow
def test_a_column_without_decoder_may_come_and_go_while_a_stream_is_binary(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """The lake's table has had its columns from the beginning; nothing ever stops."""
    pg18.psql(
        OBJECTS
        + "create schema bin_grows; create table bin_grows.t (id int primary key);"
        " create publication bin_grows for tables in schema bin_grows;"
        # So that 1,000 rows are streamed while their transaction is open.
        f" alter database {pg18.name} set logical_decoding_work_mem = '64kB'"
    )
    node.sql("create schema bin_grows")
    node.sql(
        "create table bin_grows.t (id int primary key, a text, b text, c text, d text)"
    )
    mirror = subscribe(pg18, "bin_grows", "with (binary = true)")
    mirror.synced()

    def streams(binary: str) -> None:
        wait_until(
            lambda: pg18.psql(STREAMS_IN_BINARY.format("bin_grows")) == binary,
            describe=f"the stream has binary = {binary}",
        )

    def errors() -> list[tuple[str | None, ...]]:
        return node.sql(
            "select error from wal2lake.subscription_errors where subname = 'bin_grows'"
        )

    streams("t")
    # While it streams, in one transaction with rows of before.
    pg18.psql(
        "begin; insert into bin_grows.t select generate_series(1, 1000);"
        " alter table bin_grows.t add a regclass;"
        " insert into bin_grows.t values (1001, 'reg_objects.renamed');"
        " alter table reg_objects.renamed rename to other; commit"
    )
    mirror.caught_up()
    streams("f")
    wait_until(
        lambda: (
            pg18.psql(
                "select stream_txns > 0 from pg_stat_replication_slots"
                " where slot_name = 'bin_grows'"
            )
            == "t"
        ),
        describe="the transaction was streamed",
    )
    # While it does not: when it comes back, no table has these columns.
    pg18.psql("alter table bin_grows.t drop a")
    # Beyond what the server had when the stream became text.
    mirror.caught_up()
    node.sql("alter subscription bin_grows disable")
    node.sql("alter subscription bin_grows enable")
    streams("t")
    node.sql("alter subscription bin_grows disable")
    pg18.psql(
        "alter table bin_grows.t add b reg_objects.years;"
        " insert into bin_grows.t values (1002, '-5');"
        " alter table bin_grows.t drop b; drop type reg_objects.years cascade;"
        # Of which the publisher itself has no binary form.
        " alter table bin_grows.t add c aclitem[];"
        " insert into bin_grows.t values (1003, '{postgres=r/postgres}');"
        " alter table bin_grows.t drop c"
    )
    node.sql("alter subscription bin_grows enable")
    mirror.caught_up()
    streams("f")
    # A type that is new, but known, is no reason to leave binary format.
    pg18.psql("insert into bin_grows.t values (1005)")
    mirror.caught_up()
    node.sql("alter subscription bin_grows disable")
    node.sql("alter subscription bin_grows enable")
    streams("t")
    pg18.psql(
        "create type reg_objects.mood as enum ('sad', 'ok');"
        " alter table bin_grows.t add d reg_objects.mood;"
        " insert into bin_grows.t values (1004, 'ok')"
    )
    mirror.caught_up()
    streams("t")
    assert errors() == []
    assert node.sql("select count(*) from bin_grows.t") == [("1005",)]
    assert node.sql("select * from bin_grows.t where id > 1000 order by id") == [
        ("1001", "reg_objects.renamed", None, None, None),
        ("1002", None, "-5", None, None),
        ("1003", None, None, "{postgres=r/postgres}", None),
        ("1004", None, None, None, "ok"),
        ("1005", None, None, None, None),
    ]
