"""A published state that nothing changes goes on to be that of later positions.

The catalog kept the last of these positions alone, so ``wal2lake.as_of_lsn`` gave the state
*before* it for each of the others: a query as of one LSN lost rows as soon as the log had
gone on, and a NOTICE named an older state than the one that was known.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, TableDef
from wal2lake.catalog.published import snapshot_vectors
from wal2lake.commands.tables.past import AsOf, PastVersions
from wal2lake.errors import UsageError
from wal2lake.local.concurrency.snapshots import Snapshots
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.sql.backend import Notice

SUB, TABLE = Oid(20000), Oid(1)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    made.create_table(TableDef(TABLE, "public", "t", Oid(10), (), (), "/t"))
    made.create_subscription(
        Subscription(SUB, "s", Oid(10), True, "host=p", "s", ("p",)),
        [SubscriptionRel(SUB, TABLE, "public", "t", SyncState.READY, Lsn(0), 1)],
    )
    return made


def version(catalog: Catalog, lsn: int) -> tuple[int, list[Notice]]:
    """What is read as of a position, and what the client is told."""
    table, told = catalog.table_by_oid(TABLE), list[Notice]()
    assert table is not None
    node: Any = SimpleNamespace(catalog=catalog, tables=None, snapshots=Snapshots())
    past = PastVersions(node, AsOf(lsn=Lsn(lsn)), told.append)
    return past.of(table), told


def test_a_state_is_that_of_all_positions_at_which_it_was(catalog: Catalog) -> None:
    catalog.publish(SUB, Lsn(100), {int(TABLE): 1})
    catalog.publish(SUB, Lsn(200), {int(TABLE): 2})
    before = version(catalog, 200)
    for reached in (300, 400):
        catalog.publish(SUB, Lsn(reached), {})
    assert version(catalog, 200) == before == (2, [])
    assert version(catalog, 250) == (2, [])
    assert version(catalog, 400) == (2, [])
    found, told = version(catalog, 199)
    assert (found, len(told)) == (1, 1)


def test_what_is_of_another_source_stays_so(catalog: Catalog) -> None:
    catalog.publish(SUB, Lsn(500), {int(TABLE): 1})
    with catalog._database.transaction() as transaction:
        snapshot_vectors.rebase(transaction, SUB, Lsn(300))
    catalog.publish(SUB, Lsn(600), {})
    catalog.publish(SUB, Lsn(700), {int(TABLE): 2})
    assert version(catalog, 300) == (1, [])
    with pytest.raises(UsageError, match="is not kept") as caught:
        version(catalog, 299)
    assert caught.value.detail == f"The oldest is that of {Lsn(300)}."
