"""What is shown of a log: its segments, its size, who needs it (Inventory, wal2lake.log*)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.catalog_source import OBJECTS, FakeSource, rel, session
from tests.fakes.publisher import Change, Transaction, gulps, inserts

from wal2lake.catalog import SyncSnapshot
from wal2lake.changelog import (
    Held,
    Inventory,
    LogReader,
    Retention,
    files,
    history_bytes,
    log_size,
    manifest,
    retention,
)
from wal2lake.changelog.manifest import LogFile, Manifest
from wal2lake.changelog.retention import journal_file_bytes
from wal2lake.changelog.segments import open_writer
from wal2lake.errors import CorruptLogError
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.settings import LogSettings
from wal2lake.sql.sysviews import SystemCatalog
from wal2lake.wire.columnar import Decoder

pytestmark = pytest.mark.usefixtures("no_fsync")

SUB = Oid(OBJECTS["subscription sub"])


def sealed(directory: Path, *segments: list[Transaction]) -> None:
    """A log with these segments."""
    directory.mkdir(exist_ok=True)
    writer, decoder = open_writer(directory), Decoder()
    for transactions in segments:
        for one in gulps(transactions, 3):
            writer.add(decoder.feed(*one))
        assert writer.seal() is not None


def on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


# ---- the inventory ----------------------------------------------------------------------


def test_an_inventory_counts_what_is_on_disk_and_follows_it(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path / "log")
    assert inventory.read() is None
    sealed(tmp_path / "log", [inserts(100, 2)], [inserts(200, 5)], [inserts(300, 1)])
    directory = tmp_path / "log"
    (directory / files.journal_name(4)).write_bytes(b"x" * 1000)
    (directory / files.journal_name(5)).write_bytes(b"x" * 10)
    # The open transaction's rows, and a seal that is at work.
    (directory / files.rows_name(4, Oid(7), 0)).write_bytes(b"x" * 50)
    (directory / (files.manifest_name(4) + ".tmp")).write_bytes(b"x" * 7)
    (directory / "lost+found").write_bytes(b"")
    contents = inventory.read()
    assert contents is not None
    assert contents.numbers == (1, 2, 3)
    for number, size in zip(contents.numbers, contents.sizes, strict=True):
        assert size == sum(
            path.stat().st_size for path in directory.glob(f"seg-{number:020d}*")
        )
    assert (contents.journal_files, contents.journal_bytes) == (2, 1010)
    assert contents.open_bytes == 57
    assert contents.size == log_size(directory)
    assert contents.size.total_bytes == on_disk(directory)
    # The journal grows, the open transaction is sealed, the oldest segment goes.
    (directory / files.journal_name(5)).write_bytes(b"x" * 90)
    (directory / (files.manifest_name(4) + ".tmp")).unlink()
    (directory / files.rows_name(4, Oid(7), 0)).unlink()
    assert Retention(directory).trim(Lsn(108)) == [1]
    sealed(directory, [inserts(400, 4)])
    contents = inventory.read()
    assert contents is not None
    assert contents.size.total_bytes == on_disk(directory)
    assert contents.size == log_size(directory)
    assert contents.numbers == tuple(LogReader(directory).numbers())


def test_what_a_reader_needs_is_what_has_not_ended_below_it(tmp_path: Path) -> None:
    sealed(tmp_path, [inserts(100, 2)], [inserts(200, 5)], [inserts(300, 1)])
    ends = [one.sealed_lsn for one in LogReader(tmp_path).after(0)]
    inventory = Inventory(tmp_path)
    contents = inventory.read()
    assert contents is not None
    sizes = contents.sizes
    for lsn, first in (
        (Lsn(0), 0),
        (Lsn(ends[0] - 1), 0),
        (ends[0], 1),
        (Lsn(ends[1] - 1), 1),
        (ends[1], 2),
        (ends[2], 3),
        (Lsn(1 << 62), 3),
    ):
        assert inventory.above(contents, lsn) == Held(3 - first, sum(sizes[first:]))
        # The same is what retention would keep.
        assert inventory.above(contents, lsn).segments == len(
            LogReader(tmp_path).above(lsn)
        )


def test_a_segment_that_goes_while_one_looks_is_nobodys(tmp_path: Path) -> None:
    sealed(tmp_path, [inserts(100, 2)], [inserts(200, 5)], [inserts(300, 1)])
    inventory = Inventory(tmp_path)
    contents = inventory.read()
    assert contents is not None
    Retention(tmp_path).trim(Lsn(208))
    assert inventory.above(contents, Lsn(208)).segments == 1
    assert [f.manifest.number for f in inventory.facts(contents, (1, 2, 3))] == [3]


def test_a_rotten_manifest_is_named(tmp_path: Path) -> None:
    sealed(tmp_path, [inserts(100, 2)])
    path = tmp_path / files.manifest_name(1)
    path.write_bytes(path.read_bytes().replace(b'"number": 1', b'"number": 2'))
    inventory = Inventory(tmp_path)
    contents = inventory.read()
    assert contents is not None
    with pytest.raises(CorruptLogError, match=path.name):
        inventory.above(contents, Lsn(0))


def many(directory: Path, count: int) -> None:
    """A log of that many segments, of manifests and empty files."""
    for number in range(1, count + 1):
        name = files.transactions_name(number)
        one = Manifest(
            number=number,
            first_commit_lsn=Lsn(number * 10),
            last_commit_lsn=Lsn(number * 10),
            sealed_lsn=Lsn(number * 10 + 5),
            last_commit_time=1,
            transactions=1,
            transactions_file=LogFile(name, 1, 0),
            files=(),
        )
        (directory / files.manifest_name(number)).write_bytes(manifest.encode(one))
        (directory / name).write_bytes(b"x")


def test_a_large_log_is_looked_at_with_few_manifests_and_in_milliseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: FakeSource
) -> None:
    many(tmp_path, 5000)
    source.log_by_sub[SUB] = tmp_path
    source.subscription_list = [
        replace(s, floor=Lsn(3333 * 10 + 5)) for s in source.subscription_list
    ]
    read = []
    whole = retention.read_manifest

    def counted(directory: Path, number: int) -> Manifest | None:
        read.append(number)
        return whole(directory, number)

    monkeypatch.setattr(retention, "read_manifest", counted)
    catalog = SystemCatalog(source)
    try:
        first = rows(
            catalog,
            "select segments, needed_segments, first_commit_lsn from wal2lake.log",
        )
        assert first == [("5000", "1667", "0/A")]
        assert len(read) < 30
        rows(catalog, "select * from wal2lake.log_readers")
        started = time.perf_counter()
        rows(catalog, "select * from wal2lake.log")
        # A listing of 10,000 files; the bound is for a slow machine.
        assert time.perf_counter() - started < 1.0
        assert len(set(read)) < 60
        listed = rows(
            catalog,
            "select count(*), min(number), max(number), count(*) filter (where applied)"
            " from wal2lake.log_segments",
        )
        assert listed == [("1000", "1", "5000", "500")]
    finally:
        catalog.close()


# ---- the views -----------------------------------------------------------------------------


def rows(catalog: SystemCatalog, sql: str) -> list[tuple[str | None, ...]]:
    return catalog.query(sql, (), session())[1]


def test_the_views_say_what_a_log_holds_and_who_needs_it(
    source: FakeSource, catalog: SystemCatalog, tmp_path: Path
) -> None:
    assert rows(catalog, "select * from wal2lake.log") == [], "it never ran"
    mixed = Transaction(
        0x200,
        (
            Change(1, "U", (b"0", b"x")),
            Change(1, "D", key=b"2"),
            Change(1, "T"),
        ),
    )
    sealed(
        tmp_path,
        [inserts(0x100, 2), inserts(0x150, 3)],
        [mixed],
        [inserts(0x300, 1)],
    )
    (tmp_path / files.journal_name(9)).write_bytes(b"x" * 100)
    one, two, three = LogReader(tmp_path).after(0)
    source.log_by_sub[SUB] = tmp_path
    source.subscription_list = [
        replace(s, floor=one.sealed_lsn) for s in source.subscription_list
    ]
    source.change_counter += 1
    source.rel_list = [
        rel("public.customers", SyncState.READY, "0/100"),
        rel("sales.orders", SyncState.DATASYNC, None),
        rel("sales.log", SyncState.FINISHEDCOPY, "0/250"),
    ]
    source.snapshot_by_sub[SUB] = SyncSnapshot(
        SUB, "s", two.sealed_lsn, "1", (OBJECTS["sales.orders"],)
    )
    source.log_settings = LogSettings(size_limit_bytes=2 * on_disk(tmp_path))
    assert rows(
        catalog,
        "select number, first_commit_lsn, last_commit_lsn, sealed_lsn, transactions,"
        " rows, messages, applied, sealed_at > now() - interval '1 minute'"
        " from wal2lake.log_segments order by number",
    ) == [
        ("1", "0/100", "0/150", str(one.sealed_lsn), "2", "5", "0", "t", "t"),
        ("2", "0/200", "0/200", str(two.sealed_lsn), "1", "3", "0", "f", "t"),
        ("3", "0/300", "0/300", str(three.sealed_lsn), "1", "1", "0", "f", "t"),
    ]
    assert rows(
        catalog,
        "select subname, segments, journal_files, journal_bytes, total_bytes,"
        " needed_segments, first_commit_lsn, sealed_lsn, applied_lsn, size_percent, state,"
        " segment_bytes + open_bytes + journal_bytes = total_bytes from wal2lake.log",
    ) == [
        (
            "sub",
            "3",
            "1",
            "100",
            str(on_disk(tmp_path)),
            "2",
            "0/100",
            str(three.sealed_lsn),
            str(one.sealed_lsn),
            "50",
            "below",
            "t",
        )
    ]
    size = {
        number: sum(p.stat().st_size for p in tmp_path.glob(f"seg-{number:020d}*"))
        for number in (1, 2, 3)
    }
    readers = "select reader, tablename, needed_lsn, segments, bytes from wal2lake.log_readers"
    assert rows(catalog, readers) == [
        ("seal", None, str(three.sealed_lsn), "0", "100"),
        ("apply", None, str(one.sealed_lsn), "2", str(size[2] + size[3])),
        ("copy", "orders", str(two.sealed_lsn), "1", str(size[3])),
        ("copy", "log", "0/250", "1", str(size[3])),
        ("history", None, "0/100", "1", str(size[1])),
    ]
    # Without its snapshot a table in d needs what the floor needs.
    source.snapshot_by_sub.clear()
    assert ("copy", "orders", str(one.sealed_lsn), "2", str(size[2] + size[3])) in rows(
        catalog, readers
    )


def test_without_a_limit_there_is_no_percentage(
    source: FakeSource, catalog: SystemCatalog, tmp_path: Path
) -> None:
    sealed(tmp_path, [inserts(0x100, 2)])
    source.log_by_sub[SUB] = tmp_path
    sql = "select size_limit_bytes, size_percent, state from wal2lake.log"
    assert rows(catalog, sql) == [(None, None, None)]
    for limit, state in ((4, "below"), (1.2, "near"), (0.5, "reached")):
        source.log_settings = LogSettings(
            size_limit_bytes=int(on_disk(tmp_path) * limit)
        )
        assert rows(catalog, sql)[0][2] == state


# ---- the limit and what is kept for comfort -----------------------------------------------------


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 31), st.integers(1 << 20, 1 << 31))
def test_a_log_that_nobody_needs_is_never_near_its_limit(
    limit: int, history: int, journal: int
) -> None:
    settings = LogSettings(
        size_limit_bytes=limit, history_bytes=history, journal_file_bytes=journal
    )
    kept = history_bytes(settings) + 2 * journal_file_bytes(settings)
    if limit >= 100:
        assert kept * 100 <= limit * settings.size_warning_percent
    if not limit:
        assert kept == history + 2 * journal
    assert journal_file_bytes(settings) > 0


def test_the_newest_segment_is_part_of_the_history(tmp_path: Path) -> None:
    sealed(tmp_path, [inserts(100, 2)], [inserts(200, 2)], [inserts(300, 2)])
    _, second, third = (one.size for one in LogReader(tmp_path).after(0))
    end = Lsn(10**6)
    trim = Retention(tmp_path, history_bytes=second + third).trim
    assert trim(end) == [1]
    assert Retention(tmp_path, history_bytes=second + third - 1).trim(end) == [2]
    assert Retention(tmp_path).trim(end) == [], "it stays, whatever the history"
