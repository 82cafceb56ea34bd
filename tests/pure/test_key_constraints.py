"""ALTER TABLE ... ADD and DROP CONSTRAINT, and REPLICA IDENTITY beside them, without a lake.
Expected errors are PostgreSQL 18's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.commands import World

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.commands.constraints.keyconstraints import deferrable_tables
from wal2lake.commands.tables import altertable
from wal2lake.commands.tables.table import create_table
from wal2lake.errors import Wal2LakeError
from wal2lake.local.node import Caller
from wal2lake.model import Deferral, Oid, ReplicaIdentity
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.altering.alterstatements import AlterTable
from wal2lake.sql.grammar.constraints import constraint_modes
from wal2lake.sql.grammar.statements import CreateTable

INT = Oid(23)

T = TableDef(
    Oid(16400),
    "public",
    "t",
    Oid(10),
    (
        ColumnDef("id", INT, not_null=True, identity="a"),
        ColumnDef("v", INT, not_null=True),
    ),
    (),
    "/warehouse/public/t",
)
R = TableDef(
    Oid(16401),
    "public",
    "r",
    Oid(10),
    (ColumnDef("id", INT, not_null=True),),
    ("id",),
    "/warehouse/public/r",
)

K = replace(R, oid=Oid(16402), name="b", key_name="k", location="/warehouse/public/b")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path, monkeypatch)
    for table in (T, R, K):
        world.catalog.create_table(table)
    # There is no lake: what is asked for is checked, and not done.
    monkeypatch.setattr(altertable, "_carry_out", lambda *_, **__: None)
    return world


def alter(world: World, sql: str) -> str:
    caller = Caller(world.role("me"), world.notices.append)
    statement = parse(f"alter table {sql}")
    assert isinstance(statement, AlterTable)
    return altertable.alter_columns(world.node, caller, statement)


def refusal(world: World, sql: str) -> tuple[str, str]:
    with pytest.raises(Wal2LakeError) as refused:
        alter(world, sql)
    return refused.value.sqlstate, refused.value.message


def test_an_identity_column_stays_not_null(world: World) -> None:
    identity = ("55000", 'column "id" of relation "t" is an identity column')
    assert refusal(world, "t drop constraint t_id_not_null") == identity
    assert refusal(world, "t drop constraint if exists t_id_not_null") == identity
    assert refusal(world, "r drop constraint r_id_not_null") == (
        "42P16",
        'column "id" is in a primary key',
    )
    assert alter(world, "t drop constraint t_v_not_null")


def test_a_replica_identity_may_be_the_key_of_the_same_statement(world: World) -> None:
    refused = (
        "r drop constraint r_pkey, add constraint r_pkey primary key (id) deferrable,"
        " replica identity using index r_pkey"
    )
    assert refusal(world, refused) == (
        "0A000",
        'cannot use non-immediate index "r_pkey" as replica identity',
    )
    dropped = "r replica identity using index r_pkey, drop constraint r_pkey"
    assert refusal(world, dropped) == (
        "42704",
        'index "r_pkey" for table "r" does not exist',
    )
    assert refusal(world, "t replica identity using index k") == (
        "42809",
        '"k" is not an index for table "t"',
    )
    alter(world, "t replica identity full")
    alter(
        world, "t replica identity using index t_k, add constraint t_k primary key (id)"
    )
    now = world.catalog.table("public", "t")
    assert now is not None and now.replica_identity is ReplicaIdentity.INDEX


def test_a_key_and_a_table_do_not_share_a_name(world: World) -> None:
    def create(sql: str) -> str:
        caller = Caller(world.role("me"), world.notices.append)
        statement = parse(f"create table {sql}")
        assert isinstance(statement, CreateTable)
        return create_table(world.node, caller, statement)

    def refused(sql: str) -> tuple[str, str]:
        with pytest.raises(Wal2LakeError) as caught:
            create(sql)
        return caught.value.sqlstate, caught.value.message

    def taken(name: str) -> tuple[str, str]:
        return "42P07", f'relation "{name}" already exists'

    assert refusal(world, "t add constraint k primary key (id)") == taken("k")
    assert refusal(world, "t add constraint t primary key (id)") == taken("t")
    assert refused("c (i int, constraint k primary key (i))") == taken("k")
    assert refused("c (i int, constraint c primary key (i))") == taken("c")
    assert refused("c (i int, constraint r primary key (i))") == taken("r")
    assert refused("k (i int)") == taken("k")
    assert refused("r_pkey (i int)") == taken("r_pkey")
    assert create("if not exists k (i int)") == "CREATE TABLE"
    assert [n.message for n in world.notices] == [f"{taken('k')[1]}, skipping"]
    again = "b drop constraint k, add constraint k primary key (id)"
    assert alter(world, again) == "ALTER TABLE"
    assert refusal(world, again.replace("t k p", "t b p")) == taken("b")


def test_set_constraints_means_the_first_schema_that_has_the_name(
    world: World,
) -> None:
    world.catalog.create_namespace("s2", Oid(10))
    c = replace(
        K,
        oid=Oid(16403),
        namespace="s2",
        name="c",
        location="/warehouse/s2/c",
        key_deferral=Deferral.IMMEDIATE,
    )
    world.catalog.create_table(c)

    def named(sql: str, *search_path: str) -> object:
        caller = Caller(world.role("me"), world.notices.append, search_path)
        modes = constraint_modes(f"set constraints {sql}")
        try:
            return deferrable_tables(world.node, caller, modes)
        except Wal2LakeError as error:
            return error.sqlstate, error.message

    refused = ("42809", 'constraint "k" is not deferrable')
    assert named("k deferred", "public", "s2") == refused
    assert named("public.k deferred", "s2") == refused
    assert named("k deferred", "nowhere", "s2", "public") == {c.oid}
    assert named("s2.k deferred", "public") == {c.oid}
    # What cannot be deferred is immediate.
    assert named("k immediate", "public", "s2") == set()
    assert named("all deferred", "public") is None
    assert named("nope.k deferred", "public") == (
        "3F000",
        'schema "nope" does not exist',
    )
    assert named("s2.nope deferred", "public") == (
        "42704",
        'constraint "nope" does not exist',
    )
