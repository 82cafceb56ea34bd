"""Hints of the grammar, of parameters and of queries on catalogs: what they say is written, and
done."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.node.test_hints_of_queries import hint_of

from wal2lake.errors import PublisherError
from wal2lake.testing.node import Node

NO_MATCH = (
    "No function matches the given name and argument types. You might need to add explicit"
    " type casts."
)
NO_OPERATOR = NO_MATCH.replace("function", "operator")
ONE_PARTITION = (
    "A partitioned table has one partition here, with all rows: CREATE TABLE ... PARTITION"
    " OF ... DEFAULT."
)
DIGITS = "Cast it to numeric(precision,scale) with at most 38 digits."
TEXT = "Cast them to text where that will do."
A_LOGICAL_SLOT = "Use a logical replication slot: pg_create_logical_replication_slot()."


MANY = ", ".join(f"c{number} int" for number in range(40))
KEY = "A" * 43 + "="


def nested(times: int) -> str:
    return "not " * times + "(id > 1)"


@pytest.fixture(scope="module")
def schema(node: Node) -> Iterator[Node]:
    node.sql("create schema hs; create table hs.t (id int)")
    node.sql(
        "create table hs.n (n numeric, d numeric(10,2), w numeric(50,10), c char(3),"
        " j jsonb, at timestamp, f float8)"
    )
    node.sql(
        "insert into hs.n values"
        " (1.5, 2.25, 7, 'abc', '{\"a\": 1}', '2024-01-31 23:59:59.5', 2.5)"
    )
    node.sql("create table hs.o (a int, b int, c int, d int) partition by list (a)")
    node.sql("create table hs.o1 partition of hs.o default")
    node.sql("create table hs.w (id int, v text)")
    node.sql("insert into hs.w values (1, '7')")
    node.sql("create publication hs_w for table hs.w where (id > 0)")
    node.sql("create schema hs_s; create table hs_s.t (id int)")
    yield node
    node.sql("drop publication hs_w")
    node.sql("drop schema hs cascade")


STATEMENTS: Sequence[tuple[str, str, Sequence[str]]] = (
    (
        "create table hs.g (a int, b int generated always as (a * 2))",
        "Write GENERATED ALWAYS AS (...) STORED.",
        ["create table hs.g (a int, b int generated always as (a * 2) stored)"],
    ),
    (
        "grant select (id) on hs.t to public",
        "Grant them on the whole table.",
        ["grant select on hs.t to public"],
    ),
    (
        "create role hs_r unencrypted password 'x'",
        "Remove UNENCRYPTED to store the password in encrypted form instead.",
        ["create role hs_r password 'x'", "drop role hs_r"],
    ),
    (
        "create table hs.h (a int) partition by hash (a)",
        f"Use LIST or RANGE. {ONE_PARTITION}",
        [
            "create table hs.h (a int) partition by list (a)",
            "create table hs.h1 partition of hs.h default",
            "insert into hs.h values (7)",
        ],
    ),
    (
        "create table hs.h2 partition of hs.h for values in (1)",
        ONE_PARTITION,
        [
            "create table hs.r (a int) partition by range (a)",
            "create table hs.r1 partition of hs.r default",
        ],
    ),
    (
        "select * from only hs.h",
        "Leave ONLY out: all rows are in the partition.",
        ["select * from hs.h"],
    ),
    (
        "create table hs.b (a int, b boolean, c text)"
        " with (partition_columns = 'b', cluster_by = 'a')",
        "Leave one of them out.",
        [
            "create table hs.b (a int, b boolean, c text) with (cluster_by = 'a')",
            "create table hs.b2 (a int, b boolean, c text) with (partition_columns = 'b')",
        ],
    ),
    (
        "create table hs.k (a int, b int) with (cluster_by = 'a b')",
        "Names of columns, as in 'region, day'.",
        ["create table hs.k (region int, day int) with (cluster_by = 'region, day')"],
    ),
    (
        "create table hs.m (a int, b int, c int, d int, e int)"
        " with (cluster_by = 'a, b, c, d, e')",
        "Name those that queries look for most often.",
        [
            "create table hs.m (a int, b int, c int, d int, e int)"
            " with (cluster_by = 'a, b, c, d')"
        ],
    ),
    (
        "create table hs.p (a int, b int) with (partition_columns = 'a, b')",
        "Leave one out: data files hold the columns that it does not name.",
        ["create table hs.p (a int, b int) with (partition_columns = 'a')"],
    ),
    (
        "create table hs.l (a int) with (\"delta.logRetentionDuration\" = 'x')",
        'Such as "30 days": hours, days or weeks.',
        [
            "create table hs.l (a int) with (\"delta.logRetentionDuration\" = '30 days')",
            "create table hs.l2 (a int) with (\"delta.logRetentionDuration\" = '2 weeks')",
            "create table hs.l3 (a int) with (\"delta.logRetentionDuration\" = '36 hours')",
        ],
    ),
    (
        "create table hs.i (a int) with (\"delta.checkpointInterval\" = 'x')",
        "Commits between two checkpoints: 1 to 10000.",
        [
            'create table hs.i (a int) with ("delta.checkpointInterval" = 1)',
            'create table hs.i2 (a int) with ("delta.checkpointInterval" = 10000)',
        ],
    ),
    (
        "create table hs.v (a int) with (\"delta.enableDeletionVectors\" = 'x')",
        "true or false.",
        [
            'create table hs.v (a int) with ("delta.enableDeletionVectors" = false)',
            'create table hs.v2 (a int) with ("delta.enableDeletionVectors" = true)',
        ],
    ),
)

STATEMENTS = (
    *STATEMENTS,
    (
        "create table hs.q (a text, b int) with (partition_columns = 'a')",
        "Partition by columns of type smallint, integer, bigint, numeric(p,s), boolean,"
        " date or timestamp.",
        [
            "create table hs.q (a smallint, b integer, c bigint, d numeric(9,2), e boolean,"
            " f date, g timestamp, h text) with (partition_columns = 'a,b,c,d,e,f,g')"
        ],
    ),
    (
        "create table hs.z (a boolean, b int) with (cluster_by = 'a')",
        "Cluster by columns of a type that is stored as whole number, decimal, date,"
        " timestamp or text.",
        [
            "create table hs.z (a int, b numeric(9,2), c date, d timestamp)"
            " with (cluster_by = 'a, b, c, d')",
            "create table hs.z2 (a text, b bigint) with (cluster_by = 'a, b')",
        ],
    ),
    (
        f"create table hs.wide ({MANY}, last int) with (cluster_by = 'last')",
        "Declare the column among them.",
        [f"create table hs.wide (last int, {MANY}) with (cluster_by = 'last')"],
    ),
    (
        "truncate only hs.o",
        "Do not specify the ONLY keyword, or use TRUNCATE ONLY on the partitions directly.",
        ["truncate hs.o", "truncate only hs.o1"],
    ),
    (
        "alter table only hs.o drop column b",
        "Do not specify the ONLY keyword.",
        ["alter table hs.o drop column b"],
    ),
    (
        "alter table only hs.o alter c set not null",
        "Do not specify the ONLY keyword.",
        ["alter table hs.o alter c set not null"],
    ),
    (
        "alter table hs.o1 alter c drop not null",
        "Alter the partitioned table.",
        ["alter table hs.o alter c drop not null"],
    ),
    ("drop table hs.o1", "Drop the partitioned table.", ["drop table hs.o"]),
    (
        "alter table hs.w alter v type integer",
        'You might need to specify "USING v::integer".',
        ["alter table hs.w alter v type integer using v::integer"],
    ),
    (
        "alter table hs.w alter v type integer using 'x' || v::text",
        "You might need to add an explicit cast.",
        ["alter table hs.w alter v type integer using ('1' || v::text)::integer"],
    ),
    (
        "alter table hs.w add column n int default 5, add check (n > 0)",
        "Add the column first, and then the constraint or generated column.",
        [
            "alter table hs.w add column n int default 5",
            "alter table hs.w add check (n > 0)",
        ],
    ),
    (
        "alter table hs.w drop column id",
        "Use DROP ... CASCADE to drop the dependent objects too.",
        ["alter table hs.w drop column id cascade"],
    ),
    (
        f"create publication hs_n for table hs.t where ({nested(250)})",
        "An expression may be nested 200 times.",
        [
            f"create publication hs_n for table hs.t where ({nested(190)})",
            "drop publication hs_n",
        ],
    ),
    (
        f"create role hs_m password 'md5{'0' * 32}'",
        "Give the password itself, or a SCRAM-SHA-256 verifier.",
        [
            "create role hs_m password 'itself'",
            f"alter role hs_m password 'SCRAM-SHA-256$4096:{'A' * 22}==${KEY}:{KEY}'",
            "drop role hs_m",
        ],
    ),
    (
        "drop schema hs_s",
        "Use DROP ... CASCADE to drop the dependent objects too.",
        ["drop schema hs_s cascade"],
    ),
    (
        "begin; create role hs_x; commit",
        "Run it outside of BEGIN ... COMMIT (autocommit): each statement is a transaction.",
        ["create role hs_x", "drop role hs_x"],
    ),
    (
        "begin; insert into hs.t values (8); create publication hs_y; commit",
        "Use two transactions.",
        [
            "begin; insert into hs.t values (8); commit",
            "begin; create publication hs_y; commit",
            "drop publication hs_y",
        ],
    ),
)

VALUES: Sequence[tuple[str, str, str, str]] = (
    (
        "set standard_conforming_strings = off",
        "Write E'...' for a string with backslash escapes.",
        r"select E'a\tb'",
        "a\tb",
    ),
    (
        "set array_nulls = off",
        'Write "NULL" in double quotes for an element that is this text.',
        "select ('{\"NULL\"}'::text[])[1]",
        "NULL",
    ),
    (
        "set transform_null_equals = on",
        "Write IS NULL.",
        "select count(*) from hs.n where (n is null)",
        "0",
    ),
    (
        "set backslash_quote = off",
        "Write two quotes for a quote in a string.",
        "select 'it''s'",
        "it's",
    ),
    (
        "set timezone_abbreviations = 'India'",
        "Write the time zone's whole name.",
        "select at at time zone 'Asia/Kolkata' from hs.n",
        "2024-01-31 18:29:59.5+00",
    ),
    (
        "set datestyle = 'German'; select at from hs.n",
        "Use ISO.",
        "set datestyle = 'ISO'; select at from hs.n",
        "2024-01-31 23:59:59.5",
    ),
    (
        "set wal2lake.as_of_time = 'yesterday'",
        "Write a time as in 2026-05-01 12:30:00+00.",
        "set wal2lake.as_of_time = '2026-05-01 12:30:00+00'; show wal2lake.as_of_time",
        "2026-05-01 12:30:00+00",
    ),
    (
        r"select E'\u41'",
        "Unicode escapes must be \\uXXXX or \\UXXXXXXXX.",
        r"select E'\u0041\U0001F600'",
        "A😀",
    ),
    (
        r"select U&'\41'",
        "Unicode escapes must be \\XXXX or \\+XXXXXX.",
        r"select U&'\0041\+01F600'",
        "A😀",
    ),
    (
        "select pg_logical_emit_message(false, 'p', 5)",
        "You might need to add explicit type casts.",
        "select pg_logical_emit_message(false, 'p', 5::text) is not null",
        "t",
    ),
    ("select lower(relnatts) from pg_class", NO_MATCH, "select lower('A')", "a"),
    (
        "select 1.5 + array[1]",
        NO_OPERATOR,
        "select 1.5 + (array[1])[1]::numeric",
        "2.5",
    ),
    (
        "select count(*) from pg_class where relname > 5",
        "Add explicit type casts, or write it in another way.",
        "select count(*) from pg_class where relname::text > 5::text and oid = 0",
        "0",
    ),
    (
        "select make_interval(day => 1)",
        NO_MATCH,
        "select make_interval(days => 1)",
        "1 day",
    ),
    (
        "select pg_terminate_backend(process => 0)",
        NO_MATCH,
        "select pg_terminate_backend(pid => 0)",
        "f",
    ),
    (
        "select (pg_get_keywords()).word, 1",
        "Call it in FROM.",
        "select word from pg_get_keywords() where word = 'zone'",
        "zone",
    ),
    (
        "select decode('YWI', 'base64') from pg_database",
        "Input data is missing padding, is truncated, or is otherwise corrupted.",
        "select decode('YWI=', 'base64') from pg_database limit 1",
        "\\x6162",
    ),
    (
        "select avg(n) from hs.n",
        DIGITS,
        "select avg(n::numeric(20,2)) from hs.n",
        "1.50000000000000000000",
    ),
    ("select n * n from hs.n", DIGITS, "select n::numeric(9,1) * 2 from hs.n", "3.0"),
    (
        "select greatest(d, 2) from hs.n",
        "Cast all of them to the same numeric(precision,scale), with at most 38 digits.",
        "select greatest(d, 2::numeric(10,2)) from hs.n",
        "2.25",
    ),
    (
        "select least(c, 'abd'::char(3)) from hs.n",
        "Cast them to text.",
        "select least(c::text, 'abd') from hs.n",
        "abc",
    ),
    (
        f"select {' * '.join(['d'] * 20)} from hs.n",
        "Cast a factor to numeric(precision,scale) with a smaller scale.",
        "select d * d::numeric(10,0) from hs.n",
        "4.50",
    ),
    (
        "select d::numeric(38,20) % d::numeric(38,0) from hs.n",
        "Cast both sides to numeric(precision,scale) with a smaller precision.",
        "select d::numeric(30,2) % d::numeric(30,0) from hs.n",
        "0.25",
    ),
    (
        "select floor(f) from hs.n",
        "Cast it to numeric(p,s).",
        "select floor(f::numeric(9,2)) from hs.n",
        "2",
    ),
    (
        "select sqrt(d) from hs.n",
        "Cast it to double precision.",
        "select sqrt(d::double precision) from hs.n",
        "1.5",
    ),
    (
        "select stddev(d) from hs.n",
        "Cast it to double precision.",
        "select stddev(d::double precision) is null from hs.n",
        "t",
    ),
    (
        "update hs.n set w = n",
        DIGITS,
        "update hs.n set w = n::numeric(30,10); select w from hs.n",
        "1.5000000000",
    ),
    (
        "select distinct j from hs.n",
        TEXT,
        "select distinct j::text from hs.n",
        '{"a": 1}',
    ),
    (
        "select count(*) from hs.n where (d, c) in (select d, c from hs.n)",
        "Use EXISTS.",
        "select count(*) from hs.n where exists"
        " (select from hs.n as m where m.d = n.d and m.c = n.c)",
        "1",
    ),
    (
        "select c from hs.n where c ~ '(?=a)b'",
        "Characters, [classes], groups, | and * + ? {m,n} are understood.",
        "select c from hs.n where c ~ '^[a-c](b|d)?c{1,2}'",
        "abc",
    ),
    (
        "select max(n) from hs.n having max(n) > 1",
        "Compute it in a subquery, and compare or order by the subquery's column.",
        "select m from (select max(n) as m from hs.n) x where m > 1 order by m",
        "1.5",
    ),
    (
        "select at = timestamp 'yesterday' from hs.n",
        "Write it in ISO 8601: 2024-01-31 23:59:59.5+00.",
        "select at = timestamp '2024-01-31 23:59:59.5+00' from hs.n",
        "t",
    ),
    (
        "select at at time zone 'EST5EDT' from hs.n",
        "Use a zone's name, as America/New_York.",
        "select at at time zone 'America/New_York' from hs.n",
        "2024-02-01 04:59:59.5+00",
    ),
)


@pytest.mark.parametrize(("sql", "hint", "instead"), STATEMENTS)
def test_statements(schema: Node, sql: str, hint: str, instead: Sequence[str]) -> None:
    assert hint_of(schema, sql) == hint
    for one in instead:
        schema.sql(one)


@pytest.mark.parametrize(("sql", "hint", "instead", "value"), VALUES)
def test_values(schema: Node, sql: str, hint: str, instead: str, value: str) -> None:
    assert hint_of(schema, sql) == hint
    assert schema.value(instead) == value


def test_every_parameter_and_value_that_is_listed_is_taken(schema: Node) -> None:
    node = schema
    hint = hint_of(node, "create table hs.f (a int, b int) with (foo = 1)")
    listed = re.findall(r"[\w.]+", hint.removeprefix("Available:").rstrip("."))
    assert len(listed) >= 6
    values = {
        "Interval": "5",
        "Duration": "'7 days'",
        "Vectors": "true",
        "freshness": "'2s'",
        "iceberg": "true",
    }
    for number, name in enumerate(listed):
        value = next((v for end, v in values.items() if name.endswith(end)), "a")
        node.sql(f'create table hs.f{number} (a int, b int) with ("{name}" = {value})')
    for name in ("bytea_output", "IntervalStyle", "default_transaction_isolation"):
        hint = hint_of(node, f"set {name} = x")
        for value in hint.removeprefix("Available values: ").rstrip(".").split(", "):
            node.sql(f"set {name} = '{value}'")
    for name in ("statement_timeout", "work_mem"):
        hint = hint_of(node, f"set {name} = '2x'")
        units = re.findall(r'"(\w+)"', hint)
        assert len(units) > 4
        for unit in units:
            # The least of work_mem is 64kB.
            number = 100_000 if unit in ("B", "kB", "us") else 1
            node.sql(f"set {name} = '{number}{unit}'")
    option = "create subscription hs connection 'x' publication x with ({} = {})"
    for name in ("synchronous_commit", "schema_changes"):
        hint = hint_of(node, option.format(name, "x"))
        for value in hint.removeprefix("Available values: ").rstrip(".").split(", "):
            # The value is taken; nobody is there to connect to.
            with pytest.raises(PublisherError) as refused:
                node.sql(option.format(name, value))
            assert "connection string" in refused.value.message
    for call in (
        "pg_create_physical_replication_slot('x')",
        "pg_copy_physical_replication_slot('x', 'y')",
    ):
        assert hint_of(node, f"select {call}") == A_LOGICAL_SLOT
    node.sql("select pg_create_logical_replication_slot('hs', 'pgoutput')")
    node.sql("select pg_drop_replication_slot('hs')")


def test_psql_copies_to_a_file(schema: Node, tmp_path: Path) -> None:
    for target in (f"'{tmp_path / 'file'}'", "program 'cat'"):
        assert hint_of(schema, f"copy hs.t to {target}") == (
            "Anyone can COPY to stdout or from stdin. psql's \\copy command also works"
            " for anyone."
        )
    schema.sql("copy hs.t to stdout")
    subprocess.run(
        [
            *("psql", "-Xqv", "ON_ERROR_STOP=1", "-d", schema.conninfo()),
            *("-c", f"\\copy (select 7) to '{tmp_path / 'file'}'"),
        ],
        check=True,
    )
    assert (tmp_path / "file").read_text() == "7\n"


def test_grants_that_others_depend_on(schema: Node) -> None:
    node = schema
    node.sql("create role hs_g; create role hs_1; create role hs_2")
    node.sql("grant usage on schema hs to hs_1")
    node.sql("grant hs_g to hs_1 with admin option")
    node.sql("grant select on hs.n to hs_1 with grant option")
    try:
        node.sql("set role hs_1; grant hs_g to hs_2; grant select on hs.n to hs_2")
        for revoke in ("hs_g from hs_1", "select on hs.n from hs_1"):
            hint = hint_of(node, f"revoke {revoke}")
            assert hint == "Use CASCADE to revoke them too."
            node.sql(f"revoke {revoke} cascade")
        assert node.value("select pg_has_role('hs_2', 'hs_g', 'member')") == "f"
    finally:
        node.sql("revoke usage on schema hs from hs_1")
        node.sql("drop role hs_g, hs_1, hs_2")


def test_a_table_of_somebody_else_is_in_the_way(schema: Node) -> None:
    node = schema
    place = node.directory / "warehouse" / "hs" / "alien"
    write_deltalake(str(place), pa.table({"a": [1]}))
    create = "create table hs.alien (a int)"
    assert hint_of(node, create) == (
        "This node did not create it. Move it away, or use another schema."
    )
    place.rename(place.with_name("away"))
    node.sql(create)
    assert node.sql("select * from hs.alien") == []


@pytest.mark.slow
def test_prepared_transactions(schema: Node) -> None:
    node = schema
    node.sql("create table hs.x (id int); create table hs.y (id int)")
    node.sql("create role hs_p login password 'x'; grant usage on schema hs to hs_p")
    node.sql("grant insert on hs.y to hs_p")
    prepare = "begin; insert into hs.{} values (1); prepare transaction '{}'"
    node.sql(prepare.format("x", "hs"))
    try:
        with node.connect(user="hs_p", password="x") as other:
            with pytest.raises(PublisherError) as refused:
                other.rows("commit prepared 'hs'")
            assert refused.value.hint == (
                "Must be superuser or the user that prepared the transaction."
            )
            other.rows(prepare.format("y", "hs_p"))
            other.rows("commit prepared 'hs_p'")
        node.sql("commit prepared 'hs'")
        assert len(node.sql("select * from hs.x")) == 1
        node.sql(prepare.format("x", "hs"))
        # Somebody else commits the table's definition.
        log = sorted((node.directory / "warehouse/hs/x/_delta_log").glob("*.json"))
        newer = log[-1].with_name(f"{int(log[-1].stem) + 1:020d}.json")
        actions = log[0].read_text().splitlines()
        newer.write_text(next(one for one in actions if "metaData" in one) + "\n")
        assert hint_of(node, "commit prepared 'hs'") == (
            "ROLLBACK PREPARED, and run the transaction again."
        )
        node.sql("rollback prepared 'hs'")
        node.sql(prepare.format("x", "hs"))
        node.sql("commit prepared 'hs'")
        assert len(node.sql("select * from hs.x")) == 2
    finally:
        node.sql("revoke all on schema hs from hs_p; revoke all on hs.y from hs_p")
        node.sql("drop role hs_p")


def test_a_session_whose_role_is_gone(schema: Node) -> None:
    node = schema
    hint = "Connect again; after SET ROLE, RESET ROLE is enough."
    asked = "select has_table_privilege('hs.n', 'select')"
    create = "create role hs_s login password 'x'"
    node.sql(f"{create}; grant usage on schema hs to public")
    node.sql("create role hs_c; grant select on hs.n to public")
    try:
        with node.connect() as client:
            client.rows("set role hs_c")
            node.sql("drop role hs_c")
            with pytest.raises(PublisherError) as gone:
                client.rows("select n from hs.n")
            assert gone.value.hint == hint
            client.rows("reset role")
            assert len(client.rows("select n from hs.n")) == 1
        with node.connect(user="hs_s", password="x") as client:
            client.rows(asked)
            node.sql("drop role hs_s")
            node.sql(create)
            with pytest.raises(PublisherError) as gone:
                client.rows("select n from hs.n")
            assert gone.value.hint == hint
        with node.connect(user="hs_s", password="x") as client:
            assert len(client.rows("select n from hs.n")) == 1
    finally:
        node.sql("drop role hs_s")


def test_the_query_of_another_session_is_shown_to_who_may_see_it(schema: Node) -> None:
    node = schema
    hint = hint_of(node, "set track_activities = off")
    assert hint == (
        "pg_stat_activity shows a session's query to its own role and to members of"
        " pg_read_all_stats only."
    )
    shown = "select query from pg_stat_activity where pid = {}"
    node.sql("create role hs_a; create role hs_b in role pg_read_all_stats")
    try:
        with node.connect() as other, node.connect() as client:
            ((pid,),) = other.rows("select pg_backend_pid()")
            for role, query in (
                ("hs_a", "<insufficient privilege>"),
                ("hs_b", "select pg_backend_pid()"),
            ):
                client.rows(f"set role {role}")
                assert client.rows(shown.format(pid)) == [(query,)]
                client.rows("reset role")
    finally:
        node.sql("drop role hs_a; drop role hs_b")
