"""Statements: parse, print, and PostgreSQL's errors with their places.

The expected errors are PostgreSQL 18.4's answers to the same texts.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.printed import parse_printed

from wal2lake.errors import (
    FeatureNotSupportedError,
    SqlSyntaxError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.model import Deferral, Oid
from wal2lake.sql.grammar import parse, quote_identifier, to_sql
from wal2lake.sql.grammar.statements import (
    AlterSubscriptionEnabled,
    AlterSubscriptionOwner,
    AlterSubscriptionPublication,
    AlterSubscriptionRefresh,
    ColumnClause,
    CommandKind,
    CreateSchema,
    CreateSubscription,
    CreateTable,
    DropSubscription,
    DropTable,
    OptionValue,
    OtherStatement,
    PublicationChange,
    QualifiedName,
    RoleName,
    StatementOption,
    TruncateTable,
    ValueKind,
)

SAME = [
    "CREATE SUBSCRIPTION s CONNECTION 'host=a' PUBLICATION p",
    "CREATE SUBSCRIPTION \"S 1\" CONNECTION 'a=''b''' PUBLICATION p, \"Q\""
    " WITH (connect = false, slot_name = none, streaming, origin = 'Any')",
    "ALTER SUBSCRIPTION s ENABLE",
    "ALTER SUBSCRIPTION s DISABLE",
    "ALTER SUBSCRIPTION s CONNECTION E'a\\\\b'",
    "ALTER SUBSCRIPTION s REFRESH PUBLICATION",
    "ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = 0)",
    "ALTER SUBSCRIPTION s SET PUBLICATION a, b WITH (refresh = off)",
    "ALTER SUBSCRIPTION s ADD PUBLICATION a",
    "ALTER SUBSCRIPTION s DROP PUBLICATION a WITH (refresh)",
    "ALTER SUBSCRIPTION s SET (slot_name = none, binary)",
    "ALTER SUBSCRIPTION s SKIP (lsn = '0/1')",
    "ALTER SUBSCRIPTION s OWNER TO joe",
    "ALTER SUBSCRIPTION s OWNER TO CURRENT_USER",
    'ALTER SUBSCRIPTION s RENAME TO "T"',
    "DROP SUBSCRIPTION s",
    "DROP SUBSCRIPTION IF EXISTS s CASCADE",
    "COMMENT ON SUBSCRIPTION \"S\" IS 'it''s'",
    "COMMENT ON SUBSCRIPTION s IS NULL",
    "COMMENT ON TABLE t IS 'not read further'",
    "CREATE SCHEMA s",
    "CREATE SCHEMA IF NOT EXISTS s AUTHORIZATION joe",
    "CREATE SCHEMA AUTHORIZATION SESSION_USER",
    "DROP SCHEMA IF EXISTS a, b CASCADE",
    "CREATE TABLE t ()",
    'CREATE TABLE IF NOT EXISTS s."T" (a integer NOT NULL, "b c" numeric(10,2)'
    " DEFAULT 1 + 2, c text[], CONSTRAINT pk PRIMARY KEY (a))",
    'CREATE TABLE t (a "char", b character(3), c timestamp(3) with time zone,'
    " d interval day to second(3), e bit varying(4)[])",
    "CREATE TABLE t (a serial, b bigint GENERATED ALWAYS AS IDENTITY (START WITH -5"
    " INCREMENT BY -1) NOT NULL)",
    "DROP TABLE IF EXISTS a, s.b CASCADE",
    "TRUNCATE a, s.b RESTART IDENTITY CASCADE",
    "TRUNCATE a, ONLY s.b",
    'CREATE TABLE t (a integer NOT NULL, "B" text NOT NULL, PRIMARY KEY (a, "B"))'
    ' PARTITION BY RANGE (a, "B")',
    "CREATE TABLE t (a integer) PARTITION BY LIST (a)",
    "CREATE TABLE IF NOT EXISTS s.t PARTITION OF u DEFAULT",
]


@pytest.mark.parametrize("sql", SAME)
def test_printing_a_statement_gives_its_text_back(sql: str) -> None:
    assert to_sql(parse_printed(sql)) == sql


_NAME = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    min_size=1,
    max_size=15,
)


@given(
    _NAME, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)
def test_any_name_and_any_string_survive_print_and_parse(name: str, text: str) -> None:
    statement = CreateSubscription(
        name, text, (name, "p"), (StatementOption(name, None),)
    )
    assert parse(to_sql(statement)) == statement


def test_a_subscription_has_its_parts() -> None:
    assert parse(
        "create subscription S connection 'x' publication P, \"P\""
        " with (Enabled = -1, slot_name = double precision)"
    ) == CreateSubscription(
        "s",
        "x",
        ("p", "P"),
        (
            StatementOption("enabled", OptionValue(ValueKind.NUMBER, "-1")),
            StatementOption(
                "slot_name", OptionValue(ValueKind.WORD, "pg_catalog.float8")
            ),
        ),
    )
    assert parse("alter subscription s disable") == AlterSubscriptionEnabled("s", False)
    assert parse("ALTER SUBSCRIPTION É ENABLE") == AlterSubscriptionEnabled("É", True)
    assert parse("drop subscription if exists s restrict;") == DropSubscription(
        "s", True
    )
    assert parse(
        "alter subscription s refresh publication"
    ) == AlterSubscriptionRefresh("s")
    assert parse("alter subscription s add publication a") == (
        AlterSubscriptionPublication("s", PublicationChange.ADD, ("a",))
    )
    assert parse(
        "alter subscription s owner to current_user"
    ) == AlterSubscriptionOwner("s", RoleName("current_user", keyword=True))


def test_a_table_has_columns_types_defaults_and_a_key() -> None:
    assert parse(
        "create table a.B (id int primary key, n varchar(5) not null default 'x'||'y',"
        ' c "char" default null null, d pg_catalog.int4 default (1 + (2)) collate "C")'
    ) == CreateTable(
        QualifiedName("a", "b"),
        (
            ColumnClause("id", Oid(23), not_null=True),
            ColumnClause("n", Oid(1043), 9, not_null=True, default="'x'||'y'"),
            ColumnClause("c", Oid(18)),
            ColumnClause("d", Oid(23), default="(1 + (2))"),
        ),
        key=("id",),
    )
    keyed = parse("create table t (a int, b int, constraint k primary key (b, a))")
    assert isinstance(keyed, CreateTable)
    assert (keyed.key, keyed.key_name) == (("b", "a"), "k")
    assert all(column.not_null for column in keyed.columns)
    exclude = parse("create table t (exclude int, check_ int)")
    assert isinstance(exclude, CreateTable)
    assert exclude.columns[0].name == "exclude"


def test_lists_of_tables_and_schemas() -> None:
    a, b = QualifiedName(None, "a"), QualifiedName("s", "b")
    assert parse("drop table if exists a, s.b cascade") == DropTable((a, b), True, True)
    assert parse("truncate table only a, only (s.b), c *") == TruncateTable(
        (a, b, QualifiedName(None, "c")), only=(a, b)
    )
    assert parse("create schema authorization joe") == CreateSchema(
        None, authorization=RoleName("joe")
    )


@pytest.mark.parametrize(
    ("sql", "message", "position"),
    [
        ("create subscription s connection x publication p", 'at or near "x"', 34),
        ("create subscription a.b connection 'x' publication p", 'at or near "."', 22),
        ("create subscription select connection 'x' publication p", '"select"', 21),
        ("create subscription left connection 'x' publication p", '"left"', 21),
        ("create subscription s connection 'x' publication p with ()", '")"', 58),
        ("create subscription s connection 'x' 'y' publication p", "\"'y'\"", 38),
        ("create subscription s connection 'x' publication p foo", '"foo"', 52),
        ("alter subscription", "at end of input", 19),
        ("alter subscription s", "at end of input", 21),
        ("alter subscription s frob", 'at or near "frob"', 22),
        ("alter subscription if exists s enable", 'at or near "exists"', 23),
        ("alter subscription s set (a = b) with (x)", 'at or near "with"', 34),
        ("drop subscription a, b", 'at or near ","', 20),
        ("drop subscription if s", 'at or near "s"', 22),
        ("create schema", "at end of input", 14),
        ("drop schema a.b", 'at or near "."', 14),
        ("drop schema if exists a, b restrict cascade", '"cascade"', 37),
        ("create table select (a int)", 'at or near "select"', 14),
        ("create table t5 (a int,)", 'at or near ")"', 24),
        ("create table t5 a int", 'at or near "a"', 17),
        ("create table t (a int) foo", 'at or near "foo"', 24),
        ("create table t21 (a t%rowtype)", 'at or near "%"', 22),
        ("create foo", 'at or near "foo"', 8),
        ("create or replace table x()", 'at or near "table"', 19),
        ("create", "at end of input", 7),
        ("drop", "at end of input", 5),
        ("frob", 'at or near "frob"', 1),
        ("truncate", "at end of input", 9),
    ],
)
def test_syntax_errors_say_where(sql: str, message: str, position: int) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse(sql)
    assert caught.value.message.startswith("syntax error at")
    assert message in caught.value.message
    assert (caught.value.sqlstate, caught.value.position) == ("42601", position)


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message"),
    [
        (
            "create table t (a int primary key, b int primary key)",
            "42P16",
            'multiple primary keys for table "t" are not allowed',
        ),
        (
            "create table t (a int, primary key (zz))",
            "42703",
            'column "zz" named in key does not exist',
        ),
        (
            "create table t (a int, primary key (a, a))",
            "42701",
            'column "a" appears twice in primary key constraint',
        ),
        (
            "create table t (a int, a text)",
            "42701",
            'column "a" specified more than once',
        ),
        (
            "create table t (a int null not null)",
            "42601",
            'conflicting NULL/NOT NULL declarations for column "a" of table "t"',
        ),
        (
            "create table t (a int default 1 default 2)",
            "42601",
            'multiple default values specified for column "a" of table "t"',
        ),
        ("create table t (a nosuch)", "42704", 'type "nosuch" does not exist'),
        (
            "create table a.b.c (a int)",
            "0A000",
            'cross-database references are not implemented: "a.b.c"',
        ),
        (
            "create table t (a int default (select 1))",
            "0A000",
            "cannot use subquery in DEFAULT expression",
        ),
        (
            "create table t (a int default b)",
            "0A000",
            "cannot use column reference in DEFAULT expression",
        ),
        (
            "create table t (a setof int)",
            "42P16",
            'column "a" cannot be declared SETOF',
        ),
        (
            "create table t (a trigger)",
            "42P16",
            'column "a" has pseudo-type trigger',
        ),
        (
            "alter table t add b record[]",
            "42P16",
            'column "b" has pseudo-type record[]',
        ),
        (
            "create schema pg_foo",
            "42939",
            'unacceptable schema name "pg_foo"',
        ),
        (
            "alter subscription s owner to none",
            "42939",
            'role name "none" is reserved',
        ),
        ('create role "none"', "42939", 'role name "none" is reserved'),
        ('grant a to "none"', "42939", 'role name "none" is reserved'),
    ],
)
def test_other_errors_are_postgresqls(sql: str, sqlstate: str, message: str) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        parse(sql)
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("create table t (a int unique)", "UNIQUE constraints are"),
        (
            "create table t (a int check (a > 0) no inherit)",
            "NO INHERIT CHECK constraints are",
        ),
        ("create table t (a int references u)", "FOREIGN KEY constraints are"),
        ("create table t (a int, foreign key (a) references u)", "FOREIGN KEY"),
        ("create table t (a int generated always as (1))", "VIRTUAL generated"),
        ("create table t (a int generated always as (1) virtual)", "VIRTUAL"),
        ("create table t (like u)", "LIKE is"),
        ("create table t (a int) inherits (u)", "INHERITS is"),
        ("create table t (a int) partition by hash (a)", "hash-partitioned tables"),
        ("create table t (a int) partition by range ((a + 1))", "expressions in"),
        ("create table t (a int) partition by range (abs(a))", "expressions in"),
        ('create table t (a text) partition by list (a collate "C")', "collations and"),
        ("create table t partition of u for values in (1)", "bounds of partitions"),
        ("create table t partition of u (primary key (a)) default", "columns and"),
        (
            "create table t partition of u default partition by list (a)",
            "partitions of partitions",
        ),
        ("create table t (a int) partition by list (a) using x", "table access"),
        (
            "create table t (a int) with (fillfactor = 70)",
            'storage parameters like "fillfactor" are',
        ),
        ("create temp table t (a int)", "temporary tables are"),
        ("create unlogged table t (a int)", "unlogged tables are"),
        ("create table t (a int constraint n not null)", "names of NOT NULL"),
        ('create table t (a text collate "de-DE")', 'collation "de-DE" is'),
        ("create schema s create table t (a int)", "schema elements are"),
    ],
)
def test_what_a_lake_table_cannot_have_is_named(sql: str, what: str) -> None:
    with pytest.raises(FeatureNotSupportedError, match="not supported") as caught:
        parse(sql)
    assert caught.value.message.startswith(what)
    assert caught.value.sqlstate == "0A000"


def test_storage_parameters_are_properties_of_delta() -> None:
    found = parse(
        "create table t (a int) with (delta.checkpointinterval = 020,"
        " \"delta.enableDeletionVectors\" = off, delta.logRetentionDuration = '1 Day',"
        " Delta.DeletedFileRetentionDuration = 'interval 3 weeks')"
    )
    assert isinstance(found, CreateTable)
    assert found.parameters == (
        ("delta.checkpointInterval", "20"),
        ("delta.enableDeletionVectors", "false"),
        ("delta.logRetentionDuration", "interval 1 days"),
        ("delta.deletedFileRetentionDuration", "interval 3 weeks"),
    )


def test_columns_by_which_rows_are_kept_together() -> None:
    columns = 'a int, "B c" text, d date, e int, f int'
    found = parse(f"create table t ({columns}) with (cluster_by = '\"B c\", A')")
    assert isinstance(found, CreateTable)
    assert found.clustering == ("B c", "a")
    assert found.parameters == (("cluster_by", '"B c",a'),)
    assert found.partition_columns == ()
    for parameters, sqlstate in {
        "cluster_by = 'x'": "42703",
        "cluster_by = 'a, d, a'": "42701",
        "cluster_by = 'a, d, e, f, \"B c\"'": "54011",
        "cluster_by = 'a', partition_columns = 'd'": "42P16",
        "cluster_by = ''": "22023",
        "cluster_by = 'a b'": "22023",
        "cluster_by": "22023",
    }.items():
        with pytest.raises(Wal2LakeError) as caught:
            parse(f"create table t ({columns}) with ({parameters})")
        assert caught.value.sqlstate == sqlstate, parameters


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("fill = 1", 'unrecognized parameter "fill"'),
        ("delta.appendOnly = true", 'unrecognized parameter "delta.appendonly"'),
        ("x.y = 1", 'unrecognized parameter namespace "x"'),
        (
            "delta.checkpointInterval",
            'invalid value for storage parameter "delta.checkpointInterval": "true"',
        ),
        (
            "delta.logRetentionDuration = '1 month'",
            'invalid value for storage parameter "delta.logRetentionDuration": "1 month"',
        ),
        (
            "delta.enableDeletionVectors = 2",
            'invalid value for storage parameter "delta.enableDeletionVectors": "2"',
        ),
        (
            "delta.checkpointInterval = 5, delta.checkpointInterval = 6",
            'parameter "delta.checkpointInterval" specified more than once',
        ),
    ],
)
def test_wrong_storage_parameters(parameters: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(f"create table t (a int) with ({parameters})")
    assert (caught.value.message, caught.value.sqlstate) == (message, "22023")


@pytest.mark.parametrize(
    ("sql", "kind", "command"),
    [
        ("select 1", CommandKind.SELECT, "SELECT"),
        ("/* x */ (select 1)", CommandKind.SELECT, "SELECT"),
        ("with a as (select 1) insert into t select 1", CommandKind.INSERT, "INSERT"),
        ("with a as (insert into t values (1)) select 1", CommandKind.SELECT, "SELECT"),
        ("values (1)", CommandKind.VALUES, "VALUES"),
        ("table t", CommandKind.TABLE, "TABLE"),
        ("insert into t values (1)", CommandKind.INSERT, "INSERT"),
        ("end", CommandKind.COMMIT, "COMMIT"),
        ("abort", CommandKind.ROLLBACK, "ROLLBACK"),
        ("start transaction", CommandKind.START_TRANSACTION, "START TRANSACTION"),
        ("set a to b", CommandKind.SET, "SET"),
        ("comment on table t is 'x'", CommandKind.COMMENT, "COMMENT"),
        (
            "create or replace view v as select 1",
            CommandKind.UNSUPPORTED,
            "CREATE VIEW",
        ),
        (
            "alter index i set (fillfactor = 70)",
            CommandKind.UNSUPPORTED,
            "ALTER INDEX",
        ),
        (
            "alter table t cluster on i",
            CommandKind.UNSUPPORTED,
            "ALTER TABLE ... CLUSTER ON",
        ),
        ("drop sequence p", CommandKind.UNSUPPORTED, "DROP SEQUENCE"),
    ],
)
def test_other_commands_are_told_apart(
    sql: str, kind: CommandKind, command: str
) -> None:
    assert parse(sql) == OtherStatement(kind, sql, command)


def test_names_are_quoted_where_postgresql_quotes_them() -> None:
    assert quote_identifier("a_1") == "a_1"
    assert quote_identifier("user") == '"user"'
    assert quote_identifier("between") == '"between"'
    assert quote_identifier('A"b') == '"A""b"'
    assert quote_identifier("name") == "name"


@pytest.mark.parametrize(
    "sql",
    [
        "create table {} (a int primary key)",
        "create table if not exists {} (a int)",
        "drop table {}, public.u",
        "truncate {}",
        "alter table {} add column b int",
        "alter table {} rename to u",
        "grant select on {} to someone",
        "create publication p for table {} (a) where (a > 0)",
        "alter publication p add table {}",
        "copy {} to stdout",
    ],
)
def test_a_name_may_begin_with_the_own_database(sql):
    def without_places(text: str) -> str:
        return re.sub(r"position=\d+", "", repr(parse(sql.format(text))))

    assert without_places("lake.public.t") == without_places("public.t")
    with pytest.raises(FeatureNotSupportedError, match="cross-database references"):
        parse(sql.format('"Lake".public.t'))


@pytest.mark.parametrize(
    ("clauses", "deferral"),
    [
        ("", Deferral.NO),
        ("not deferrable initially immediate", Deferral.NO),
        ("deferrable", Deferral.IMMEDIATE),
        ("deferrable initially immediate", Deferral.IMMEDIATE),
        ("initially deferred", Deferral.DEFERRED),
        ("initially deferred deferrable", Deferral.DEFERRED),
    ],
)
def test_a_key_is_judged_when_it_says(clauses: str, deferral: Deferral) -> None:
    for sql in ("a int primary key {}", "a int, primary key (a) {}"):
        found = parse(f"create table t ({sql.format(clauses)})")
        assert isinstance(found, CreateTable)
        assert found.key_deferral is deferral
        again = parse(to_sql(found))
        assert again == found


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "a int primary key not deferrable initially deferred",
            "constraint declared INITIALLY DEFERRED must be DEFERRABLE",
        ),
        (
            "a int primary key deferrable not deferrable",
            "multiple DEFERRABLE/NOT DEFERRABLE clauses not allowed",
        ),
        (
            "a int primary key initially immediate initially deferred",
            "multiple INITIALLY IMMEDIATE/DEFERRED clauses not allowed",
        ),
        ("a int deferrable", "misplaced DEFERRABLE clause"),
        ("a int not null not deferrable", "misplaced NOT DEFERRABLE clause"),
        ("a int initially deferred", "misplaced INITIALLY DEFERRED clause"),
        (
            "a int, primary key (a) deferrable not deferrable",
            "conflicting constraint properties",
        ),
    ],
)
def test_clauses_that_contradict_each_other(columns: str, message: str) -> None:
    """PostgreSQL 18's words."""
    with pytest.raises(SqlSyntaxError) as refused:
        parse(f"create table t ({columns})")
    assert refused.value.message == message
