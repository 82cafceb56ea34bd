"""ALTER TABLE ... ADD and DROP CONSTRAINT, and REPLICA IDENTITY beside them, without a lake.
Expected errors are PostgreSQL 18's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.commands import World

from wal2lake.catalog import ColumnDef, TableDef
from wal2lake.errors import Wal2LakeError
from wal2lake.frontend.commands import altertable
from wal2lake.frontend.commands.node import Caller
from wal2lake.frontend.grammar import parse
from wal2lake.model import Oid, ReplicaIdentity

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
    return altertable.alter_columns(world.node, caller, parse(f"alter table {sql}"))


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
