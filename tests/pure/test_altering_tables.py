"""ALTER TABLE without a lake: the statement, what becomes of the columns, what the catalog says of
each version. Expected errors are PostgreSQL 18's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.printed import parse_printed

from wal2lake.catalog import (
    AddColumn,
    Altered,
    Catalog,
    ChangeType,
    ColumnChange,
    ColumnDef,
    DropColumn,
    RenameColumn,
    SetDefault,
    SetKey,
    SetNotNull,
    TableChange,
    TableDef,
    plan_changes,
)
from wal2lake.errors import SqlSyntaxError, Wal2LakeError
from wal2lake.model import Deferral, Oid
from wal2lake.sql.grammar import parse, to_sql
from wal2lake.sql.grammar.statements import OtherStatement

INT, TEXT = Oid(23), Oid(25)

TABLE = TableDef(
    Oid(16400),
    "public",
    "t",
    Oid(10),
    (ColumnDef("a", INT, not_null=True), ColumnDef("b", TEXT), ColumnDef("c", INT)),
    ("a",),
    "/warehouse/public/t",
)

SAME = [
    "ALTER TABLE t ADD COLUMN a integer",
    "ALTER TABLE IF EXISTS ONLY s.t ADD COLUMN IF NOT EXISTS a character varying(5)"
    " DEFAULT 'x'||'y' NOT NULL, DROP COLUMN IF EXISTS b, ALTER COLUMN c TYPE bigint"
    " USING c::bigint, ALTER COLUMN d SET DEFAULT now(), ALTER COLUMN d DROP NOT NULL",
    "ALTER TABLE t ADD COLUMN a integer GENERATED ALWAYS AS (b + 1) STORED NOT NULL",
    "ALTER TABLE t ALTER COLUMN a SET EXPRESSION AS (b * 2), ALTER COLUMN c DROP"
    " EXPRESSION IF EXISTS, ALTER COLUMN d DROP EXPRESSION",
    'ALTER TABLE t RENAME COLUMN a TO "B b"',
    "ALTER TABLE t RENAME TO u",
    "ALTER TABLE t SET SCHEMA x",
    "ALTER TABLE t OWNER TO joe",
]


@pytest.mark.parametrize("text", SAME)
def test_a_statement_is_printed_as_it_was_parsed(text: str) -> None:
    assert to_sql(parse_printed(text)) == text


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("alter table t", 14),
        ("alter table t foo", 15),
        ("alter table t add a int,", 25),
        ("alter table t add a int default", 32),
        ("alter table t alter a type int using", 37),
        ("alter table t drop a b", 22),
        ("alter table t rename a", 23),
    ],
)
def test_what_is_no_statement_is_so_where_postgresql_says(
    text: str, position: int
) -> None:
    with pytest.raises(SqlSyntaxError) as refused:
        parse(text)
    assert refused.value.position == position


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("alter table t add constraint x unique (a)", "ADD CONSTRAINT"),
        ("alter table t cluster on t_pkey", "CLUSTER ON"),
        ("alter table t drop a, validate constraint x", "VALIDATE CONSTRAINT"),
        ("alter table t alter a set storage plain", "ALTER COLUMN ... SET STORAGE"),
    ],
)
def test_an_action_that_is_not_executed_is_named(text: str, name: str) -> None:
    found = parse(text)
    assert isinstance(found, OtherStatement)
    assert found.command == f"ALTER TABLE ... {name}"


def test_changes_happen_one_after_the_other() -> None:
    plan = plan_changes(
        TABLE,
        [
            DropColumn("c"),
            AddColumn(ColumnDef("c", TEXT, default="'x'")),
            SetDefault("c", "'y'"),
            RenameColumn("a", "id"),
            ChangeType("id", ColumnDef("id", Oid(20))),
            SetNotNull("b", True),
        ],
    )
    assert plan.after.columns == (
        ColumnDef("id", Oid(20), not_null=True),
        ColumnDef("b", TEXT, not_null=True),
        ColumnDef("c", TEXT, default="'y'"),
    )
    assert plan.after.key == ("id",)
    assert [(one.source, one.retyped) for one in plan.columns] == [
        ("a", True),
        ("b", False),
        (None, False),
    ]
    assert plan.columns[2].default == "'x'", "that of rows that are there"
    assert plan.columns[2].default == "'x'"


def test_a_key_goes_with_its_column() -> None:
    after = plan_changes(TABLE, [DropColumn("a")]).after
    assert (after.key, [c.name for c in after.columns]) == ((), ["b", "c"])


@pytest.mark.parametrize(
    ("change", "sqlstate", "message"),
    [
        (
            AddColumn(ColumnDef("b", INT)),
            "42701",
            'column "b" of relation "t" already exists',
        ),
        (DropColumn("x"), "42703", 'column "x" of relation "t" does not exist'),
        (DropColumn("ctid"), "0A000", 'cannot drop system column "ctid"'),
        (RenameColumn("x", "y"), "42703", 'column "x" does not exist'),
        (
            RenameColumn("a", "b"),
            "42701",
            'column "b" of relation "t" already exists',
        ),
        (SetNotNull("a", False), "42P16", 'column "a" is in a primary key'),
    ],
)
def test_what_cannot_be_is_refused(
    change: ColumnChange, sqlstate: str, message: str
) -> None:
    with pytest.raises(Wal2LakeError) as refused:
        plan_changes(TABLE, [change])
    assert (refused.value.sqlstate, refused.value.message) == (sqlstate, message)


def test_each_version_keeps_its_columns(tmp_path: Path) -> None:
    """Those of an intent that is given up never were."""
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    catalog.create_table(TABLE)
    change = TableChange(TABLE.oid, TABLE.location, "id", 4, 1, ())
    wider = plan_changes(TABLE, [AddColumn(ColumnDef("d", INT))]).after
    less = plan_changes(wider, [DropColumn("a")]).after

    def intend(after: TableDef) -> int:
        altered = Altered(after.oid, after.columns, after.key, after.key_name)
        return catalog.begin_local_commit([change], [altered])

    catalog.publish_local({}, number=intend(less))
    assert catalog.table_by_oid(TABLE.oid) == TABLE
    for after, version in ((wider, 5), (less, 9)):
        number = intend(after)
        (pending,) = catalog.local_commits()
        assert pending.altered[0].columns == after.columns
        catalog.publish_local({}, number=number, altered_at=version)
        assert catalog.local_commits() == []
    versions = [catalog.table_at(TABLE, version) for version in (0, 4, 5, 8, 9, 10)]
    assert versions == [TABLE, TABLE, wider, wider, less, less]
    catalog.rename_table(TABLE, "public", "u")
    renamed = catalog.table_at(TABLE, 0)
    assert (renamed.name, renamed.columns) == ("u", TABLE.columns)


def test_a_clustered_table_is_so_by_the_new_names_of_its_columns(
    tmp_path: Path,
) -> None:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    parameters = (("cluster_by", 'a,"b"",c"'), ("delta.checkpointInterval", "5"))
    catalog.create_table(replace(TABLE, parameters=parameters))

    def rename(*renamed: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        catalog.redefine([Altered(TABLE.oid, TABLE.columns, (), None, renamed)])
        found = catalog.table_by_oid(TABLE.oid)
        assert found is not None
        return found.parameters

    assert rename() == parameters
    assert rename(("x", "y"))[0] == ("cluster_by", 'a,"b"",c"')
    assert rename(("a", "A"), ('b",c', "a"))[0] == ("cluster_by", '"A",a')
    assert rename(("c", "d"))[1] == parameters[1]


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ADD PRIMARY KEY (a, b)",
        "ALTER TABLE t ADD CONSTRAINT k PRIMARY KEY (a) DEFERRABLE INITIALLY DEFERRED",
        "ALTER TABLE t DROP CONSTRAINT IF EXISTS k CASCADE, ADD PRIMARY KEY (a)",
    ],
)
def test_keys_are_added_and_dropped(text: str) -> None:
    assert to_sql(parse_printed(text)) == text


def test_a_key_that_is_dropped_leaves_its_columns_not_null() -> None:
    bare = replace(TABLE, key=())
    keyed = plan_changes(bare, [SetKey(("a",), "k", Deferral.DEFERRED)]).after
    assert (keyed.key, keyed.index_name, keyed.key_deferral) == (
        ("a",),
        "k",
        Deferral.DEFERRED,
    )
    after = plan_changes(keyed, [SetKey(())]).after
    assert (after.key, after.key_name, after.key_deferral) == ((), None, Deferral.NO)
    assert after.columns[0].not_null
