"""type_mappings and value_policies on a whole node, from CREATE SUBSCRIPTION to the views."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Psql = Callable[..., subprocess.CompletedProcess[str]]
Subscribe = Callable[..., Mirror]

LAST = "294247-01-10 04:00:54.775806"
"""The last timestamp that a column holds."""

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
        " d timestamp, c timestamp, n numeric(6,2), w numeric, f numeric, s timestamptz,"
        " l int[], a timestamp[], o oid, must timestamp not null default '2020-01-01');"
        f"insert into {name}.t values (1, '2020-01-01', '2020-01-01', 1, 1.5, 1.5,"
        " '2020-01-01', '{1}', '{2020-01-01}', 7),"
        " (2, '294276-01-01', '294276-01-01', 'NaN', 1e40, 0.12345678901234567890,"
        " '294276-03-15', '{{1}}', '{2020-01-01,infinity,294276-01-01}', 4294967295);"
        f"create publication {name} for tables in schema {name}"
    )
    mirror = subscribe(
        pg18,
        name,
        "with (type_mappings = 'oid = bigint, numeric = decimal(20,3),"
        f" {name}.t.f = double', value_policies = '* = null, {name}.t.c = clamp,"
        f" {name}.t.w = clamp, {name}.t.f = clamp, {name}.t.s = clamp,"
        f" {name}.t.l = lossless, timestamp[] = clamp', binary = {binary})",
    )
    mirror.synced()
    pg18.psql(
        f"insert into {name}.t select id + 10, d, c, n, w, f, s, l, a, o"
        f" from {name}.t; update {name}.t set d = '294275-01-01', w = 0.00051 where id = 1;"
        f" update {name}.t set d = '294276-12-31' where id = 1"
    )
    mirror.caught_up()
    rows = node.sql(f"select id, d, c, n, w, f, s, l, a, o from {name}.t order by id")
    odd = (
        None, LAST, None, "99999999999999999.999", "0.12345678901234568", f"{LAST}+00",
        "{{1}}", f'{{"2020-01-01 00:00:00",infinity,"{LAST}"}}', "4294967295",
    )  # fmt: skip
    plain = (
        "2020-01-01 00:00:00", "2020-01-01 00:00:00", "1.00", "1.500", "1.5",
        "2020-01-01 00:00:00+00", "{1}", '{"2020-01-01 00:00:00"}', "7",
    )  # fmt: skip
    first = (None, "2020-01-01 00:00:00", "1.00", "0.001", *plain[4:])
    assert rows == [("1", *first), ("2", *odd), ("11", *plain), ("12", *odd)]
    listed = node.sql(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute a"
        f" join pg_class c on c.oid = attrelid where relname = 't' and attnum > 0"
        f" and relnamespace = '{name}'::regnamespace order by attnum"
    )
    types = {str(column): type_ for column, type_ in listed}
    assert (types["w"], types["f"]) == ("numeric(20,3)", "double precision")
    assert (types["l"], types["o"]) == ("text", "bigint")
    events = node.sql(EVENTS.format(name))
    inexact = "numeric cannot be stored exactly as "
    beyond = "numeric field overflow: it does not fit decimal(20,3)"
    dates = "timestamp out of range"
    assert [row[:5] for row in events] == [
        ("a", "copy", "clamp", dates, "1"),
        ("a", "stream", "clamp", dates, "1"),
        ("c", "copy", "clamp", dates, "1"),
        ("c", "stream", "clamp", dates, "1"),
        ("d", "copy", "null", dates, "1"),
        ("d", "stream", "null", dates, "3"),
        ("f", "copy", "clamp", f"{inexact}double precision", "1"),
        ("f", "stream", "clamp", f"{inexact}double precision", "1"),
        ("n", "copy", "null", 'numeric "NaN" cannot be stored as decimal(6,2)', "1"),
        ("n", "stream", "null", 'numeric "NaN" cannot be stored as decimal(6,2)', "1"),
        ("s", "copy", "clamp", dates, "1"),
        ("s", "stream", "clamp", dates, "1"),
        ("w", "copy", "clamp", beyond, "1"),
        ("w", "stream", "clamp", f"{inexact}decimal(20,3)", "2"),
        ("w", "stream", "clamp", beyond, "1"),
    ]
    examples = {(row[0], row[3]): row[5] for row in events}
    assert examples["d", dates] == "294276-01-01 00:00:00"
    assert examples["s", dates] == "294276-03-15 00:00:00+00"
    assert str(examples["a", dates]).startswith('{"2020-01-01 00:00:00",infinity,')
    # A value that is stored as NULL may not be one where NULL may not be.
    pg18.psql(f"insert into {name}.t (id, must) values (99, '294276-01-01')")
    found = node.wait_for(ERROR.format(name))
    assert f'table "{name}.t"' in str(found) or f'"{name}.t"' in str(found)
    assert 'column "must"' in str(found)


def test_options_that_cannot_be_are_refused_before_anything_is_made(
    pg18: Database, node: Node
) -> None:
    pg18.psql(
        "create schema vp_no; create type vp_no.mood as enum ('sad');"
        "create table vp_no.t (id int primary key, m vp_no.mood, d date not null,"
        " n numeric(6,2));"
        "create publication vp_no for tables in schema vp_no"
    )

    def refused(options: str) -> tuple[str, str, str]:
        with pytest.raises(PublisherError) as caught:
            node.sql(create(pg18, "vp_no", options))
        error = caught.value
        return error.sqlstate, error.message, str(error.hint)

    assert refused("type_mappings = 'jsonb = variant'") == (
        "0A000",
        'cannot store jsonb as "variant": the type is not supported',
        "Possible: STRING.",
    )
    assert refused("type_mappings = 'mood = int'")[:2] == (
        "22023",
        "type vp_no.mood cannot be stored as INT",
    )
    assert refused("value_policies = 'date = skip'") == (
        "22023",
        'unrecognized value policy: "skip"',
        "Available policies: error, null, clamp, lossless, text, widen.",
    )
    policy = 'value policy "{}" is not possible for column "vp_no.t.{}"'
    assert refused("value_policies = 'vp_no.t.id = clamp'")[1] == (
        policy.format("clamp", "id")
    )
    assert refused("value_policies = 'vp_no.t.d = null'")[1] == (
        policy.format("null", "d")
    )
    node.sql("create schema if not exists vp_no")
    node.sql(
        "create table vp_no.t (id int primary key, m text, d date, n numeric(6,2))"
    )
    assert refused("type_mappings = 'date = string'") == (
        "55000",
        'column "d" of table "vp_no.t" is of type date (DATE), not text (STRING) as'
        " type_mappings say",
        "Drop the table and let the subscription create it, or leave the column out of"
        " the option.",
    )
    assert refused("value_policies = 'numeric = text'")[1] == (
        'column "n" of table "vp_no.t" is of type numeric(6,2) (DECIMAL(6,2)), not text'
        " (STRING) as value_policies say"
    )
    assert node.sql("select 1 from pg_subscription where subname = 'vp_no'") == []
    node.sql("drop schema vp_no cascade")
    slots = "select count(*) from pg_replication_slots where slot_name = 'vp_no'"
    assert pg18.psql(slots) == "0"


def test_options_are_shown_and_can_be_changed(
    pg18: Database, node: Node, subscribe: Subscribe, psql: Psql
) -> None:
    pg18.psql(
        "create schema vp_set; create table vp_set.a (id int primary key, d numeric(6,2));"
        "create publication vp_set for tables in schema vp_set"
    )
    mirror = subscribe(pg18, "vp_set", "with (type_mappings = 'numeric = double')")
    mirror.synced()
    shown = (
        "select type_mappings, value_policies from wal2lake.subscription_options"
        " where subname = 'vp_set'"
    )
    assert node.sql(shown) == [("numeric = double", "")]
    pg18.psql(
        "begin; insert into vp_set.a values (1, 1.5); commit;"
        "begin; insert into vp_set.a values (2, 'NaN'); commit;"
        "begin; insert into vp_set.a values (3, 3.5); commit"
    )
    (error,) = node.wait_for(ERROR.format("vp_set"))[0]
    assert error is not None
    assert error.startswith('numeric "NaN" cannot be stored')
    finished = error.rsplit("finished at ", 1)[1].strip()
    assert 'relation "vp_set.a" column "d"' in error
    # What is before it has been applied, and the position says so.
    node.wait_for("select id from vp_set.a order by 1", lambda rows: rows == [("1",)])
    assert node.sql(EVENTS.format("vp_set")) == []
    node.sql("alter subscription vp_set set (value_policies = 'numeric = null')")
    mirror.caught_up()
    assert node.sql("select id, d from vp_set.a order by 1") == [
        ("1", "1.50"),
        ("2", None),
        ("3", "3.50"),
    ]
    assert node.sql(
        "select first_lsn, last_lsn, events from wal2lake.coercions"
        " where subname = 'vp_set'"
    ) == [(finished, finished, "1")]
    assert node.sql(ERROR.format("vp_set")) == []
    with pytest.raises(PublisherError, match="unrecognized value policy"):
        node.sql("alter subscription vp_set set (value_policies = 'date = nul')")
    told = psql(
        node.conninfo(),
        *(
            "-c",
            "alter subscription vp_set set (type_mappings = 'date=string, mood=int')",
        ),
    )
    assert "present ones keep their columns" in told.stderr
    pg18.psql(
        "create table vp_set.b (id int primary key, d date);"
        "insert into vp_set.b values (1, 'infinity'), (2, '0044-03-15 BC')"
    )
    told = psql(node.conninfo(), "-c", "alter subscription vp_set refresh publication")
    assert told.stderr == (
        'WARNING:  no published column is concerned by "mood" in type_mappings\n'
        'NOTICE:  table "vp_set.b" added to subscription "vp_set", and will be copied\n'
    )
    mirror.synced()
    mirror.assert_equal(["vp_set.b"])
    assert node.sql(shown) == [("date=string, mood=int", "numeric = null")]


def test_a_column_becomes_text_for_a_value_of_its_first_copy(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """In the stream such a value stops the subscription. A column that was there stays as it is."""
    pg18.psql(
        "create schema vp_w; create table vp_w.t (n numeric(6,2) primary key, c int,"
        " m numeric(6,2) default 1.5, l int[], s numeric(6,2), k text);"
        " insert into vp_w.t select i, i, i, array[i], i, 'x' from generate_series(1, 9) i;"
        " insert into vp_w.t values ('NaN', 10, 'NaN', '{{1,2}}', 10, 'y'),"
        " (11, 11, null, '[2:3]={1,2}', 11, 'z');"
        " create table vp_w.here (id int primary key, v text);"
        " insert into vp_w.here values (1, 'one');"
        " create table vp_w.part (id int primary key, g numeric(6,2));"
        " insert into vp_w.part values (1, 'NaN');"
        " create publication vp_w for tables in schema vp_w"
    )
    node.sql("create schema vp_w")
    node.sql("create table vp_w.here (id int primary key, v int)")
    node.sql(
        "create table vp_w.part (id int primary key, g numeric(6,2))"
        " with (partition_columns = g)"
    )
    mirror = subscribe(
        pg18,
        "vp_w",
        "with (value_policies = '* = widen')",
    )
    node.wait_for(
        "select srsubstate from pg_subscription_rel where srrelid = 'vp_w.t'::regclass",
        lambda rows: rows == [("r",)],
    )
    types = (
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = 'vp_w.{}'::regclass and attnum > 0 order by attnum"
    )
    assert node.sql(types.format("t")) == [
        ("n", "text"),
        ("c", "integer"),
        ("m", "text"),
        ("l", "text"),
        ("s", "numeric(6,2)"),
        ("k", "text"),
    ]
    mirror.assert_equal(["vp_w.t"])
    nan = 'numeric "NaN" cannot be stored as decimal(6,2)'
    noted = node.sql(EVENTS.format("vp_w"))
    # "g" is noted at each attempt to copy its table, and forgotten when it stays a number.
    assert [row for row in noted if row[0] not in ("g", "l")] == [
        ("m", "copy", "widen", nan, "1", "NaN"),
        ("n", "copy", "widen", nan, "1", "NaN"),
    ]
    assert [(row[0], row[2], row[4], row[5]) for row in noted if row[0] == "l"] == [
        ("l", "widen", "1", "{{1,2}}")
    ]
    # A table that was there keeps its columns.
    node.wait_for(
        "select error from wal2lake.sync_progress where tablename = 'here'",
        lambda rows: "invalid input syntax for type integer" in str(rows),
    )
    assert ("v", "integer") in node.sql(types.format("here"))
    # Nor is it altered by whose values the files of a table are divided.
    node.wait_for(
        "select error from wal2lake.sync_progress where tablename = 'part'",
        lambda rows: (
            nan in str(rows)
            and "The column cannot become text: cannot alter column" in str(rows)
        ),
    )
    node.wait_for(
        EVENTS.format("vp_w"), lambda rows: "g" not in [row[0] for row in rows]
    )
    pg18.psql("update vp_w.here set v = '1'; update vp_w.part set g = 1")
    node.sql("alter subscription vp_w disable")
    node.sql("alter subscription vp_w enable")
    mirror.synced()
    pg18.psql("insert into vp_w.t values (12.5, 12, 'NaN', '{{3}}', 12, 'v')")
    mirror.assert_equal(["vp_w.t"])
    pg18.psql("insert into vp_w.t (n, s) values (13, 'NaN')")
    found = node.wait_for(ERROR.format("vp_w"))
    assert nan in str(found) and 'column "s"' in str(found)
    node.sql("alter subscription vp_w set (value_policies = '* = null')")
    mirror.caught_up()
    assert node.sql("select s from vp_w.t where n = '13.00'") == [(None,)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    ["copy.widening_noted", "alter.recorded", "alter.committed", "alter.published"],
)
def test_sigkill_while_a_column_becomes_text(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path, point: str
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    pg18.psql(
        "create table vk (id int primary key, n numeric(6,2));"
        " insert into vk select i, i from generate_series(1, 9) i;"
        " insert into vk values (10, 'NaN'); create publication vk for table vk"
    )
    (points / point).write_text("kill")
    node.sql(create(pg18, "vk", "value_policies = 'numeric = widen'"))
    wait_until(lambda: not (points / point).exists(), describe=f"{point} is reached")
    pg18.psql("insert into vk values (11, 'NaN')")
    node.wait_ready()
    mirror = Mirror(node, pg18.conninfo(), "vk")
    mirror.synced()
    mirror.assert_equal(["public.vk"])
    assert [row[:5] for row in node.sql(EVENTS.format("vk"))] == [
        ("n", "copy", "widen", 'numeric "NaN" cannot be stored as decimal(6,2)', "1")
    ]


def test_text_that_is_not_valid_is_an_error_or_null_and_never_cut(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    name = f"{pg18.name}_ascii"
    pg18.psql(
        f"create database {name} encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'"
        " template template0"
    )
    source = Database(pg18.server, name)
    try:
        _check_invalid_text(source, node, subscribe)
    finally:
        node.sql("drop subscription if exists vp_ascii")
        pg18.psql(f"drop database {name} with (force)")


def _check_invalid_text(source: Database, node: Node, subscribe: Subscribe) -> None:
    source.psql(
        "create schema vp_ascii; create table vp_ascii.t"
        " (id int primary key, a text, b text[], h varchar(9));"
        "insert into vp_ascii.t values (1, 'caf' || chr(233), null, 'x'),"
        " (2, 'ok', array['caf' || chr(233), 'ok'], 'y');"
        "create publication vp_ascii for tables in schema vp_ascii"
    )
    mirror = subscribe(source, "vp_ascii", "with (value_policies = 'text[] = null')")
    (error,) = node.wait_for(ERROR.format("vp_ascii"))[0]
    assert error is not None
    assert error.startswith('invalid byte sequence for encoding "UTF8"')
    assert "COPY t, column a, snapshot at " in error
    node.sql("alter subscription vp_ascii set (value_policies = '* = null')")
    mirror.synced()
    source.psql("insert into vp_ascii.t values (3, 'ok', null, chr(255) || 'z')")
    mirror.caught_up()
    assert node.sql("select * from vp_ascii.t order by id") == [
        ("1", None, None, "x"),
        ("2", "ok", None, "y"),
        ("3", "ok", None, None),
    ]
    reason = 'invalid byte sequence for encoding "UTF8"'
    assert node.sql(EVENTS.format("vp_ascii")) == [
        ("a", "copy", "null", reason, "1", "caf\\xe9"),
        ("b", "copy", "null", reason, "1", "{caf\\xe9,ok}"),
        ("h", "stream", "null", reason, "1", "\\xffz"),
    ]
    # One that may not become NULL: the HINT of a key says what is left.
    source.psql("create table vp_ascii.k (k text primary key)")
    node.sql("alter subscription vp_ascii refresh publication")
    mirror.synced()
    source.psql("insert into vp_ascii.k values (chr(255)), ('b')")
    ((told,),) = node.wait_for(ERROR.format("vp_ascii"), lambda rows: rows != [])
    assert (
        "Correct the row at the source, drop the table here and run ALTER SUBSCRIPTION ..."
        " REFRESH PUBLICATION"
    ) in str(told)
    source.psql("update vp_ascii.k set k = 'a' where k <> 'b'")
    node.sql("drop table vp_ascii.k")
    node.sql("alter subscription vp_ascii refresh publication")
    mirror.synced()
    mirror.caught_up()
    assert node.sql("select k from vp_ascii.k order by k") == [("a",), ("b",)]
    assert node.sql(ERROR.format("vp_ascii")) == []


def test_labels_and_attributes_that_come_later_are_read(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema vp_later; create type vp_later.mood as enum ('sad');"
        "create type vp_later.pair as (a int, m vp_later.mood);"
        "create domain vp_later.small as int check (value < 9);"
        "create domain vp_later.tiny as vp_later.small;"
        "create table vp_later.t (id int primary key, m vp_later.mood,"
        " p vp_later.pair, y vp_later.tiny);"
        "insert into vp_later.t values (1, 'sad', '(1,sad)', 3);"
        "create publication vp_later for tables in schema vp_later"
    )
    mirror = subscribe(
        pg18, "vp_later", "with (binary = true, type_mappings = 'vp_later.tiny = int')"
    )
    mirror.synced()
    pg18.psql("alter type vp_later.mood add value 'so so' before 'sad'")
    pg18.psql(
        "insert into vp_later.t values (2, 'so so', row(1, 'so so'), 4);"
        "alter type vp_later.pair add attribute t text;"
        # What a new attribute is in rows that were there is never sent.
        "update vp_later.t set y = y;"
        "insert into vp_later.t values (3, 'sad', row(1, null, 'x y'), null)"
    )
    mirror.assert_equal(["vp_later.t"])
    assert node.sql("select sum(y) from vp_later.t") == [("7",)]


@pytest.mark.slow
def test_a_value_that_is_too_long_is_refused_or_null_whole_or_not_at_all(
    make_node: Callable[..., Node], pg18: Database
) -> None:
    limit = 4 << 20
    node = make_node(settings={**FAST_RETRY, "apply.max_value_bytes": limit}).start()
    pg18.psql(
        "create table t (id int primary key, b bytea, t text);"
        f"insert into t values (1, decode(repeat('00', {limit // 2 - 1}), 'hex'), 'x'),"
        f" (2, '', repeat('y', {limit}));"
        "create publication p for table t"
    )
    node.sql(create(pg18, "p", "value_policies = 'bytea = null'"))
    mirror = Mirror(node, pg18.conninfo(), "p")
    mirror.synced()
    mirror.assert_equal(["public.t"])
    pg18.psql(
        f"insert into t values (3, decode(repeat('00', {limit // 2}), 'hex'), 'z');"
        f"insert into t values (4, '', repeat('z', {limit + 1}))"
    )
    reason = f"value is longer than apply.max_value_bytes ({limit} bytes)"
    (error,) = node.wait_for(ERROR.format("p"))[0]
    assert error is not None
    assert error.startswith(reason)
    assert 'relation "public.t" column "t"' in error
    assert (
        '"public.t.t = null" to value_policies (ALTER SUBSCRIPTION ... SET); or raise'
        ' "max_value_bytes" under [apply] in wal2lake.toml and restart the node.'
    ) in error
    assert node.sql("select id, length(b), t from t where id > 2") == [("3", None, "z")]
    assert [row[:5] for row in node.sql(EVENTS.format("p"))] == [
        ("b", "stream", "null", reason, "1")
    ]
    # Both remedies of the hint: the setting keeps the value.
    node.stop()
    node.start(environ={"WAL2LAKE_APPLY_MAX_VALUE_BYTES": str(limit + 1)})
    mirror.caught_up()
    kept = "select length(t) from t where id = 4"
    assert node.value(kept) == str(limit + 1)
    pg18.psql(f"insert into t values (5, '', repeat('z', {limit + 2}))")
    node.wait_for(ERROR.format("p"))
    node.sql(
        "alter subscription p set (value_policies = 'bytea = null, public.t.t = null')"
    )
    mirror.caught_up()
    assert node.sql("select id, length(b), t from t where id = 5") == [("5", "0", None)]
