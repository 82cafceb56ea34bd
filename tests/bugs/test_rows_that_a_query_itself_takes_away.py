"""``select pg_drop_replication_slot(slot_name) from pg_replication_slots`` has a row for each."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fakes.catalog_source import FakeSource, session

from wal2lake.catalog import ReplicationSlot
from wal2lake.model import Lsn
from wal2lake.publish.limits import Room
from wal2lake.publish.slots import SlotUse
from wal2lake.sql.sysviews import FunctionRequest, SystemCatalog

DROP = (
    "select slot_name, pg_drop_replication_slot(slot_name) from pg_replication_slots"
    " where slot_name like 'x%' order by 1"
)


class WithSlots(FakeSource):
    names: Sequence[str] = ("x1", "x2", "y1")

    def slots(self) -> Sequence[tuple[SlotUse, Room]]:
        made = (ReplicationSlot(n, "pgoutput", Lsn(1), Lsn(1)) for n in self.names)
        return [(SlotUse(slot, None, 0.0), Room("reserved", None)) for slot in made]


def test_each_slot_that_is_dropped_is_a_row() -> None:
    source = WithSlots()
    catalog = SystemCatalog(source)
    dropped: list[object] = []

    def perform(request: FunctionRequest) -> None:
        (name,) = request.arguments
        dropped.append(name)
        source.names = [one for one in source.names if one != name]

    outcome = catalog.execute(DROP, (), session(), perform=perform)
    rows = [batch.columns for batch in outcome.batches]
    assert rows == [([b"x1", b"x2"], [b"", b""])]
    assert dropped == ["x1", "x2"]
    # The next query sees what this one has done.
    left = catalog.query("select slot_name from pg_replication_slots", (), session())
    assert left[1] == [("y1",)]
    catalog.close()
