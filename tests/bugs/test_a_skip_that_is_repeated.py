"""ALTER SUBSCRIPTION ... SKIP while the leaving out has begun. Some tables are beyond the
transaction then; forgetting that it has begun made the others apply their half of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.errors import StorageError, UsageError
from wal2lake.model import INVALID_LSN, Lsn, Oid
from wal2lake.testing.waits import wait_until

SUBID = Oid(1)


def _insert(relid: int, key: int, value: str = "v") -> Change:
    return Change(relid, "I", (b"%d" % key, value.encode()))


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side, catalog = world.side, world.catalog
        world.lake.poison = {b"bad"}
        side.send(Transaction(100, (_insert(1, 1), _insert(2, 1))))
        side.send(
            Transaction(200, (_insert(1, 2), _insert(2, 2), _insert(1, 3, "bad")))
        )
        side.send(Transaction(300, (_insert(1, 4), _insert(2, 4))))
        side.start()
        side.stops("finished at 0/C8")
        full = {"disk": True}

        def before(location: str) -> None:
            if location == side.location(2) and full["disk"]:
                wait_until(
                    lambda: side.table(1).version == 2, describe="t1 has committed"
                )
                raise StorageError("disk full for a moment", sqlstate="53100")

        world.lake.before_commit = before
        catalog.set_skip(SUBID, Lsn(200))
        side.stops("disk full")
        side.stop()

        catalog.set_skip(SUBID, Lsn(200))
        for other in (Lsn(300), INVALID_LSN):
            with pytest.raises(UsageError) as raised:
                catalog.set_skip(SUBID, other)
            assert raised.value.sqlstate == "55006"
        full["disk"] = False
        world.lake.poison = set()
        side.start()
        side.reaches(308)
        for table in (1, 2):
            assert set(side.visible(table)) == {b"1", b"4"}


def test_leaving_out_does_not_begin_for_what_is_not_named_any_more(
    tmp_path: Path,
) -> None:
    with World(tmp_path, tables=(1,)) as world:
        world.catalog.set_skip(SUBID, Lsn(200))
        assert not world.catalog.begin_skip(SUBID, Lsn(100))
        assert world.catalog.begin_skip(SUBID, Lsn(200))
        found = world.catalog.subscription(SUBID)
        assert found is not None and found.skipping
