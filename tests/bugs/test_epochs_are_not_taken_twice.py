"""A copy that ALTER TABLE voids began in the next number, which a later copy was given, too: it
found the cursor of the earlier one, and took itself for done."""

from __future__ import annotations

from pathlib import Path

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, TableDef
from wal2lake.model import Oid, SyncState


def test_no_two_copies_have_the_same_epoch(tmp_path: Path) -> None:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "admin", None)
    subid, relid = catalog.new_oids(2)
    catalog.create_table(
        TableDef(relid, "public", "t", Oid(10), (), (), str(tmp_path / "t"))
    )
    first = int(catalog.new_oid())
    catalog.create_subscription(
        Subscription(subid, "s", Oid(10), True, "", "s", ("p",)),
        [SubscriptionRel(subid, relid, "public", "t", SyncState.INIT, None, first)],
    )
    epochs = [first]
    for _ in range(3):
        catalog.publish_local({}, voided=[(subid, relid)])
        epochs.append(catalog.rels(subid)[0].epoch)
        epochs.append(int(catalog.new_oid()))
    assert len(set(epochs)) == len(epochs)
    catalog.close()
