"""A Spark job had committed to a table of a subscription that had nothing to apply: readers, and
the node's own subscribers, saw it with the next change of the source, whenever that was."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.fakes.apply_world import Rows, Side, World
from tests.fakes.publisher import Change, Transaction

from wal2lake.model import Oid
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

APPLIED: Rows = {b"1": (b"1", b"v")}
FOREIGN: Rows = {**APPLIED, b"9": (b"9", b"foreign")}


def sees(side: Side, rows: Rows) -> bool:
    return side.visible(1) == rows


def test_it_becomes_visible_though_the_source_is_quiet(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1, 2)) as world:
        side = world.side
        side.send(Transaction(100, (Change(1, "I", (b"1", b"v")),)))
        side.start()
        side.reaches(108)
        for rows in (FOREIGN, {}, FOREIGN):
            side.table(1).versions.append(dict(rows))
            wait_until(partial(sees, side, rows))
        assert side.table(1).version in world.lake.synced[side.location(1)]
        trusted = {rel.relid: rel.trusted for rel in world.catalog.rels(Oid(1))}
        assert sorted(trusted.values()) == [False, True]
        # The next batch meets its rows.
        side.send(Transaction(200, (Change(1, "I", (b"2", b"w")),)))
        side.reaches(208)
        assert side.visible(1) == {**FOREIGN, b"2": (b"2", b"w")}
