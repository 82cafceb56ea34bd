"""REFRESH PUBLICATION takes a table away while a batch for it is being prepared. The batch was
committed to it all the same, and readers got it back into their vector."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.model import Oid
from wal2lake.testing.waits import wait_until

SUBID = Oid(1)


def test_it_is_not_committed(tmp_path: Path) -> None:
    def insert(relid: int, key: int) -> Change:
        return Change(relid, "I", (b"%d" % key, b"v"))

    with World(tmp_path, tables=(1, 2)) as world:
        side, catalog = world.side, world.catalog
        side.send(Transaction(100, (insert(1, 1), insert(2, 1))))
        side.start()
        side.reaches(108)
        with side.lock:
            side.send(Transaction(200, (insert(1, 2), insert(2, 2))))
            # The worker has divided its batch, and waits for the lock.
            wait_until(lambda: not side.is_idle, describe="a batch")
            seen = len(world.lake.looks)
            catalog.set_publications(SUBID, ("p",), removed=[Oid(102)])
            assert len(world.lake.looks) == seen
        side.reaches(208)
        assert len(side.table(2).versions) == 2
        vector = catalog.newest_vector(SUBID)
        assert vector is not None and 102 not in vector.versions
        assert set(side.visible(1)) == {b"1", b"2"}
