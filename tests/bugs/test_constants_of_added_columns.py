"""What rows get in a column that ALTER TABLE adds was stored as the user wrote it, not as a value
of the type: upper case in a uuid, no blanks in a character(3), an interval '1 hour'. And a key of
fewer columns was not looked at if the same command added a column."""

from __future__ import annotations

import pytest

from wal2lake.apply.local.altering import _constants
from wal2lake.catalog import AddColumn, ColumnDef, SetKey, TableDef, plan_changes
from wal2lake.catalog.definitions.columnchanges import ColumnPlan
from wal2lake.model import Oid

TABLE = TableDef(
    Oid(500),
    "public",
    "t",
    Oid(10),
    (ColumnDef("a", Oid(23), not_null=True), ColumnDef("b", Oid(23), not_null=True)),
    ("a", "b"),
    "/t",
)


def adding(oid: int, default: str) -> ColumnPlan:
    column = ColumnDef("c", Oid(oid), default=default)
    return plan_changes(TABLE, [AddColumn(column)])


@pytest.mark.parametrize(
    ("oid", "default"),
    [
        (2950, "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
        (1042, "'a'"),
        (1043, "'a'"),
        (3802, '\'{"b":1,"a":2}\''),
        (1186, "'1 hour'"),
        (1114, "'2026-01-01 00:00:00.7'"),
        (1009, "'{ a , b }'"),
        (1560, "'1'"),
        (1700, "'7.555'"),
    ],
)
def test_a_users_constant_is_computed_and_a_servers_is_taken(
    oid: int, default: str
) -> None:
    plan = adding(oid, default)
    assert _constants(plan, canonical=False) is None
    assert _constants(plan, canonical=True) == {"c": default[1:-1]}


@pytest.mark.parametrize(("oid", "default"), [(25, "'it''s'"), (23, "7"), (20, "-7")])
def test_what_can_be_written_in_one_way_is_taken(oid: int, default: str) -> None:
    assert _constants(adding(oid, default), canonical=False) == {
        "c": default.strip("'").replace("''", "'")
    }


@pytest.mark.parametrize(
    ("oid", "default", "value"),
    [
        (25, "'it''s'::text", "it's"),
        (25, "'a'::text", "a"),
        (23, "'-1'::integer", "-1"),
        (20, "'5000000000'::bigint", "5000000000"),
        (1700, "'-2'::integer", "-2"),
    ],
)
def test_a_constant_as_it_is_shown_is_taken(oid: int, default: str, value: str) -> None:
    assert _constants(adding(oid, default), canonical=False) == {"c": value}


@pytest.mark.parametrize(
    ("oid", "default"), [(25, "'a'::name"), (23, "'7'::text"), (25, "'a' || 'b'::text")]
)
def test_another_expression_is_computed(oid: int, default: str) -> None:
    assert _constants(adding(oid, default), canonical=False) is None


def test_a_key_of_fewer_columns_is_looked_at() -> None:
    column = ColumnDef("c", Oid(23), default="1")
    plan = plan_changes(TABLE, [SetKey(("a",)), AddColumn(column)])
    assert _constants(plan, canonical=True) is None
