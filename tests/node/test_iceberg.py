"""Tables of a subscription as readers of Iceberg see them, while the source works."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable
from tests.conftest import Database
from tests.node.conftest import Subscribe

from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


@pytest.mark.slow
def test_iceberg_shows_the_rows_and_the_position_of_the_source(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create table ice (id int primary key, t text, n numeric(6,2));"
        " insert into ice select i, 'a' || i, i / 4.0 from generate_series(1, 50) i;"
        " create publication ice for table ice"
    )
    mirror = subscribe(pg18, "ice", "with (table_format = iceberg)")
    mirror.synced()
    pg18.psql(
        "update ice set t = 'b' where id % 3 = 0; delete from ice where id % 5 = 0;"
        " insert into ice values (100, null, null)"
    )
    mirror.caught_up()
    place = node.directory / "warehouse" / "public" / "ice" / "_iceberg"
    expected = Counter(tuple(row) for row in node.sql("select id, t, n from ice"))
    wait_until(lambda: shown(place) == expected, timeout_seconds=60)
    assert node.sql(
        "select table_format from wal2lake.subscription_options where subname = 'ice'"
    ) == [("iceberg",)]
    summary = StaticTable.from_metadata(str(place)).metadata.snapshots[-1].summary
    assert summary is not None
    assert [(summary["wal2lake.lsn"],)] == node.sql(
        "select max(lsn) from wal2lake.snapshots where subname = 'ice'"
    )
    node.sql("vacuum ice")
    assert shown(place) == expected
    node.sql("alter table ice set (iceberg = false)")
    node.sql("drop subscription ice; drop table ice")
    assert not place.exists()


def shown(place: Path) -> Counter[tuple[str | None, ...]]:
    """Return what pyiceberg reads, as PostgreSQL's texts."""
    if not (place / "metadata" / "version-hint.text").exists():
        return Counter()
    read = StaticTable.from_metadata(str(place)).scan().to_arrow()
    columns = [read[name].to_pylist() for name in ("id", "t", "n")]
    return Counter(
        tuple(None if value is None else str(value) for value in row)
        for row in zip(*columns, strict=True)
    )
