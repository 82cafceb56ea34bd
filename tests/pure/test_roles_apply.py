"""A subscription whose owner is no superuser applies what he may, and stops where he may not."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.apply_world import Side, World
from tests.fakes.publisher import Change
from tests.pure.test_apply_worker import check, commit, delete, insert, update

from wal2lake.catalog import Role, RoleMember
from wal2lake.model import Acl, ObjectKind, Oid

ANN, OWNER, BOSS = Oid(20001), Oid(20002), Oid(10)


def owned(world: World, *, run_as_owner: bool) -> Side:
    """The subscription is ann's, table 1 is owner's."""
    catalog = world.catalog
    for oid, name in ((ANN, "ann"), (OWNER, "owner")):
        catalog.create_role(Role(oid, name, False, None))
    catalog.update_subscription(Oid(1), owner=ANN)
    catalog.set_options(Oid(1), {"run_as_owner": str(run_as_owner).lower()})
    catalog.set_access(tables={Oid(101): (OWNER, None)})
    return world.side


def grant(world: World, letters: str) -> None:
    acl = Acl.default(ObjectKind.TABLE, OWNER)
    if letters:
        acl = acl.grant(OWNER, ANN, letters, grantable=False)
    world.catalog.set_access(tables={Oid(101): (OWNER, acl)})


def truncate(relid: int) -> Change:
    return Change(relid, "T")


def test_a_revoke_stops_the_first_transaction_that_needs_it(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = owned(world, run_as_owner=True)
        grant(world, "awdr")
        side.send(commit(100, insert(1, 1)), commit(200, update(1, 1, "x")))
        side.start()
        side.reaches(208)
        grant(world, "ar")
        side.send(
            commit(300, insert(1, 2)),
            commit(400, delete(1, 1)),
            commit(500, insert(1, 3)),
        )
        error = side.stops("permission denied for table t1")
        assert "finished at 0/190" in error
        check(side, 1, below=400)
        grant(world, "adr")
        side.reaches(508)
        check(side, 1)
        grant(world, "awdr")
        side.send(commit(600, truncate(1)))
        assert "finished at 0/258" in side.stops("permission denied for table t1")
        grant(world, "awdrD")
        side.reaches(608)
        check(side, 1)


def test_an_update_needs_select_too(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = owned(world, run_as_owner=True)
        grant(world, "aw")
        side.send(commit(100, insert(1, 1)), commit(200, update(1, 1, "x")))
        side.start()
        assert "finished at 0/C8" in side.stops("permission denied for table t1")


def test_without_run_as_owner_the_tables_owner_is_who_writes(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = owned(world, run_as_owner=False)
        grant(world, "awdrD")
        side.send(commit(100, insert(1, 1)))
        side.start()
        side.stops('role "ann" cannot SET ROLE to "owner"')
        world.catalog.set_members(
            [RoleMember(Oid(20003), OWNER, ANN, BOSS, inherit=False)]
        )
        side.reaches(108)
        check(side, 1)
