"""The log's store: what is put there, what counts as stored, and what comes back from it.

The store is a directory, behind a double that fails or cuts as a test says.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import threading
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.faultystore import FaultyStore
from tests.fakes.objectstores import azure_server, gcs_server, s3_server
from tests.fakes.publisher import content, gulps, inserts, payloads
from tests.fakes.receiver import SUBSCRIPTION, Receiver
from tests.fakes.walsender import FakeWalsender, Scripted

from wal2lake.archive import (
    CatalogArchive,
    Claims,
    NodeClaim,
    SegmentArchive,
    Superseded,
    fetch_node,
    keeping,
    layout,
    opening,
)
from wal2lake.archive.claims import claim_of_node
from wal2lake.archive.keeping import ArchiveKeeper
from wal2lake.archive.segments import log_in_store
from wal2lake.catalog import (
    Catalog,
    NewSource,
    PendingHistory,
    Subscription,
    SubscriptionRel,
    WorkerKind,
)
from wal2lake.changelog import (
    ChangeLog,
    HeldSpools,
    LogReader,
    Retention,
    SealedMoment,
)
from wal2lake.changelog.confirmed import Confirmed, ConfirmedFile
from wal2lake.cli import init
from wal2lake.errors import ConfigurationError, StorageError
from wal2lake.lake.store import LocalStore, MissingFileError, Store, store_at
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.receive.source.slotcheck import UnusableSlot
from wal2lake.receive.threads.archiver import Archiver
from wal2lake.settings import LogSettings, Settings, load
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

SMALL = LogSettings(journal_file_bytes=600, segment_bytes=3000)

SENT = [inserts(100 * n, 3) for n in range(1, 6)]


def logged(directory: Path, count: int) -> ChangeLog:
    """A log with a segment for each of the first transactions."""
    log = ChangeLog.open(directory, SMALL)
    log.connected(log.logged)
    for one in SENT[:count]:
        if one.end_lsn > log.sealed:
            for data in gulps([one]):
                log.append(*data)
            log.sync()
            while log.absorb(0):
                pass
            log.seal()
    return log


def archive(directory: Path, store: LocalStore, generation: int = 1) -> SegmentArchive:
    return SegmentArchive(
        directory,
        store,
        log="7/1",
        generation=generation,
        generations=list(range(1, generation + 1)),
    )


def put_all(one: SegmentArchive) -> Lsn:
    """Put all segments of the disk; nothing is prepared."""
    return one.put(SealedMoment(max(one._reader.numbers(), default=0), 0, ()))


def fetched(store: LocalStore, directory: Path, generations: list[int]) -> Path:
    """The log that the store has, in a directory."""
    directory.mkdir()
    for folder, names in log_in_store(store, "7/1", generations).segments.values():
        for name in names:
            (directory / name).write_bytes(store.read(f"{folder}/{name}"))
    return directory


# ---- segments ------------------------------------------------------------------------


@pytest.mark.parametrize("left", range(14))
def test_what_counts_as_stored_is_a_log_that_can_be_opened(
    tmp_path: Path, left: int
) -> None:
    """The store fails at each call in turn: everything up to the answered position is there."""
    logged(tmp_path / "log", 4).close()
    store = FaultyStore(tmp_path / "store")
    one = archive(tmp_path / "log", store)
    store.left = left
    failed = False
    try:
        end = put_all(one)
    except StorageError:
        failed = True
    store.left = None
    there = content(fetched(store, tmp_path / "found", [1]))
    assert there == SENT[: len(there)]
    if not failed:
        assert end == SENT[3].end_lsn
        assert len(there) == 4
    # What failed is repeated, by this run and by the next.
    again = archive(tmp_path / "log", store)
    assert put_all(one) == put_all(again) == SENT[3].end_lsn
    log = ChangeLog.open(fetched(store, tmp_path / "whole", [1]), SMALL)
    assert (log.logged, log.last_segment) == (SENT[3].end_lsn, 4)
    log.close()
    assert content(tmp_path / "whole") == SENT[:4]


def test_a_new_generation_goes_on_behind_what_the_former_has_stored(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    logged(tmp_path / "log", 3).close()
    put_all(archive(tmp_path / "log", store))
    new = fetched(store, tmp_path / "new", [1])
    logged(new, 5).close()
    second = archive(new, store, generation=2)
    assert second.newest == 3
    # The former machine wakes up, and stores a fourth segment of its own.
    logged(tmp_path / "log", 4).close()
    put_all(archive(tmp_path / "log", store))
    assert put_all(second) == SENT[4].end_lsn
    assert content(fetched(store, tmp_path / "both", [1, 2])) == SENT
    folders = log_in_store(store, "7/1", [1, 2]).segments
    assert folders[4][0] == layout.log_folder("7/1", 2)


def test_what_a_lost_machine_stores_too_late_is_of_no_generation(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    logged(tmp_path / "log", 3).close()
    put_all(archive(tmp_path / "log", store))
    new = fetched(store, tmp_path / "new", [1])
    # Before the new one opens its archive, and behind that.
    logged(tmp_path / "log", 4).close()
    put_all(archive(tmp_path / "log", store))
    second = archive(new, store, generation=2)
    assert second.newest == 3
    logged(new, 4).close()
    put_all(second)
    logged(tmp_path / "log", 5).close()
    put_all(archive(tmp_path / "log", store))
    assert len(log_in_store(store, "7/1", [1, 2]).segments) == 4
    logged(new, 5).close()
    again = archive(new, store, generation=2)
    assert again.newest == 4
    assert put_all(again) == SENT[4].end_lsn
    assert log_in_store(store, "7/1", [1, 2]).segments[5][0] == layout.log_folder(
        "7/1", 2
    )


def test_a_directory_that_is_older_than_its_store_stores_nothing(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    logged(tmp_path / "log", 2).close()
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    logged(tmp_path / "log", 4).close()
    put_all(archive(tmp_path / "log", store))
    with pytest.raises(StorageError) as refused:
        archive(tmp_path / "older", store)
    assert refused.value.hint == (
        'Restore the directory by wal2lake init --from, or set "store" of [log] to an empty'
        " prefix."
    )


def test_segments_leave_the_store_once_the_stored_catalog_knows_that_they_may(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path / "store")
    logged(tmp_path / "log", 5).close()
    one = archive(tmp_path / "log", store)
    put_all(one)
    assert Retention(tmp_path / "log").trim(Lsn(SENT[2].end_lsn)) == [1, 2, 3]
    assert one.has_left(one.oldest_on_disk())
    one.trim(one.oldest_on_disk())
    assert not one.has_left(one.oldest_on_disk())
    assert content(fetched(store, tmp_path / "rest", [1])) == SENT[3:]
    assert LogReader(tmp_path / "rest").numbers() == [4, 5]
    # All objects of those that left have gone.
    assert all(
        "00004" in n or "00005" in n
        for n in store.list_after(layout.log_folder("7/1", 1))
    )


def test_of_a_log_with_a_gap_the_newest_part_counts(tmp_path: Path) -> None:
    """As after a time in which nothing was stored, and segments have left the disk."""
    store = LocalStore(tmp_path / "store")
    logged(tmp_path / "log", 1).close()
    put_all(archive(tmp_path / "log", store))
    logged(tmp_path / "log", 4).close()
    Retention(tmp_path / "log").trim(Lsn(SENT[2].end_lsn))
    put_all(archive(tmp_path / "log", store))
    assert content(fetched(store, tmp_path / "found", [1])) == SENT[3:4]


def test_a_subscription_that_begins_at_a_new_slot_begins_a_log_in_the_store(
    tmp_path: Path,
) -> None:
    """REFRESH with recopy removes the log, and its numbers begin at 1 again."""
    settings, catalog = a_node(tmp_path / "node", store=str(tmp_path / "store"))
    store = LocalStore(tmp_path / "store")
    catalog.create_subscription(subscription(), [])
    log = settings.log_directory / "1"

    def stored(count: int) -> str:
        logged(log, count).close()
        archived, found = (
            opening.open_archive(settings, catalog),
            catalog.subscription(Oid(1)),
        )
        assert archived is not None
        assert found is not None
        put_all(archived.segments(found))
        archived.catalogs.keep()
        archived.remove_dropped(catalog)
        return opening.name_of(found)

    assert stored(4) == "1/1"
    shutil.rmtree(log)
    catalog.copy_anew(Oid(1), ("p",), source=NewSource(Lsn(40), "1", 1))
    assert stored(2) == "1/2"
    assert not log_in_store(store, "1/1", [1]).segments
    fetch(tmp_path / "new", tmp_path / "store")
    assert content(tmp_path / "new" / "log" / "1") == SENT[:2]


def test_a_log_that_was_never_stored_is_missed_and_not_skipped(tmp_path: Path) -> None:
    settings, catalog = a_node(tmp_path / "node", store=str(tmp_path / "store"))
    catalog.create_subscription(replace(subscription(), floor=Lsn(77)), [])
    assert catalogs(settings, catalog, LocalStore(tmp_path / "store")).keep()
    fetch(tmp_path / "new", tmp_path / "store")
    with ConfirmedFile.open(tmp_path / "new" / "log" / "1") as confirmed:
        assert confirmed.last == Confirmed("s", Lsn(77))


# ---- the catalog, and whose it is ----------------------------------------------------


def a_node(directory: Path, store: str = "") -> tuple[Settings, Catalog]:
    directory.mkdir(parents=True, exist_ok=True)
    settings = Settings(directory=directory, log=LogSettings(store=store))
    (directory / "wal2lake.toml").write_text("")
    (directory / "passfile").write_text("*:*:*:me:secret\n")
    (directory / "passfile").chmod(0o600)
    catalog = Catalog.create(settings.catalog_file, "boss", None)
    return settings, catalog


def catalogs(settings: Settings, catalog: Catalog, store: LocalStore) -> CatalogArchive:
    claim = claim_of_node(settings.directory, store, catalog.system_identifier)
    return CatalogArchive(catalog, settings, store, claim)


def images(store: LocalStore) -> list[str]:
    return store.list_after(layout.CATALOGS)


def subscription(number: int = 1) -> Subscription:
    conninfo = "host=h password=hers"
    return Subscription(Oid(number), f"s{number}", Oid(10), True, conninfo, "s", ("p",))


def test_an_image_is_put_when_what_matters_has_changed(tmp_path: Path) -> None:
    settings, catalog = a_node(tmp_path / "node")
    store = LocalStore(tmp_path / "store")
    one = catalogs(settings, catalog, store)
    assert one.keep()
    assert not one.keep()
    catalog.create_subscription(subscription(), [])
    assert one.keep()
    # Floors, errors and counts may lag.
    catalog.note_error(Oid(1), WorkerKind.APPLY, "text", "22023")
    catalog.xids.take()
    (settings.directory / "registered.json").write_text("{}")
    assert not one.keep()
    assert one.keep(now=True)
    (settings.directory / "passfile").write_text("*:*:*:me:another secret\n")
    assert one.keep()
    # Another process sees what has been put, and only few images stay.
    other = catalogs(settings, catalog, store)
    assert not other.keep()
    catalog.drop_subscription(Oid(1))
    assert other.keep()
    assert not one.keep()
    assert len(images(store)) == 3


def test_an_image_has_the_files_in_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = tmp_path / "node"
    settings, catalog = a_node(node)
    log_file = "logs/server.log"
    settings = replace(settings, node=replace(settings.node, log_file=log_file))
    store = LocalStore(tmp_path / "store")
    (node / "certs" / "old").mkdir(parents=True)
    for name in ("run", "log/1", "warehouse/t", "logs", ".hidden"):
        (node / name).mkdir(parents=True)
        (node / name / "server.log.1").write_text("no part of an image")
    (node / "certs" / "server.key").write_text("secret")
    (node / "certs" / "server.key").chmod(0o600)
    (node / "certs" / "old" / "server.crt").write_text("certificate")
    (node / "certs" / "link").symlink_to("server.key")
    one = catalogs(settings, catalog, store)
    assert one.keep()
    assert not one.keep()
    (node / "certs" / "server.key").write_text("another secret")
    assert one.keep()
    fetch(tmp_path / "new", tmp_path / "store")
    capsys.readouterr()
    new = tmp_path / "new"
    assert (new / "certs" / "server.key").read_text() == "another secret"
    assert (new / "certs" / "server.key").stat().st_mode & 0o777 == 0o600
    assert (new / "certs").stat().st_mode & 0o777 == 0o700
    assert (new / "certs" / "old" / "server.crt").read_text() == "certificate"
    assert not (new / "certs" / "link").exists()
    assert not list(new.rglob("server.log.1"))


@pytest.mark.parametrize("name", ["../outside", "/outside", "certs//x", "a/.hidden"])
def test_an_image_with_a_name_that_leads_elsewhere_is_damaged(
    tmp_path: Path, name: str
) -> None:
    settings, catalog = a_node(tmp_path / "node")
    store = LocalStore(tmp_path / "store")
    assert catalogs(settings, catalog, store).keep()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name))
    (image,) = images(store)
    store.put(f"{layout.CATALOGS}/{image}", content.getvalue())
    with pytest.raises(StorageError, match="is damaged"):
        fetch(tmp_path / "new", tmp_path / "store")
    assert not (tmp_path / "outside").exists()


def test_older_images_stay_if_the_new_one_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, catalog = a_node(tmp_path / "node")
    store = LocalStore(tmp_path / "store")
    one = catalogs(settings, catalog, store)
    assert [one.keep(now=True) for _ in range(3)] == [True] * 3
    good = images(store)
    put = store.put_if_absent

    def cut(key: str, content: bytes, **options: Any) -> Any:
        return put(key, content[:100], **options)

    monkeypatch.setattr(store, "put_if_absent", cut)
    with pytest.raises(StorageError, match="is not what was stored"):
        one.keep(now=True)
    assert set(good) < set(images(store))


def test_a_damaged_catalog_is_no_image(tmp_path: Path) -> None:
    settings, catalog = a_node(tmp_path / "node")
    store = LocalStore(tmp_path / "store")
    with catalog._database.reading() as connection:
        (page,) = connection.execute(
            "select rootpage from sqlite_master where name = 'snapshot_vector'"
        ).fetchone()
        (size,) = connection.execute("pragma page_size").fetchone()
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    with settings.catalog_file.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(bytes(size))
    with pytest.raises(StorageError, match=r'catalog ".*catalog.sqlite" is damaged'):
        catalogs(settings, catalog, store).keep()
    assert images(store) == []


def test_segments_that_leave_while_a_node_is_fetched_are_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, catalog = a_node(tmp_path / "node")
    catalog.create_subscription(subscription(7), [])
    store = LocalStore(tmp_path / "store")
    assert catalogs(settings, catalog, store).keep()
    logged(tmp_path / "log", 5).close()
    sent = archive(tmp_path / "log", store)
    put_all(sent)
    (tmp_path / "new").mkdir()
    node = fetch_node(str(tmp_path / "store"), tmp_path / "new")
    real, left = LocalStore.read, [2, 0]

    def read(self: LocalStore, key: str) -> bytes:
        if left[1] == 0 and key.endswith(".json"):
            left[0] -= 1
            if left[0] == 0:
                # The former node removes the first three.
                sent.trim(4)
                left[1] = 1
        return real(self, key)

    monkeypatch.setattr(LocalStore, "read", read)
    fresh = replace(settings, directory=tmp_path / "new")
    assert node.fetch_logs(fresh) == 2
    numbers = LogReader(fresh.log_directory / "7").numbers()
    assert list(numbers) == [4, 5]
    assert left[1] == 1
    # A store that names what it has not got ends the command.
    shutil.rmtree(fresh.log_directory / "7")

    def missing(self: LocalStore, key: str) -> bytes:
        raise MissingFileError(key)

    monkeypatch.setattr(LocalStore, "read", missing)
    with pytest.raises(MissingFileError):
        node.fetch_logs(fresh)
    assert not (fresh.log_directory / "7").exists()


def test_another_store_and_one_that_was_emptied_get_an_image(tmp_path: Path) -> None:
    settings, catalog = a_node(tmp_path / "node")
    for name in ("first", "second"):
        store = LocalStore(tmp_path / name)
        assert catalogs(settings, catalog, store).keep(), name
        assert not catalogs(settings, catalog, store).keep(), name
    shutil.rmtree(tmp_path / "second")
    assert catalogs(settings, catalog, store).keep()
    assert len(images(store)) == 1


def test_others_of_the_machine_cannot_read_a_catalog_in_a_directory(
    tmp_path: Path,
) -> None:
    settings, catalog = a_node(tmp_path / "node", str(tmp_path / "store"))
    archive = opening.open_archive(settings, catalog)
    assert archive is not None
    archive.catalogs.keep()
    (settings.log_directory / "1").mkdir(parents=True)
    archive.segments(subscription())
    folders = [p for p in (tmp_path / "store").rglob("*") if p.is_dir()]
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "store", *folders)} == {0o700}


def test_an_image_whose_request_failed_is_put_again_under_another_name(
    tmp_path: Path,
) -> None:
    settings, catalog = a_node(tmp_path / "node")
    store = FaultyStore(tmp_path / "store")
    one = catalogs(settings, catalog, store)
    store.left = 0
    for _ in range(2):
        with pytest.raises(StorageError):
            one.keep()
    store.left = None
    assert one.keep()
    assert images(store) == [layout.catalog_name(1, 3)]


def test_a_store_belongs_to_one_node_and_one_directory(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    settings, catalog = a_node(tmp_path / "one")
    identifier = catalog.system_identifier
    claim = claim_of_node(settings.directory, store, identifier)
    assert claim == claim_of_node(settings.directory, store, identifier)
    (tmp_path / "two").mkdir()
    with pytest.raises(ConfigurationError) as refused:
        claim_of_node(tmp_path / "two", store, identifier + 1)
    assert refused.value.hint == (
        'Set "store" of [log] to a prefix of this node alone.'
    )
    # A copy of the directory without its claim, or one that was left behind.
    with pytest.raises(Superseded) as superseded:
        claim_of_node(tmp_path / "two", store, identifier)
    assert superseded.value.hint == (
        "Stop this node, and remove its directory. Or, if it was restored from a backup and is"
        ' the only one, set "store" of [log] to an empty prefix.'
    )
    assert Claims(store).put(NodeClaim.new(2, identifier))
    with pytest.raises(Superseded):
        claim_of_node(settings.directory, store, identifier)


def test_a_claim_that_was_written_and_not_put_is_put_by_the_next_start(
    tmp_path: Path,
) -> None:
    store = FaultyStore(tmp_path / "store")
    (tmp_path / "node").mkdir()
    store.left = 0
    with pytest.raises(StorageError):
        claim_of_node(tmp_path / "node", store, 5)
    store.left = None
    assert claim_of_node(tmp_path / "node", store, 5).generation == 1
    assert Claims(store).generations() == [1]


def test_logs_of_dropped_subscriptions_leave_the_store(
    tmp_path: Path,
) -> None:
    settings, catalog = a_node(tmp_path / "node", store=str(tmp_path / "store"))
    store = LocalStore(tmp_path / "store")
    logged(tmp_path / "log", 2).close()
    put_all(archive(tmp_path / "log", store))
    keeper = ArchiveKeeper(settings, catalog)
    catalog.create_subscription(subscription(7), [])
    keeper.step()
    assert log_in_store(store, "7/1", [1]).segments
    catalog.drop_subscription(Oid(7))
    keeper.step()
    assert not log_in_store(store, "7/1", [1]).segments
    assert len(images(store)) == 2


def test_the_engine_of_a_directory_that_is_no_node_any_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(keeping, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(keeping, "_SHARE", 0)
    settings, catalog = a_node(tmp_path / "node", store=str(tmp_path / "store"))
    store, ended = LocalStore(tmp_path / "store"), threading.Event()
    keeper = ArchiveKeeper(settings, catalog, ended.set)
    keeper.start()
    try:
        wait_until(lambda: images(store))
        fetch(tmp_path / "new", tmp_path / "store")
        assert ended.wait(30)
    finally:
        keeper.stop()
    # And it does not start again; the new one does.
    with pytest.raises(Superseded):
        ArchiveKeeper(settings, catalog).start()
    new = Settings(tmp_path / "new", log=settings.log)
    keeper = ArchiveKeeper(new, Catalog(new.catalog_file))
    keeper.start()
    keeper.stop()


@pytest.mark.parametrize(("confirm", "count"), [("disk", 0), ("store", 2)])
def test_files_of_a_history_are_in_the_store_before_their_table_is_committed(
    tmp_path: Path, confirm: str, count: int
) -> None:
    settings, catalog = a_node(tmp_path / "node", store=str(tmp_path / "store"))
    settings = replace(settings, log=replace(settings.log, confirm=confirm))
    rel = SubscriptionRel(Oid(1), Oid(2), "public", "t", SyncState.READY, Lsn(1), 1)
    catalog.create_subscription(subscription(), [rel])
    catalog.secured = ArchiveKeeper(settings, catalog).secure
    pending = PendingHistory(Oid(2), Lsn(5), "c", Oid(3), "[]")
    catalog.expect(Oid(1), Lsn(5), {}, {}, recorded=[pending])
    catalog.expect_history(Oid(1), [replace(pending, reached=Lsn(9))])
    catalog.expect(Oid(1), Lsn(9), {}, {})
    assert len(images(LocalStore(tmp_path / "store"))) == count
    if count:
        (tmp_path / "new").mkdir()
        fetch_node(str(tmp_path / "store"), tmp_path / "new")
        again = Catalog(tmp_path / "new" / "catalog.sqlite")
        pending_there = again.pending_histories(Oid(1), Oid(2))
        assert [entry.reached for entry in pending_there] == [9]


def test_a_store_that_does_not_answer_stops_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_LOOK_SECONDS", 0.01)
    settings, catalog = a_node(tmp_path / "node", store=str(tmp_path / "store"))
    store = FaultyStore(tmp_path / "store")
    monkeypatch.setattr(opening, "store_at", lambda location: store)
    store.left = 0
    keeper = ArchiveKeeper(settings, catalog)
    keeper.start()
    try:
        wait_until(lambda: store.calls > 2)
        assert images(store) == []
        store.left = None
        wait_until(lambda: images(store))
    finally:
        keeper.stop()


# ---- a receiver, and the loss of its machine -----------------------------------------


def script(count: int) -> list[Scripted]:
    return [Scripted(one.end_lsn, tuple(payloads(one))) for one in SENT[:count]]


def receiver(
    directory: Path,
    publisher: FakeWalsender,
    store: Path | str,
    confirm: str = "store",
) -> Receiver:
    one = Receiver(directory, publisher)
    log = LogSettings(segment_interval_ms=10, store=str(store), confirm=confirm)
    one.settings = replace(one.settings, log=log)
    (directory / "wal2lake.toml").write_text(
        f'[log]\nstore = "{store}"\nconfirm = "{confirm}"\nsegment_interval_ms = 10\n'
        f'[spark]\nwarehouse = "{directory.parent / "warehouse"}"\n'
    )
    return one


def fetch(directory: Path, store: Path | str) -> None:
    """wal2lake init --from."""
    options = Namespace(
        directory=directory,
        source=str(store),
        username=None,
        pwfile=None,
        auth="scram-sha-256",
    )
    assert init.run(options) == 0


def revived(directory: Path, publisher: FakeWalsender) -> Receiver:
    """The receiver of a fetched node."""
    one = Receiver.__new__(Receiver)
    one.settings = load(directory, {})
    one.catalog = Catalog(one.settings.catalog_file)
    one.log = one.settings.log_directory / str(int(SUBSCRIPTION))
    return one


def runs(one: Receiver, publisher: FakeWalsender, confirmed: int) -> None:
    error = one.run(until=lambda: publisher.confirmed >= confirmed)
    assert error is None, error


def test_a_node_whose_directory_is_lost_goes_on_from_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, end = tmp_path / "store", SENT[2].end_lsn
    with FakeWalsender([script(3), script(5)]) as publisher:
        publisher.end = Lsn(5000)
        one = receiver(tmp_path / "node", publisher, store)
        runs(one, publisher, end)
        identifier = one.catalog.system_identifier
        one.catalog.close()
        shutil.rmtree(tmp_path / "node")
        fetch(tmp_path / "new", store)
        told = capsys.readouterr().out
        assert "1 subscription, " in told
        assert (tmp_path / "new" / "wal2lake.toml").stat().st_mode & 0o77 == 0
        other = revived(tmp_path / "new", publisher)
        assert content(other.log) == SENT[:3]
        assert other.catalog.system_identifier == identifier
        runs(other, publisher, SENT[4].end_lsn)
        # Nothing is missing, nothing is twice.
        assert content(other.log) == SENT
        # And once more, from both generations.
        shutil.rmtree(tmp_path / "new")
        fetch(tmp_path / "third", store)
        third = revived(tmp_path / "third", publisher)
        assert content(third.log) == SENT


SERVERS = {"s3": s3_server, "gs": gcs_server, "az": azure_server}


@pytest.mark.parametrize(
    "kind", ["s3", "gs", pytest.param("az", marks=pytest.mark.slow)]
)
def test_the_same_with_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with SERVERS[kind]() as server, FakeWalsender([script(3), script(5)]) as publisher:
        publisher.end = Lsn(5000)
        url = f"{server.url}/tables-log"

        def at(location: str) -> Store:
            found = store_at(location, server.options())
            assert found is not None
            return found

        monkeypatch.setattr(opening, "store_at", at)
        # The warehouse's own folder is beside it, and nothing of it is touched.
        at(f"{server.url}/tables").put("_delta_log", b"x")
        one = receiver(tmp_path / "node", publisher, url)
        runs(one, publisher, SENT[2].end_lsn)
        fetch(tmp_path / "new", url)
        # The former directory is the node no more, and a third one cannot become it unasked.
        assert isinstance(one.run(until=lambda: False), Superseded)
        (tmp_path / "third").mkdir()
        with pytest.raises(Superseded):
            claim_of_node(tmp_path / "third", at(url), one.catalog.system_identifier)
        shutil.rmtree(tmp_path / "node")
        other = revived(tmp_path / "new", publisher)
        assert content(other.log) == SENT[:3]
        runs(other, publisher, SENT[4].end_lsn)
        assert content(other.log) == SENT
        archived = opening.open_archive(other.settings, other.catalog)
        assert archived is not None
        found = other.catalog.subscription(SUBSCRIPTION)
        assert found is not None
        segments = archived.segments(found)
        segments.trim(segments.newest)
        assert len(log_in_store(at(url), "1/1", [1, 2]).segments) == 1
        other.catalog.drop_subscription(SUBSCRIPTION)
        archived.remove_dropped(other.catalog)
        assert not log_in_store(at(url), "1/1", [1, 2]).segments
        assert Claims(at(url)).generations() == [1, 2]
        assert at(f"{server.url}/tables").read("_delta_log") == b"x"


@pytest.mark.parametrize(
    "kind", ["s3", "gs", pytest.param("az", marks=pytest.mark.slow)]
)
def test_of_many_directories_at_once_one_becomes_the_node(
    tmp_path: Path, kind: str
) -> None:
    """Each claims the next generation; the store's condition decides."""
    with SERVERS[kind]() as server:
        store = store_at(f"{server.url}/log", server.options())
        assert store is not None
        claims = [NodeClaim.new(2, 5) for _ in range(6)]
        with ThreadPoolExecutor(len(claims)) as pool:
            put = list(pool.map(Claims(store).put, claims))
        assert put.count(True) == 1
        winner = claims[put.index(True)]
        assert Claims(store).newest() == winner
        # An answer that was lost: the same claim is put again.
        assert Claims(store).put(winner)
        Claims(store).check(winner)
        with pytest.raises(Superseded):
            Claims(store).check(replace(winner, generation=1))


