"""Changes that meet another state of the table: left out and noted once, or a stop."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.apply import conflicts
from wal2lake.apply.conflicts import FoundConflict, explanation, log_conflicts
from wal2lake.apply.failures import row_failure
from wal2lake.catalog import TableDef
from wal2lake.errors import StorageError
from wal2lake.lake.staging.layout import RowFailure, Seq
from wal2lake.model import Conflict, ConflictType, Lsn, Modified, Oid, Resolution
from wal2lake.observe import configure

pytestmark = pytest.mark.usefixtures("no_fsync")

MISSING = (ConflictType.UPDATE_MISSING, ConflictType.DELETE_MISSING)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as found:
        yield found


def insert(relid: int, key: int) -> Change:
    return Change(relid, "I", (b"%d" % key, b"v"))


def update(relid: int, key: int) -> Change:
    return Change(relid, "U", (b"%d" % key, b"w"))


def delete(relid: int, key: int) -> Change:
    return Change(relid, "D", key=b"%d" % key)


def listed(world: World) -> list[tuple[int, str, str | None, int, str]]:
    return sorted(
        (int(c.relid), c.type.value, c.key, int(c.commit_lsn), c.resolution.value)
        for c in (noted.conflict for noted in world.catalog.conflicts())
    )


def counted(world: World) -> dict[str, int]:
    (stats,) = world.catalog.stats()
    return {kind.value: number for kind, number in stats.conflicts.items()}


def test_what_finds_no_row_is_left_out_and_noted(world: World) -> None:
    side = world.side
    side.send(
        Transaction(100, (insert(1, 1), update(1, 2), delete(2, 3))),
        Transaction(200, (update(1, 1),)),
        Transaction(300, (delete(1, 9),)),
    )
    side.start()
    side.reaches(308)
    assert set(side.visible(1)) == {b"1"}
    assert listed(world) == [
        (101, "delete_missing", "(c0)=(9)", 300, "skip"),
        (101, "update_missing", "(c0)=(2)", 100, "skip"),
        (102, "delete_missing", "(c0)=(3)", 100, "skip"),
    ]
    assert counted(world) == {"update_missing": 1, "delete_missing": 2}
    noted = [one.conflict for one in world.catalog.conflicts()]
    assert all(c.xid == 7 and c.committed_at is not None for c in noted)
    world.catalog.reset_stats(None)
    assert counted(world) == {}
    assert len(listed(world)) == 3, "the list stays"


def test_a_batch_that_is_repeated_notes_nothing_twice(world: World) -> None:
    side = world.side
    failed: list[str] = []

    def refuse(location: str) -> None:
        # Table 1 has committed: of the next attempt it is no part.
        if location.endswith("t2") and len(failed) < 2:
            failed.append(location)
            raise StorageError("no space left on device", sqlstate="53100")

    world.lake.before_commit = refuse
    side.send(Transaction(100, (update(1, 5), update(2, 6), delete(2, 7))))
    side.start()
    side.reaches(108)
    assert len(failed) == 2
    assert [one[:3] for one in listed(world)] == [
        (101, "update_missing", "(c0)=(5)"),
        (102, "delete_missing", "(c0)=(7)"),
        (102, "update_missing", "(c0)=(6)"),
    ]
    assert counted(world) == {"update_missing": 2, "delete_missing": 1}


def test_nothing_is_noted_of_a_batch_that_readers_do_not_see(world: World) -> None:
    side = world.side

    def refuse(location: str) -> None:
        raise StorageError("no space left on device", sqlstate="53100")

    world.lake.before_commit = refuse
    side.send(Transaction(100, (update(1, 5),)))
    side.start()
    side.stops("no space left on device")
    assert (listed(world), counted(world)) == ([], {})
    world.lake.before_commit = lambda location: None
    side.reaches(108)
    assert counted(world) == {"update_missing": 1}


def test_a_taken_key_stops_is_listed_once_and_counted_each_time(world: World) -> None:
    side = world.side
    side.send(Transaction(100, (insert(1, 1), delete(2, 4))))
    side.send(Transaction(200, (insert(1, 1),)))
    side.start()
    side.stops("duplicate key value")
    side.stop()
    before = counted(world)["insert_exists"]
    side.start()
    side.stops("duplicate key value")
    side.stop()
    assert listed(world) == [
        (101, "insert_exists", "(c0)=(1)", 200, "error"),
        (102, "delete_missing", "(c0)=(4)", 100, "skip"),
    ]
    assert counted(world)["insert_exists"] >= before
    assert counted(world)["delete_missing"] == 1


def test_only_the_newest_are_listed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal2lake.catalog.published.conflicts._KEPT", 3)
    side = world.side
    side.send(*(Transaction(100 * n, (delete(1, n),)) for n in range(1, 9)))
    side.start()
    side.reaches(808)
    assert [one[3] for one in listed(world)] == [600, 700, 800]
    assert counted(world) == {"delete_missing": 8}


TABLE = TableDef(Oid(1), "public", "c1", Oid(10), (), ("a",), "/c1")


def found(kind: ConflictType, number: int, count: int = 1) -> FoundConflict:
    key = None if count > 1 else f"(a)=({number})"
    row = None if kind is ConflictType.DELETE_MISSING else f"({number}, 4, q)"
    return FoundConflict(
        Conflict(
            Oid(1), kind, Resolution.SKIP, Lsn(0x1755DC8), key, 758, None, None, count
        ),
        TABLE,
        row,
    )


@pytest.fixture
def server_log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure("engine", stream=stream)
    yield stream


def test_the_server_log_has_postgresqls_words(server_log: io.StringIO) -> None:
    both = [found(kind, 4) for kind in MISSING]
    log_conflicts("pg_16476", both, quotes=lambda _: True, exists=bool)
    text = server_log.getvalue()
    for words in (
        'conflict detected on relation "public.c1": conflict=update_missing',
        "DETAIL:  Could not find the row to be updated.\n\t"
        "Remote row (4, 4, q); replica identity (a)=(4).",
        'conflict detected on relation "public.c1": conflict=delete_missing',
        "DETAIL:  Could not find the row to be deleted.\n\tReplica identity (a)=(4).",
        'CONTEXT:  processing remote data for replication origin "pg_16476" during message'
        ' type "UPDATE" for replication target relation "public.c1" in transaction 758,'
        " finished at 0/1755DC8",
    ):
        assert words in text
    server_log.truncate(0)
    log_conflicts("pg_16476", both, quotes=lambda _: False, exists=bool)
    assert "conflict=delete_missing" in server_log.getvalue()
    assert "(4" not in server_log.getvalue()


def test_many_are_told_together(
    server_log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "_LOGGED_EACH", 2)
    many = [found(ConflictType.UPDATE_MISSING, n) for n in range(5)]
    log_conflicts(
        "pg_1",
        [*many, found(ConflictType.UPDATE_MISSING, 0, 40)],
        quotes=lambda _: False,
        exists=bool,
    )
    text = server_log.getvalue()
    assert text.count("Could not find the row") == 2
    assert "conflict=update_missing happened 43 more times" in text
    # As test_only_the_newest_are_listed does.
    assert "HINT:  wal2lake.conflicts lists them." in text


WHO = [
    (None, "", ""),
    (Modified(0, 12, 0), " locally", " locally"),
    (Modified(9, 12, 0), ' by origin "pg_9"', ' by a different origin "pg_9"'),
    (Modified(8, 12, 0), " by a non-existent origin", " by a non-existent origin"),
]


@pytest.mark.parametrize(("modified", "unique", "differs"), WHO)
def test_whose_the_row_is_is_said_in_postgresqls_words(
    modified: Modified | None, unique: str, differs: str
) -> None:
    def text(kind: ConflictType) -> str:
        return explanation(kind, "c1_pkey", modified, lambda origin: origin == 9)

    when = "" if modified is None else " in transaction 12 at 1970-01-01 00:00:00+00"
    taken = "" if modified is None else f", modified{unique}{when}"
    assert (
        text(ConflictType.INSERT_EXISTS)
        == text(ConflictType.UPDATE_EXISTS)
        == f'Key already exists in unique index "c1_pkey"{taken}.'
    )
    of_update = f"Updating the row that was modified{differs}{when}."
    assert text(ConflictType.UPDATE_ORIGIN_DIFFERS) == of_update
    of_delete = f"Deleting the row that was modified{differs}{when}."
    assert text(ConflictType.DELETE_ORIGIN_DIFFERS) == of_delete


def test_a_conflict_that_has_to_stop_says_what_and_where() -> None:
    met = RowFailure(
        Seq(0x500, 1),
        None,
        "40001",
        'conflict detected on relation "public.c1": conflict=delete_origin_differs',
        ConflictType.DELETE_ORIGIN_DIFFERS,
        key="(a)=(1)",
        modified=Modified(0, 12, 1_500_000),
    )
    error = row_failure(Oid(7), TABLE, met, 33).error
    assert (error.sqlstate, error.detail) == (
        "40001",
        "Deleting the row that was modified locally in transaction 12 at"
        " 1970-01-01 00:00:01.5+00.",
    )
    assert "conflict_resolution" in str(error.hint)
    assert 'message type "DELETE"' in str(error.context)


@pytest.mark.parametrize(
    "kind", [None, ConflictType.INSERT_EXISTS, ConflictType.UPDATE_MISSING]
)
def test_the_hint_names_the_statement_that_skips_the_transaction(
    kind: ConflictType | None,
) -> None:
    met = RowFailure(Seq(0x1_0000_0500, 1), None, "40001", "", kind)
    error = row_failure(Oid(7), TABLE, met, 33).error
    assert "(ALTER SUBSCRIPTION ... SKIP (lsn = '1/500'))" in str(error.hint)
    assert str(error.context).endswith("finished at 1/500")


def test_a_key_of_a_table_with_a_long_name_is_called_as_at_postgresql() -> None:
    """A name has 63 bytes, so the table's part of it is cut."""
    table = replace(TABLE, name="ß" * 31, key_name=None)
    taken = RowFailure(
        Seq(0x500, 1), None, "23505", "", ConflictType.INSERT_EXISTS, key="(a)=(1)"
    )
    named = f'unique index "{"ß" * 29}_pkey"'
    assert named in str(row_failure(Oid(7), table, taken, 33).error.detail)
