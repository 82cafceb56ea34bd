"""A batch of a table whose conflicts have resolutions of their own is applied in memory, since
Spark cannot resolve one. It was, whatever its size: nothing bounded what it took."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.lake.upsert import TooLarge, UpsertMemory


@pytest.mark.usefixtures("no_fsync")
def test_it_is_applied_in_parts_and_a_transaction_that_does_not_fit_says_so(
    tmp_path: Path,
) -> None:
    def inserts(*keys: int) -> tuple[Change, ...]:
        return tuple(Change(1, "I", (b"%d" % key, b"v")) for key in keys)

    with World(tmp_path) as world:
        side = world.side
        world.lake.most = 2
        side.send(
            *(Transaction(100 * n, inserts(n)) for n in range(1, 8)),
            Transaction(800, inserts(8, 9, 10)),
            Transaction(900, inserts(11)),
        )
        side.start()
        error = side.stops("does not fit into memory")
        assert "finished at 0/320" in error
        assert 'Increase "upsert_bytes" under [apply] in wal2lake.toml' in error
        side.reaches(800)
        assert len(side.visible(1)) == 7
        world.lake.most = None
        side.reaches(908)
        assert len(side.visible(1)) == 11


def test_who_has_all_the_memory_gets_no_more() -> None:
    memory = UpsertMemory(100)
    with memory.share(10) as share:
        share.grow(90)
        with pytest.raises(TooLarge):
            share.grow(1)
    with memory.share(10, alone=True) as share:
        share.grow(50)
        share.grow(40)
        with pytest.raises(TooLarge):
            share.grow(1)
    with pytest.raises(TooLarge), memory.share(101, alone=True):
        pass
    with memory.share(100):
        pass
