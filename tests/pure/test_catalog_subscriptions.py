"""What the catalog knows of subscriptions: their errors, counts, changes, comments."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from wal2lake.catalog import (
    SUBSCRIPTION_CATALOG,
    Catalog,
    Comment,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    TableDef,
    WorkerKind,
)
from wal2lake.catalog.database import Database
from wal2lake.catalog.published import snapshot_vectors
from wal2lake.errors import (
    ApplyError,
    DuplicateObjectError,
    PublisherError,
    StorageError,
    UsageError,
)
from wal2lake.model import Lsn, Oid, SyncState

SUB, OTHER = Oid(20000), Oid(20001)


def subscription(oid: Oid, name: str) -> Subscription:
    return Subscription(oid, name, Oid(10), True, "host=p", name, ("p",))


def rel(number: int, subid: Oid = SUB) -> SubscriptionRel:
    return SubscriptionRel(
        subid, Oid(number), "public", f"t{number}", SyncState.READY, None, 1
    )


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    catalog.create_table(
        TableDef(Oid(30000), "public", "t30000", Oid(10), (), (), "/t30000")
    )
    catalog.create_subscription(subscription(SUB, "s"), [rel(30000)], {30000: 1})
    catalog.create_subscription(subscription(OTHER, "o"), [])
    return catalog


def noted(catalog: Catalog) -> dict[tuple[Oid, WorkerKind], str]:
    return {(e.subid, e.worker): e.error for e in catalog.errors()}


@pytest.mark.parametrize("lsn", [1 << 63, (1 << 64) - 1])
def test_an_lsn_beyond_what_is_stored_is_refused(catalog: Catalog, lsn: int) -> None:
    catalog.create_origin("o1")
    for write in (
        lambda: catalog.set_skip(SUB, Lsn(lsn)),
        lambda: catalog.move_origin("o1", Lsn(lsn)),
    ):
        with pytest.raises(UsageError, match="out of range") as caught:
            write()
        assert caught.value.sqlstate == "22003"
    catalog.set_skip(SUB, Lsn((1 << 63) - 1))


# ---- errors -----------------------------------------------------------------------------


def test_a_worker_that_succeeds_leaves_the_errors_of_the_others(
    catalog: Catalog,
) -> None:
    catalog.note_error(SUB, WorkerKind.RECEIVER, "the change log cannot be written")
    catalog.note_error(SUB, WorkerKind.APPLY, "duplicate key")
    catalog.note_error(OTHER, WorkerKind.APPLY, "another subscription's")
    catalog.note_error(SUB, WorkerKind.APPLY, None)
    assert noted(catalog) == {
        (SUB, WorkerKind.RECEIVER): "the change log cannot be written",
        (OTHER, WorkerKind.APPLY): "another subscription's",
    }


def test_a_worker_has_one_error_which_keeps_the_time_it_began(catalog: Catalog) -> None:
    catalog.note_error(SUB, WorkerKind.APPLY, "first")
    (before,) = catalog.errors()
    catalog.note_error(SUB, WorkerKind.APPLY, "first")
    assert catalog.errors() == [before]
    catalog.note_error(SUB, WorkerKind.APPLY, "second")
    (after,) = catalog.errors()
    assert after.error == "second"
    assert after.noted_at > before.noted_at


def test_nothing_is_written_to_clear_an_error_that_is_not_there(
    catalog: Catalog,
) -> None:
    before = catalog.change_counter
    for worker in WorkerKind:
        catalog.note_error(SUB, worker, None)
    assert catalog.change_counter == before


def test_a_snapshot_that_is_held_clears_the_error_of_who_holds_it(
    catalog: Catalog,
) -> None:
    catalog.note_error(SUB, WorkerKind.SNAPSHOT, "no slot")
    catalog.note_error(SUB, WorkerKind.APPLY, "stays")
    catalog.hold_snapshot(SyncSnapshot(SUB, "0-1", Lsn(9), "1", (30000,)))
    assert noted(catalog) == {(SUB, WorkerKind.APPLY): "stays"}


def test_errors_go_with_their_subscription_and_none_comes_after_it(
    catalog: Catalog,
) -> None:
    catalog.note_error(SUB, WorkerKind.APPLY, "x")
    catalog.drop_subscription(SUB)
    assert noted(catalog) == {}
    catalog.note_error(SUB, WorkerKind.APPLY, "too late")
    assert noted(catalog) == {}


def test_each_failed_attempt_counts_until_the_counts_are_reset(
    catalog: Catalog,
) -> None:
    for _ in range(3):
        catalog.note_error(SUB, WorkerKind.APPLY, "the same each time")
    catalog.note_error(SUB, WorkerKind.SNAPSHOT, "x")
    catalog.update_rel(SUB, Oid(30000), state=SyncState.DATASYNC)
    catalog.end_attempts([(rel(30000), "y", "22000", False)])
    catalog.note_error(SUB, WorkerKind.RECEIVER, "no connection")
    catalog.note_error(OTHER, WorkerKind.APPLY, "z")
    counted = [(s.subid, s.apply_errors, s.sync_errors) for s in catalog.stats()]
    assert counted == [(SUB, 3, 2), (OTHER, 1, 0)]
    assert [r.error for r in catalog.rels(SUB)] == ["y"]
    assert [s.stats_reset for s in catalog.stats()] == [None, None]
    catalog.reset_stats(SUB)
    one, other = catalog.stats()
    assert (one.apply_errors, one.sync_errors, other.apply_errors) == (0, 0, 1)
    assert one.stats_reset is not None
    assert other.stats_reset is None
    catalog.reset_stats(None)
    assert [s.apply_errors for s in catalog.stats()] == [0, 0]


def test_after_an_error_a_subscription_that_asks_for_it_is_disabled_once(
    catalog: Catalog,
) -> None:
    def now() -> tuple[bool, int]:
        found = catalog.subscription(SUB)
        assert found is not None
        return found.enabled, found.generation

    _, generation = now()
    lasting = ApplyError("duplicate key")
    catalog.disable_if_asked(SUB, generation, lasting)
    assert now() == (True, generation), "not asked for"
    catalog.set_options(SUB, {"disable_on_error": "true"})
    for passing in (PublisherError("it is away"), StorageError("disk full")):
        catalog.disable_if_asked(SUB, generation, passing)
        assert now() == (True, generation)
    catalog.disable_if_asked(SUB, generation, lasting)
    assert now() == (False, generation + 1)
    catalog.disable_if_asked(SUB, generation + 1, ValueError("a bug"))
    catalog.disable_if_asked(Oid(1), generation, lasting)
    assert now() == (False, generation + 1)


def test_the_error_of_a_worker_from_before_an_enable_disables_nothing(
    catalog: Catalog,
) -> None:
    catalog.set_options(SUB, {"disable_on_error": "true"})
    before = catalog.subscription(SUB)
    assert before is not None
    catalog.update_subscription(SUB, bump=True, enabled=False)
    catalog.update_subscription(SUB, bump=True, enabled=True)
    catalog.disable_if_asked(SUB, before.generation, ApplyError("duplicate key"))
    now = catalog.subscription(SUB)
    assert now is not None
    assert now.enabled


def test_a_disabled_subscription_has_no_snapshot_that_later_copies_could_use(
    catalog: Catalog,
) -> None:
    def held() -> bool:
        catalog.hold_snapshot(SyncSnapshot(SUB, "0-1", Lsn(9), "1", (30000,)))
        return catalog.snapshot_held(SUB) is not None

    assert held()
    catalog.set_options(SUB, {"disable_on_error": "true"})
    assert catalog.snapshot_held(SUB) is not None
    now = catalog.subscription(SUB)
    assert now is not None
    catalog.disable_if_asked(SUB, now.generation, ApplyError("duplicate key"))
    assert catalog.snapshot_held(SUB) is None
    assert held()
    catalog.update_subscription(SUB, bump=True, enabled=False)
    catalog.update_subscription(SUB, bump=True, enabled=True)
    assert catalog.snapshot_held(SUB) is None


# ---- changes ----------------------------------------------------------------------------


def test_what_set_changes_is_changed_in_one_transaction(catalog: Catalog) -> None:
    counter = catalog.change_counter
    catalog.alter_subscription(
        SUB, options={"origin": "none"}, distrust=True, synchronous_commit="on"
    )
    assert catalog.change_counter == counter + 1
    found = catalog.subscription(SUB)
    assert found is not None
    assert (found.origin, found.synchronous_commit) == ("none", "on")
    assert found.generation == 1
    assert [r.trusted for r in catalog.rels(SUB)] == [False]


def test_a_name_that_is_taken_is_refused_and_changes_nothing(catalog: Catalog) -> None:
    with pytest.raises(DuplicateObjectError, match='subscription "o" already exists'):
        catalog.update_subscription(SUB, name="o", bump=True)
    found = catalog.subscription(SUB)
    assert found is not None
    assert (found.name, found.generation) == ("s", 0)


def test_publications_tables_and_generation_change_together(catalog: Catalog) -> None:
    catalog.create_table(
        TableDef(Oid(30001), "public", "t30001", Oid(10), (), (), "/t30001")
    )
    counter = catalog.change_counter
    found = catalog.set_publications(
        SUB,
        ("p", "q"),
        added=[rel(30001)],
        versions={30001: 4},
        removed=[Oid(30000)],
    )
    assert catalog.change_counter == counter + 1
    assert (found.publications, found.generation) == (("p", "q"), 1)
    assert [r.relid for r in catalog.rels(SUB)] == [30001]
    newest = catalog.newest_vector(SUB)
    assert newest is not None
    assert newest.versions == {30001: 4}


def test_a_refresh_of_the_same_publications_is_no_other_generation(
    catalog: Catalog,
) -> None:
    found = catalog.set_publications(SUB, ("p",), distrusted=[Oid(30000)])
    assert found.generation == 0
    assert [r.trusted for r in catalog.rels(SUB)] == [False]


def test_a_table_that_leaves_is_no_longer_pinned_in_the_same_transaction(
    catalog: Catalog,
) -> None:
    counter = catalog.change_counter
    catalog.remove_rel(SUB, Oid(30000))
    assert catalog.change_counter == counter + 1
    newest = catalog.newest_vector(SUB)
    assert newest is not None
    assert newest.versions == {}


def test_published_states_are_kept_up_to_a_size(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_vectors, "_BYTES_KEPT", 300)
    for number in range(1, 20):
        catalog.publish(SUB, Lsn(number), {1: number, 2: 10**40})
    kept = [vector.versions[1] for vector in catalog.vectors()]
    assert kept == list(range(20 - len(kept), 20))
    assert 1 < len(kept) < 10


def test_publishing_what_was_skipped_ends_that_skip_and_no_other(
    catalog: Catalog,
) -> None:
    def skip() -> tuple[Lsn, bool]:
        found = catalog.subscription(SUB)
        assert found is not None
        return found.skip_lsn, found.skipping

    catalog.update_subscription(SUB, skip_lsn=Lsn(100), skipping=True)
    assert skip() == (Lsn(100), True)
    catalog.publish(SUB, Lsn(50), {}, participants=[30000])
    assert skip() == (Lsn(100), True)
    catalog.publish(SUB, Lsn(110), {}, participants=[30000], skipped=Lsn(99))
    assert skip() == (Lsn(100), True), "given meanwhile, for another transaction"
    catalog.publish(SUB, Lsn(120), {}, participants=[30000], skipped=Lsn(100))
    assert skip() == (Lsn(0), False)


def test_a_comment_is_replaced_taken_away_and_goes_with_its_subscription(
    catalog: Catalog,
) -> None:
    def say(text: str | None) -> list[Comment]:
        catalog.set_comment(SUBSCRIPTION_CATALOG, SUB, text)
        return catalog.comments()

    assert say("one") == [Comment(Oid(6100), SUB, "one")]
    assert say("two") == [Comment(Oid(6100), SUB, "two")]
    assert say("") == []
    assert say("three") != []
    assert say(None) == []
    say("four")
    catalog.drop_subscription(SUB)
    assert catalog.comments() == []


# ---- a file that cannot be written ------------------------------------------------------


def fill(database: Database) -> None:
    """Leave the file no page to grow by."""
    with database.reading() as connection:
        (pages,) = connection.execute("pragma page_count").fetchone()
        connection.execute(f"pragma max_page_count = {pages}")


def test_a_full_disk_is_said_and_nothing_of_the_transaction_stays(
    catalog: Catalog, tmp_path: Path
) -> None:
    fill(catalog._database)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        catalog.set_comment(SUBSCRIPTION_CATALOG, SUB, "x" * 1_000_000)
    assert caught.value.sqlstate == "53100"
    assert str(tmp_path) in caught.value.message
    assert catalog.comments() == []
    catalog.set_comment(SUBSCRIPTION_CATALOG, SUB, "short")
    assert catalog.comments() != [], "the next transaction begins as always"
    assert caught.value.hint == "Free space on the file system of the node's directory."
    with catalog._database.reading() as connection:
        connection.execute("pragma max_page_count = 1000000")
    catalog.set_comment(SUBSCRIPTION_CATALOG, SUB, "x" * 1_000_000)


def test_a_rollback_by_sqlite_itself_does_not_hide_the_error(catalog: Catalog) -> None:
    """As it does on a full disk, after an I/O error and without memory."""
    with (
        pytest.raises(
            StorageError, match=r"could not write catalog.*: Input/output error"
        ),
        catalog._database.transaction() as transaction,
    ):
        transaction.execute("rollback")
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error


def test_an_error_that_cannot_be_noted_is_no_second_error(catalog: Catalog) -> None:
    """Whoever notes one would otherwise end of it."""
    fill(catalog._database)
    catalog.note_error(SUB, WorkerKind.APPLY, "x" * 1_000_000)
    assert noted(catalog) == {}


def test_a_file_that_is_no_catalog_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    path.write_bytes(b"not a database, though as long as one page's header" * 40)
    with pytest.raises(StorageError) as caught:
        Catalog(path)
    assert caught.value.sqlstate == "58030"
    assert "could not read catalog" in caught.value.message
