"""A decoder that was just beginning when its slot was invalidated was not cut off, and went on
behind the segments that had gone: transactions were missing without a word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pure.test_slot_limits import World, grow

from wal2lake.changelog import LogReader, Retention
from wal2lake.errors import UsageError
from wal2lake.model import Lsn
from wal2lake.publish.driver import Decoding
from wal2lake.publish.plugins.port import Context
from wal2lake.publish.plugins.test_decoding import TestDecoding

pytestmark = pytest.mark.usefixtures("no_fsync")


class Decoder:
    """Of slot s, with all that it says."""

    def __init__(self, world: World) -> None:
        self.said: list[str] = []
        unused: Any = None
        self.decoding = Decoding(
            LogReader(world.log),
            TestDecoding(),
            Context(
                "s",
                "test_decoding",
                lambda payload, lsn, last: self.said.append(payload.decode()),
                unused,
                unused,
                unused,
                unused,
            ),
            Lsn(1),
            1 << 20,
        )
        self.decoding.begin((), lambda: world.catalog.slot("s"), lambda start: None)


def test_it_ends_in_place_of_leaving_something_out(tmp_path: Path) -> None:
    world = World(tmp_path)
    ends = grow(world, [100, 100, 100])
    world.slot("s", Lsn(1))
    decoder = Decoder(world)
    slot = world.catalog.slot("s")
    assert slot is not None
    with world.slots.using("s", 7):
        (use,) = world.slots.in_use()
        assert world.slots.invalidate(use, "wal_removed")
        Retention(world.log).trim(ends[1])
        with pytest.raises(UsageError, match="can no longer access") as refused:
            decoder.decoding.advance()
        assert refused.value.sqlstate == "55000"
        assert decoder.said == []
        # Whoever did not hear it is told again.
        world.slot_limits.enforce()
        assert world.terminated == [7]
    assert replace(slot, invalidation="wal_removed") == world.catalog.slot("s")


def test_a_file_that_went_while_it_was_read_is_no_corruption(tmp_path: Path) -> None:
    world = World(tmp_path)
    ends = grow(world, [100, 100, 100])
    world.slot("s", Lsn(1))
    decoder = Decoder(world)

    def between() -> bool:
        (use,) = world.slots.in_use()
        world.slots.invalidate(use, "wal_removed")
        Retention(world.log).trim(ends[1])
        return True

    with pytest.raises(UsageError, match="can no longer access"):
        decoder.decoding.advance(between)