def test_nothing_is_confirmed_while_the_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And everything is received all the same."""
    store = FaultyStore(tmp_path / "store")
    monkeypatch.setattr(opening, "store_at", lambda location: store)
    store.left = 0
    with FakeWalsender([script(5)]) as publisher:
        publisher.end = Lsn(SENT[4].end_lsn)
        one = receiver(tmp_path / "node", publisher, tmp_path / "store")

        def received() -> bool:
            return (
                one.log.exists()
                and len(content(one.log)) == 5
                and bool(one.catalog.errors())
            )

        assert one.run(until=received) is None
        assert publisher.confirmed == 0
        (error,) = one.catalog.errors()
        assert error.worker is WorkerKind.ARCHIVER
        assert error.error.startswith("the store does not answer")
        # A run whose store answers again stores and confirms the same.
        store.left = None
        runs(one, publisher, SENT[4].end_lsn)
        assert one.catalog.errors() == []
        # Not even applied segments leave the disk before they are stored.
        nothing = Archiver.__new__(Archiver)
        nothing._position = None
        assert nothing.removable(Lsn(100)) == 0


def test_a_directory_that_is_not_the_node_any_more_confirms_nothing(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    with FakeWalsender([script(2), script(5)]) as publisher:
        one = receiver(tmp_path / "node", publisher, store)
        runs(one, publisher, SENT[1].end_lsn)
        fetch(tmp_path / "new", store)
        error = one.run(until=lambda: False)
        assert isinstance(error, Superseded)
        assert publisher.confirmed == SENT[1].end_lsn


def test_a_position_that_the_store_has_not_got_is_missed_and_not_skipped(
    tmp_path: Path,
) -> None:
    """confirm = disk: what was confirmed last may be on the lost disk alone."""
    store = tmp_path / "store"
    with FakeWalsender([script(3)]) as publisher:
        publisher.confirmed = Lsn(50)
        one = receiver(tmp_path / "node", publisher, store, confirm="disk")
        runs(one, publisher, SENT[2].end_lsn)
        assert one.run(until=lambda: bool(images(LocalStore(store)))) is None
        fetch(tmp_path / "new", store)
        publisher.confirmed = Lsn(5000)
        publisher.end = Lsn(6000)
        error = revived(tmp_path / "new", publisher).run(until=lambda: False)
        assert isinstance(error, UnusableSlot)
        assert "starts at 0/1388, above" in error.message


def test_a_position_is_in_the_store_before_it_is_sent(tmp_path: Path) -> None:
    settings, catalog = a_node(tmp_path / "node", store=str(tmp_path / "store"))
    log = settings.log_directory / "1"
    written = logged(log, 2)
    with ConfirmedFile.open(log) as confirmed:
        held = HeldSpools(log)
        one = Archiver(
            catalog,
            subscription(),
            settings,
            held,
            confirmed,
            stop=threading.Event(),
            wake=lambda: None,
        )
        one.step()
        assert one.position is None
        with pytest.raises(StorageError, match="has not answered yet"):
            one.record("s", Lsn(10))
        written.hold(held)
        one.step()
        assert one.position == SENT[1].end_lsn
        one.record("s", Lsn(1000))
        (folder,) = (tmp_path / "store" / "log" / "1" / "1").iterdir()
        assert (folder / "confirmed").read_bytes() == confirmed.content()
    written.close()


# ---- the way back --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        (
            lambda store: shutil.rmtree(store),
            'Name the URL that "store" of [log] has, or had by default: the warehouse\'s'
            ' with "-log" at its end.',
        ),
        (
            lambda store: shutil.rmtree(store / "catalog"),
            "Make a new node with wal2lake init, and its subscriptions again.",
        ),
        (
            lambda store: [p.write_bytes(b"x") for p in (store / "catalog").iterdir()],
            "Remove it, and use the image before it: run wal2lake init --from again.",
        ),
    ],
)
def test_what_cannot_come_back_says_why_and_leaves_nothing(
    tmp_path: Path, damage: Callable[[Path], object], hint: str
) -> None:
    settings, catalog = a_node(tmp_path / "node")
    store = tmp_path / "store"
    assert catalogs(settings, catalog, LocalStore(store)).keep()
    damage(store)
    with pytest.raises((ConfigurationError, StorageError)) as failed:
        fetch(tmp_path / "new", store)
    assert failed.value.hint == hint
    assert not (tmp_path / "new").exists()


def test_a_fetched_node_has_no_slots_and_numbers_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, catalog = a_node(tmp_path / "node")
    with catalog._database.transaction() as connection:
        connection.execute(
            "insert into replication_slot (name, plugin, temporary, two_phase, failover,"
            " restart_lsn, confirmed_lsn) values ('theirs', 'pgoutput', 0, 0, 0, 1, 1)"
        )
    catalog.begin_local_commit([])
    number, oid = catalog.xids.take(), catalog.new_oid()
    store = LocalStore(tmp_path / "store")
    assert catalogs(settings, catalog, store).keep()
    (tmp_path / "new").mkdir()
    node = fetch_node(str(tmp_path / "store"), tmp_path / "new")
    assert node.catalog.slots == ("theirs",)
    again = Catalog(tmp_path / "new" / "catalog.sqlite")
    # It may have been taken back since.
    assert again.local_commits() == []
    assert again.xids.take() > number + 1_000_000
    assert again.new_oid() > oid + 1_000
    assert (tmp_path / "new" / "passfile").read_text() == "*:*:*:me:secret\n"
    fetch(tmp_path / "third", tmp_path / "store")
    told = capsys.readouterr().out
    assert 'replication slot "theirs" is gone' in told


def test_a_log_of_another_node_is_not_written_over(tmp_path: Path) -> None:
    settings, catalog = a_node(tmp_path / "node")
    catalog.create_subscription(subscription(), [])
    (settings.directory / "wal2lake.toml").write_text(
        f'[log]\ndirectory = "{tmp_path / "logs"}"\n'
    )
    assert catalogs(settings, catalog, LocalStore(tmp_path / "store")).keep()
    (tmp_path / "logs" / "1").mkdir(parents=True)
    with pytest.raises(ConfigurationError) as refused:
        fetch(tmp_path / "new", tmp_path / "store")
    assert refused.value.hint == (
        "The log's directory has the log of another node: remove that, or set"
        " WAL2LAKE_LOG_DIRECTORY to another directory."
    )
    assert not (tmp_path / "new").exists()


def test_options_of_a_new_node_are_not_for_one_that_comes_back(tmp_path: Path) -> None:
    options = Namespace(
        directory=tmp_path / "new",
        source=str(tmp_path),
        username="me",
        pwfile=None,
        auth="scram-sha-256",
    )
    with pytest.raises(ConfigurationError) as refused:
        init.run(options)
    assert refused.value.hint == "Roles and settings come from the store."


# ---- where the store is --------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "spark", "hint"),
    [
        (
            'confirm = "store"',
            "",
            'Set "store" of [log] to a URL like s3://bucket/node-log, or to a directory that'
            " outlives this machine.",
        ),
        (
            'store = "log-store"',
            "",
            "Write a URL like s3://bucket/node-log, or an absolute path.",
        ),
        (
            'store = "s3://lake/tables/log"',
            'warehouse = "s3://lake/tables"',
            'Set "store" of [log] to a place beside the warehouse.',
        ),
        (
            'store = "/elsewhere"\nconfirm = "store"',
            "",
            "Set it to a URL like s3://bucket/lake, or to a directory that outlives this"
            " machine.",
        ),
    ],
)
def test_places_that_do_not_outlive_the_machine_are_refused(
    tmp_path: Path, log: str, spark: str, hint: str
) -> None:
    text = f"[log]\n{log}\n[spark]\n{spark}\n"
    (tmp_path / "wal2lake.toml").write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, {})
    assert refused.value.hint == hint


@pytest.mark.parametrize(
    ("log", "warehouse", "place"),
    [
        ("", "s3://lake/tables", None),
        ('confirm = "store"', "s3://lake/tables/", "s3://lake/tables-log"),
        ('store = "s3://logs/one/"', "s3://lake", "s3://logs/one"),
        ('store = "file:///mnt/log"', "/mnt/lake", "/mnt/log"),
    ],
)
def test_where_the_store_is(
    tmp_path: Path, log: str, warehouse: str, place: str | None
) -> None:
    text = f'[log]\n{log}\n[spark]\nwarehouse = "{warehouse}"\n'
    (tmp_path / "wal2lake.toml").write_text(text)
    assert load(tmp_path, {}).log_store == place


@given(st.integers(0, 10**20 - 1), st.integers(0, 10**20 - 1))
def test_names_sort_like_numbers_and_are_read_back(one: int, other: int) -> None:
    assert (layout.claim_name(one) < layout.claim_name(other)) == (one < other)
    assert layout.claimed(layout.claim_name(one)) == one
    assert layout.catalog_of(layout.catalog_name(one, other)) == (one, other)
    log = layout.log_name(one, 1)
    assert layout.log_of(f"{layout.log_folder(log, other)}/seg-1") == log
