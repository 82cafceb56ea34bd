"""Histories in the catalog: who feeds them, and what a crash leaves between two commits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from wal2lake.apply.local.histories import (
    HistoryTable,
    finish_all,
    histories_of,
    history_columns,
)
from wal2lake.apply.participants import Participant, Participants
from wal2lake.catalog import (
    HISTORY_OF,
    Catalog,
    ColumnDef,
    HistoryFeed,
    PendingHistory,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.catalog.objects import histories as feeds_of_catalog
from wal2lake.catalog.uncommitted import UncommittedCatalog
from wal2lake.lake import (
    AddedFile,
    Committed,
    Cursor,
    TablePort,
    TableState,
    files_to_json,
)
from wal2lake.model import Lsn, Oid, SyncState

SUB, MIRROR, OTHER, HISTORY = Oid(20000), Oid(20001), Oid(20002), Oid(20003)
COLUMNS = (ColumnDef("id", Oid(23)), ColumnDef("op", Oid(25)))
FILE = AddedFile("part-1.parquet", 10, 1, None)


def table(oid: Oid, namespace: str, name: str, columns: Any = COLUMNS) -> TableDef:
    return TableDef(oid, namespace, name, Oid(10), columns, (), f"/w/{oid}")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    catalog.create_namespace("h", Oid(10))
    history = table(HISTORY, "h", "t", history_columns(COLUMNS))
    marked = replace(history, parameters=((HISTORY_OF, str(int(MIRROR))),))
    catalog.create_table(
        table(MIRROR, "public", "t"), table(OTHER, "public", "o"), marked
    )
    subscription = Subscription(
        SUB, "s", Oid(10), True, "", "s", ("p",), options={"history": "h"}
    )
    rels = [
        SubscriptionRel(SUB, oid, "public", name, SyncState.READY, None, 1)
        for oid, name in ((MIRROR, "t"), (OTHER, "o"))
    ]
    catalog.create_subscription(subscription, rels)
    yield catalog
    catalog.close()


@dataclass
class Port:
    """Tables that only have cursors."""

    cursors: dict[str, dict[str, int]]
    commits: list[tuple[str, Sequence[AddedFile], Cursor]] = field(default_factory=list)
    synced: list[str] = field(default_factory=list)

    def state(self, location: str) -> TableState:
        cursors = self.cursors.get(location, {})
        return TableState(location, "i", 5, cursors, (), (), False, {})

    def sync(self, location: str, version: int) -> None:
        self.synced.append(location)

    def commit_files(
        self, location: str, adds: Sequence[AddedFile], cursor: Cursor, **more: Any
    ) -> Committed:
        assert more == {"operation": "history"}
        done = self.cursors.setdefault(location, {})
        if done.get(cursor.app_id, -1) >= cursor.version:
            return Committed(5, already_done=True)
        done[cursor.app_id] = cursor.version
        self.commits.append((location, adds, cursor))
        return Committed(6)


def expect(
    catalog: Catalog, reached: int, position: int, cursor: int | None = None
) -> None:
    pending = PendingHistory(
        MIRROR, Lsn(reached), "app", HISTORY, files_to_json([FILE])
    )
    positions = {MIRROR: Lsn(position)}
    cursors = {} if cursor is None else {MIRROR: Lsn(cursor)}
    catalog.expect(
        SUB, Lsn(reached), positions, {}, recorded=[pending], cursors=cursors
    )


def test_no_name_of_a_column_collides() -> None:
    assert [column.name for column in history_columns(COLUMNS)] == [
        *("op", "commit_lsn", "ordinal", "xid", "commit_time", "origin"),
        *("old_id", "old_op", "new_id", "new_op"),
    ]


def test_a_history_is_fed_while_its_subscription_says_so(catalog: Catalog) -> None:
    subscription = catalog.subscription(SUB)
    assert subscription is not None
    assert catalog.histories() == {HISTORY: HistoryFeed(SUB, MIRROR)}
    assert histories_of(catalog, subscription) == {MIRROR: HISTORY}
    catalog.link_history(HISTORY, OTHER)
    assert catalog.histories() == {HISTORY: HistoryFeed(SUB, OTHER)}
    catalog.alter_subscription(SUB, options={"history": "elsewhere"})
    assert catalog.histories() == {}
    catalog.alter_subscription(SUB, options={"history": ""})
    assert catalog.histories() == {}


def test_feeds_are_read_again_once_the_catalog_has_changed(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = feeds_of_catalog.feeds

    def counted(connection: sqlite3.Connection) -> dict[Oid, HistoryFeed]:
        nonlocal reads
        reads += 1
        return read(connection)

    monkeypatch.setattr(feeds_of_catalog, "feeds", counted)
    for _ in range(3):
        assert catalog.histories() == {HISTORY: HistoryFeed(SUB, MIRROR)}
    assert reads == 1
    # Another process of the node, and a transaction block.
    other = Catalog(catalog.path)
    block = UncommittedCatalog(catalog)
    block.link_history(HISTORY, OTHER)
    assert block.histories() == {HISTORY: HistoryFeed(SUB, OTHER)}
    assert catalog.histories() == {HISTORY: HistoryFeed(SUB, MIRROR)}
    block.back_to(0)
    assert block.histories() == {HISTORY: HistoryFeed(SUB, MIRROR)}
    other.link_history(HISTORY, OTHER)
    for known in (catalog, block, other):
        assert known.histories() == {HISTORY: HistoryFeed(SUB, OTHER)}


@pytest.mark.parametrize(
    ("cursor", "history", "commits"),
    [
        (None, {}, 0),
        (99, {}, 0),
        (100, {}, 1),
        (100, {"app": 90}, 1),
        (100, {"app": 100}, 0),
    ],
    ids=["first", "not-committed", "committed", "later", "done"],
)
def test_what_a_crash_has_left_is_finished_once(
    catalog: Catalog, cursor: int | None, history: dict[str, int], commits: int
) -> None:
    expect(catalog, 100, 50)
    assert catalog.files_of_history(HISTORY) == [files_to_json([FILE])]
    mirror = {} if cursor is None else {"app": cursor}
    port = Port({f"/w/{MIRROR}": mirror, f"/w/{HISTORY}": dict(history)})
    for _ in range(2):
        finish_all(catalog, cast(TablePort, port), SUB)
    assert port.commits == [
        (f"/w/{HISTORY}", (FILE,), Cursor("app", 100)) for _ in range(commits)
    ]


def test_a_record_goes_when_it_is_published_or_void(catalog: Catalog) -> None:
    expect(catalog, 100, 50)
    # The batch was not committed; the next one ends further on.
    expect(catalog, 200, 50)
    (pending,) = catalog.pending_histories(SUB, MIRROR)
    assert pending.reached == 200
    # The table is paused: others are published.
    catalog.publish(SUB, Lsn(300), {int(OTHER): 1})
    assert catalog.pending_histories(SUB, MIRROR) == [pending]
    catalog.publish(SUB, Lsn(300), {int(MIRROR): 2, int(HISTORY): 1})
    assert catalog.pending_histories(SUB, MIRROR) == []
    catalog.show_histories(SUB, {int(OTHER): 7}, [HISTORY])
    vector = catalog.newest_vector(SUB)
    assert vector is not None
    assert (vector.lsn, vector.versions) == (300, {int(MIRROR): 2, int(OTHER): 7})
    expect(catalog, 400, 300)
    catalog.drop_subscription(SUB)
    assert catalog.files_of_history(HISTORY) == []


@pytest.mark.parametrize("way", ["refresh", "drop table"])
def test_a_table_that_leaves_takes_its_history_out_of_the_newest_state(
    catalog: Catalog, way: str
) -> None:
    catalog.publish(SUB, Lsn(10), {int(MIRROR): 2, int(OTHER): 3, int(HISTORY): 1})
    if way == "refresh":
        catalog.set_publications(SUB, ["p"], removed=[MIRROR])
    else:
        catalog.remove_rel(SUB, MIRROR)
    vector = catalog.newest_vector(SUB)
    assert vector is not None
    assert vector.versions == {int(OTHER): 3}


def test_what_a_crash_has_left_is_finished_before_a_table_leaves(
    catalog: Catalog,
) -> None:
    expect(catalog, 100, 50)
    port = Port({f"/w/{MIRROR}": {"app": 100}})
    finish_all(catalog, cast(TablePort, port), SUB, [OTHER])
    assert not port.commits
    finish_all(catalog, cast(TablePort, port), SUB, [MIRROR])
    assert [location for location, _, _ in port.commits] == [f"/w/{HISTORY}"]


def test_a_batch_does_not_go_on_with_a_history_that_has_ended(
    catalog: Catalog,
) -> None:
    participants = Participants(catalog, cast(TablePort, Port({})), SUB)
    definition = catalog.table_by_oid(MIRROR)
    ended = catalog.table_by_oid(HISTORY)
    rel = next(rel for rel in catalog.rels(SUB) if rel.relid == MIRROR)
    assert definition is not None
    assert ended is not None
    participant = Participant(
        rel,
        definition,
        Lsn(1),
        5,
        trusted=True,
        decided=Lsn(1),
        unpublished=False,
        history=HistoryTable(ended, 5),
    )
    participants._known[MIRROR] = participant
    assert participants.are_members()
    catalog.alter_subscription(SUB, options={"history": ""})
    assert not participants.are_members()
    participant.history = None
    assert participants.are_members()


def test_a_record_of_a_copy_that_was_not_made_does_not_count_with_the_next(
    catalog: Catalog,
) -> None:
    """The engine was killed before the copy's commit, and the next copy has another snapshot."""
    pending = PendingHistory(MIRROR, Lsn(100), "app", HISTORY, "[]")
    catalog.expect_history(SUB, [pending])
    later = replace(pending, reached=Lsn(200))
    catalog.expect_history(SUB, [later])
    assert catalog.pending_histories(SUB, MIRROR) == [later]


def test_a_record_whose_batch_was_skipped_never_counts(catalog: Catalog) -> None:
    expect(catalog, 100, 50, cursor=50)
    # Its commit has failed, its files are gone, and SKIP has left the transaction out: the next
    # batch begins above it.
    expect(catalog, 200, 150, cursor=50)
    (pending,) = catalog.pending_histories(SUB, MIRROR)
    assert pending.reached == 200
