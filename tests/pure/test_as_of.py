"""``wal2lake.as_of_lsn`` and ``wal2lake.as_of_time``: which version is read, and what cannot be."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, TableDef
from wal2lake.catalog.published import snapshot_vectors
from wal2lake.commands.tables.past import AsOf, PastVersions, refuse_to_write
from wal2lake.errors import UsageError
from wal2lake.local.concurrency.snapshots import Snapshots
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.sql.backend import Notice
from wal2lake.sql.parameters import Parameters

SUB = Oid(20000)
LATER = timedelta(days=1)
LISTED = "wal2lake.snapshots lists the published states."


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    for n in (1, 2, 3):
        made.create_table(
            TableDef(Oid(n), "public", f"t{n}", Oid(10), (), (), f"/t{n}")
        )
    rels = [
        SubscriptionRel(SUB, Oid(n), "public", f"t{n}", SyncState.READY, Lsn(0), 1)
        for n in (1, 2)
    ]
    made.create_subscription(
        Subscription(SUB, "s", Oid(10), True, "host=p", "s", ("p",)), rels
    )
    return made


def version(catalog: Catalog, relid: int, notices: list[Notice], **past: Any) -> int:
    table = catalog.table_by_oid(Oid(relid))
    assert table is not None
    tables: Any = SimpleNamespace(
        version_at=lambda _, time: 7 if time > datetime.now(UTC) else None
    )
    node: Any = SimpleNamespace(catalog=catalog, tables=tables, snapshots=Snapshots())
    return PastVersions(node, AsOf(**past), notices.append).of(table)


def test_a_position_names_the_newest_state_at_or_below_it(catalog: Catalog) -> None:
    catalog.publish(SUB, Lsn(100), {1: 1, 2: 1})
    catalog.publish(SUB, Lsn(200), {1: 2})
    catalog.publish(SUB, Lsn(260), {})
    catalog.publish(SUB, Lsn(300), {2: 2})
    notices: list[Notice] = []

    def both(lsn: int) -> list[int]:
        return [version(catalog, n, notices, lsn=Lsn(lsn)) for n in (1, 2)]

    assert [both(100), both(260), both(300)] == [[1, 1], [2, 1], [2, 2]]
    assert notices == [], "each is exactly a published one"
    assert both(299) == [2, 1]
    assert {n.message for n in notices} == {
        'reading the state of subscription "s" at 0/104, the newest published one at or'
        " below 0/12B"
    }
    with pytest.raises(UsageError, match="at 0/12D has not been reached") as caught:
        both(301)
    assert caught.value.sqlstate == "55000"
    assert caught.value.hint == LISTED
    with pytest.raises(UsageError, match="as of 0/63 is not kept") as caught:
        both(99)
    assert caught.value.hint == LISTED
    assert (caught.value.sqlstate, caught.value.detail) == (
        "72000",
        "The oldest is that of 0/64.",
    )


def test_positions_of_another_source_do_not_count(catalog: Catalog) -> None:
    catalog.publish(SUB, Lsn(5000), {1: 1})
    catalog.publish(SUB, Lsn(6000), {1: 2})
    with catalog._database.transaction() as transaction:
        snapshot_vectors.rebase(transaction, SUB, Lsn(100))
    catalog.publish(SUB, Lsn(200), {1: 3})
    assert version(catalog, 1, [], lsn=Lsn(150)) == 2
    with pytest.raises(UsageError, match="not kept"):
        version(catalog, 1, [], lsn=Lsn(99))
    with pytest.raises(UsageError, match="not been reached"):
        version(catalog, 1, [], lsn=Lsn(5500))


def test_a_time_names_what_readers_saw_then(catalog: Catalog) -> None:
    before = datetime.now(UTC)
    catalog.publish(SUB, Lsn(100), {1: 1})
    between = datetime.now(UTC)
    catalog.publish(SUB, Lsn(200), {1: 2})
    assert version(catalog, 1, [], time=between) == 1
    assert version(catalog, 1, [], time=between + LATER) == 2
    with pytest.raises(UsageError, match="is not kept") as caught:
        version(catalog, 1, [], time=before)
    assert caught.value.sqlstate == "72000"
    # In the message and in its DETAIL as PostgreSQL writes times.
    text = f"{caught.value} {caught.value.detail}"
    assert len(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+\+00(?!:)", text)) == 2


def test_a_table_that_was_not_published_then_is_not_read(catalog: Catalog) -> None:
    catalog.publish(SUB, Lsn(100), {1: 1})
    catalog.publish(SUB, Lsn(200), {2: 1})
    assert version(catalog, 2, [], lsn=Lsn(200)) == 1
    with pytest.raises(UsageError, match="was not published then") as caught:
        version(catalog, 2, [], lsn=Lsn(100))
    assert caught.value.sqlstate == "55000"
    assert caught.value.hint == (
        f"RESET wal2lake.as_of_lsn to read it as it is now. {LISTED}"
    )


def test_a_table_of_no_subscription_has_times_of_its_own(catalog: Catalog) -> None:
    assert version(catalog, 3, [], time=datetime.now(UTC) + LATER) == 7
    with pytest.raises(UsageError, match="belongs to no subscription") as caught:
        version(catalog, 3, [], lsn=Lsn(1))
    # As the first line does.
    assert caught.value.hint == (
        "RESET wal2lake.as_of_lsn to read it as it is now. wal2lake.as_of_time reads every"
        " table."
    )
    with pytest.raises(UsageError, match=r'"public\.t3" has no version') as caught:
        version(catalog, 3, [], time=datetime.now(UTC) - LATER)
    assert caught.value.sqlstate == "72000"
    assert caught.value.hint == (
        "It was created later, or its history has been cleaned up. RESET wal2lake.as_of_time"
        " to read it as it is now."
    )


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("wal2lake.as_of_lsn", " 16/B374d848 ", "16/B374D848"),
        ("wal2lake.as_of_lsn", "", ""),
        (
            "wal2lake.as_of_time",
            "2026-05-01 12:30:00.12+02",
            "2026-05-01 12:30:00.12+02",
        ),
        ("wal2lake.as_of_time", "", ""),
    ],
)
def test_what_they_take(name: str, value: str, shown: str) -> None:
    parameters = Parameters()
    parameters.set(name, value)
    assert parameters[name] == shown


def test_a_time_without_an_offset_is_the_sessions() -> None:
    parameters = Parameters()
    parameters.set("TimeZone", "-7")
    parameters.set("wal2lake.as_of_time", "2026-05-01 12:30")
    found = AsOf.of(parameters)
    assert found is not None
    assert found.time == datetime(2026, 5, 1, 19, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "value", "sqlstate"),
    [
        ("wal2lake.as_of_lsn", "16", "22023"),
        ("wal2lake.as_of_time", "yesterday", "22007"),
    ],
)
def test_what_they_refuse(name: str, value: str, sqlstate: str) -> None:
    with pytest.raises(UsageError, match="invalid value for parameter") as caught:
        Parameters().set(name, value)
    assert caught.value.sqlstate == sqlstate


def test_they_exclude_each_other_and_writes() -> None:
    parameters = Parameters()
    assert AsOf.of(parameters) is None
    refuse_to_write(None, "INSERT")
    parameters.set("wal2lake.as_of_lsn", "0/1")
    with pytest.raises(
        UsageError, match=r"cannot execute INSERT while wal2lake\.as_of_lsn"
    ) as e:
        refuse_to_write(AsOf.of(parameters), "INSERT")
    assert e.value.sqlstate == "25006"
    assert e.value.hint == "RESET wal2lake.as_of_lsn first."
    parameters.set("wal2lake.as_of_time", "2026-05-01")
    with pytest.raises(UsageError, match="cannot both be set") as e:
        AsOf.of(parameters)
    assert e.value.hint == "RESET wal2lake.as_of_lsn, or RESET wal2lake.as_of_time."
    parameters.reset("wal2lake.as_of_lsn")
    assert AsOf.of(parameters) is not None
    parameters.reset("wal2lake.as_of_time")
    refuse_to_write(AsOf.of(parameters), "INSERT")
