"""It stayed without a position: the log was kept whole for it, and its name was taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.catalog import Catalog, ReplicationSlot
from wal2lake.model import Lsn

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_the_next_engine_removes_it(tmp_path: Path) -> None:
    catalog = Catalog.create(tmp_path / "catalog", "boss", None)
    for name, lsn, session in (("made", 8, 0), ("half", 0, 0), ("brief", 8, 77)):
        catalog.create_slot(
            ReplicationSlot(name, "pgoutput", Lsn(lsn), Lsn(lsn), session)
        )
    # A session that ends leaves the slots of others, also those that are being made.
    catalog.drop_temporary_slots(78)
    assert len(catalog.slots()) == 3
    catalog.drop_temporary_slots()
    assert [slot.name for slot in catalog.slots()] == ["made"]
