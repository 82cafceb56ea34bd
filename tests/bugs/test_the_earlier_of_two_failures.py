"""A batch with two transactions that fail, of which another step finds the later one first.

The relation of the later one has no table, which is seen before any row is converted. The
first attempt was cut there, the second one found the earlier failure, and that was dropped:
the wrong transaction was blamed, and nothing before it was applied.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_the_earlier_transaction_is_blamed_and_all_before_it_applied(
    tmp_path: Path,
) -> None:
    with World(tmp_path) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        side.send(
            Transaction(100, (Change(1, "I", (b"1", b"v")),)),
            Transaction(200, (Change(2, "I", (b"1", b"bad")),)),
            Transaction(300, (Change(9, "I", (b"1", b"nobody's")),)),
        )
        side.start()
        assert 'column "a1" in transaction 7, finished at 0/C8' in side.stops(
            "finished at"
        )
        side.reaches(200)
        assert side.table(1).versions[-1] == {b"1": (b"1", b"v")}
        world.lake.poison = set()
        assert '"public.t9"' in side.stops("finished at 0/12C")
        side.reaches(300)
        assert side.table(2).versions[-1] == {b"1": (b"1", b"bad")}
