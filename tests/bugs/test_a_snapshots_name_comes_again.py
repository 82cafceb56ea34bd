"""PostgreSQL gives exported snapshots the same names again after a restart. Ranges of an earlier
copy were then taken for those of the present one: rows twice, or as they had been."""

from __future__ import annotations

from pathlib import Path

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    CopyRange,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    TableDef,
)
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.tablesync.plan import PageRange, decode_plan, encode_plan

SUBID, RELID = Oid(1), Oid(101)
NAME = "00000057-00000003-1"
EARLIER = SyncSnapshot(SUBID, NAME, Lsn(100), "1", (101,))
LATER = SyncSnapshot(SUBID, NAME, Lsn(200), "2", (101,))
RANGES = (PageRange(0, None, 7), PageRange(1, 7, None))


def test_a_division_under_the_earlier_one_is_no_plan_under_the_later() -> None:
    text = encode_plan(EARLIER.identity, RANGES)
    assert decode_plan(text, EARLIER.identity) == RANGES
    assert decode_plan(text, LATER.identity) is None


def test_its_ranges_are_void_when_the_next_attempt_begins(tmp_path: Path) -> None:
    catalog = Catalog.create(tmp_path / "catalog", "boss", None)
    columns = (ColumnDef("a", Oid(23)),)
    catalog.create_table(
        TableDef(RELID, "public", "t", Oid(10), columns, ("a",), "/lake/t")
    )

    def attempt(snapshot: SyncSnapshot) -> SubscriptionRel:
        return SubscriptionRel(
            SUBID,
            RELID,
            "public",
            "t",
            SyncState.DATASYNC,
            snapshot.lsn,
            1,
            copy_plan=encode_plan(snapshot.identity, RANGES),
        )

    catalog.create_subscription(
        Subscription(SUBID, "s", Oid(10), True, "host=x", "s", ("p",)),
        [attempt(EARLIER)],
    )
    catalog.begin_copies([attempt(EARLIER)])
    done = CopyRange(SUBID, RELID, 1, EARLIER.identity, 0, 5, "[]", ())
    catalog.record_ranges([done])
    catalog.begin_copies([attempt(EARLIER)])
    assert [one.number for one in catalog.ranges(SUBID, RELID)] == [0]
    catalog.begin_copies([attempt(LATER)])
    assert catalog.ranges(SUBID, RELID) == []
