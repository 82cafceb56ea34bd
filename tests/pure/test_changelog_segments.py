"""Segments, their manifests, readers and retention."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.fakes.publisher import (
    Change,
    Transaction,
    content,
    gulp,
    gulps,
    inserts,
    payloads,
    relation,
)

from wal2lake.changelog import (
    LimitState,
    LogFile,
    LogReader,
    Retention,
    check_limit,
    log_size,
    manifest,
    parquet,
    segments,
)
from wal2lake.changelog.segments import SegmentWriter, open_writer
from wal2lake.errors import (
    ConfigurationError,
    CorruptLogError,
    InternalError,
    StorageError,
)
from wal2lake.model import Lsn, Relation
from wal2lake.settings import LogSettings
from wal2lake.wire.columnar import Decoded, Decoder

MIXED = (
    inserts(100, 3),
    Transaction(
        200,
        (
            Change(1, "U", (b"0", None), unchanged=(1,)),
            Change(1, "U", (b"9", b"y"), key=b"1"),
            Change(2, "I", (b"1", None)),
            Change(1, "I", (b"7", b"z", b"new"), columns=3),
            Change(1, "D", key=b"2", columns=3),
        ),
    ),
    Transaction(300, ()),
    Transaction(350, (Change(2, "T"), Change(2, "I", (b"8", b"")))),
    inserts(400, 2, relid=2),
)


def decoded(transactions: Sequence[Transaction], size: int = 3) -> list[Decoded]:
    decoder = Decoder()
    return [decoder.feed(*one) for one in gulps(transactions, size)]


def written(directory: Path, transactions: Sequence[Transaction]) -> SegmentWriter:
    writer = open_writer(directory)
    for one in decoded(transactions):
        writer.add(one)
    return writer


def one_by_one(directory: Path, lsns: Sequence[int]) -> None:
    """A segment for each of some transactions."""
    writer = open_writer(directory)
    for lsn in lsns:
        writer.add(decoded([inserts(lsn, 2)])[0])
        for more in decoded([inserts(lsn, 2)])[1:]:
            writer.add(more)
        writer.seal()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_seal_makes_each_thing_durable_before_what_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    rename = Path.rename

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        steps.append("fsync " + name.replace(tmp_path.name, "directory")[-14:])

    def renamed(path: Path, target: Path) -> Path:
        steps.append("rename " + path.name[-14:])
        return rename(path, target)

    writer = written(tmp_path, [inserts(100, 1)])
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", renamed)
    writer.seal()
    assert steps == [
        *("fsync -0.parquet.tmp", "rename -0.parquet.tmp"),
        *("fsync ns.parquet.tmp", "rename ns.parquet.tmp", "fsync directory"),
        *("fsync 00001.json.tmp", "rename 00001.json.tmp", "fsync directory"),
    ]


def test_every_change_comes_back_in_its_transaction_and_order(tmp_path: Path) -> None:
    writer = written(tmp_path, MIXED)
    sealed = writer.seal()
    assert content(tmp_path) == list(MIXED)
    assert sealed is not None
    assert LogReader(tmp_path).after(0) == [sealed]
    assert (sealed.number, sealed.transactions) == (1, 5)
    assert (sealed.first_commit_lsn, sealed.last_commit_lsn) == (100, 400)
    assert sealed.sealed_lsn == writer.sealed_lsn == writer.complete_lsn == 408
    assert writer.seal() is None
    assert writer.buffered_bytes == 0


def test_a_manifest_describes_each_file(tmp_path: Path) -> None:
    sealed = written(tmp_path, MIXED).seal()
    assert sealed is not None
    first, other, wider = sealed.files
    assert first.relation == relation(1)
    assert (first.inserts, first.updates, first.deletes, first.truncates) == (
        3,
        2,
        0,
        0,
    )
    assert (first.min_commit_lsn, first.max_commit_lsn) == (100, 200)
    assert first.has_unchanged and first.has_old_rows and first.has_key_change
    assert other.relation == relation(2)
    assert (other.inserts, other.truncates, other.has_truncate) == (4, 1, True)
    assert (other.rows, other.max_commit_lsn) == (5, 400)
    assert not (other.has_unchanged or other.has_old_rows or other.has_key_change)
    assert wider.relation == relation(1, 3)
    assert (wider.inserts, wider.deletes, wider.has_truncate) == (1, 1, False)
    # A DELETE always has its key: that is no key change.
    assert wider.has_old_rows and not wider.has_key_change


def test_a_column_that_a_batch_lacks_says_what_its_absence_said(
    tmp_path: Path,
) -> None:
    sealed = written(tmp_path, MIXED).seal()
    assert sealed is not None
    read = LogReader(tmp_path).read
    table = read(sealed.files[0].file)
    assert table.column("u1").to_pylist() == [False, False, False, True, False]
    assert table.column("o0").to_pylist() == [None, None, None, None, b"1"]
    options = read(sealed.files[1].file, ["options"]).column(0)
    assert sorted(options.to_pylist()) == [0, 0, 0, 0, 2]


def test_a_file_says_by_itself_whose_rows_it_has(tmp_path: Path) -> None:
    sealed = written(tmp_path, MIXED).seal()
    assert sealed is not None
    path = tmp_path / sealed.files[0].file.name
    assert path.name == "seg-00000000000000000001-1-0.parquet"
    schema = pq.read_schema(path)
    assert schema.names == [
        *("commit_lsn", "ordinal", "op", "old", "c0", "c1"),
        *("u1", "o0"),
    ]
    described = json.loads(schema.metadata[b"wal2lake"])
    assert described["relation"]["name"] == "t1"
    assert pq.read_metadata(path).row_group(0).column(0).statistics.max == 200


def test_rows_of_the_open_transaction_stay_behind(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    messages = payloads(inserts(100, 2))
    later = payloads(inserts(200, 4))
    decoder = Decoder()
    writer.add(decoder.feed(*gulp(messages + later[:4])))
    writer.seal()
    assert content(tmp_path) == [inserts(100, 2)]
    assert writer.buffered_bytes > 0
    assert writer.seal() is None
    writer.add(decoder.feed(*gulp(later[4:])))
    writer.seal()
    assert content(tmp_path) == [inserts(100, 2), inserts(200, 4)]


def test_a_transaction_that_comes_twice_is_our_own_bug(tmp_path: Path) -> None:
    writer = written(tmp_path, [inserts(100, 1)])
    with pytest.raises(InternalError, match="0/64"):
        writer.add(decoded([inserts(100, 1)], 100)[0])


def spilling(directory: Path) -> SegmentWriter:
    """A writer whose open transaction 200 has spilled files, and rows in memory."""
    writer = open_writer(directory, segment_bytes=2000)
    decoder = Decoder()
    for one in gulps([inserts(100, 2), inserts(200, 60, size=100)], 5)[:-1]:
        writer.add(decoder.feed(*one))
        writer.relieve()
        assert writer.buffered_bytes <= 2000 + 1000
    return writer


def finish_spilling(writer: SegmentWriter) -> None:
    """Send the last gulp of ``spilling`` by decoding all of it again."""
    decoder = Decoder()
    for one in gulps([inserts(100, 2), inserts(200, 60, size=100)], 5):
        last = decoder.feed(*one)
    writer.add(last)


def test_a_large_open_transaction_is_spilled_and_sealed_without_rewriting(
    tmp_path: Path,
) -> None:
    writer = spilling(tmp_path)
    # What was complete was sealed first.
    assert content(tmp_path) == [inserts(100, 2)]
    spilled = [n for n in names(tmp_path) if n.startswith("seg-00000000000000000002-")]
    assert len(spilled) >= 3
    stamps = {name: (tmp_path / name).stat().st_mtime_ns for name in spilled}
    finish_spilling(writer)
    sealed = writer.seal()
    assert sealed is not None
    assert sealed.number == 2
    assert content(tmp_path) == [inserts(100, 2), inserts(200, 60, size=100)]
    assert {n: (tmp_path / n).stat().st_mtime_ns for n in spilled} == stamps
    assert set(spilled) < {f.file.name for f in sealed.files}
    for one in decoded([inserts(300, 1)]):
        writer.add(one)
    after = writer.seal()
    assert after is not None
    assert [f.file.name[:24] for f in after.files] == ["seg-00000000000000000003"]


def test_discarding_the_open_transaction_removes_its_rows_and_files(
    tmp_path: Path,
) -> None:
    writer = spilling(tmp_path)
    writer.discard_open()
    assert writer.buffered_bytes == 0
    assert not [n for n in names(tmp_path) if n.startswith("seg-00000000000000000002-")]
    for one in decoded([inserts(200, 60, size=100)]):
        writer.add(one)
        writer.relieve()
    writer.seal()
    assert content(tmp_path) == [inserts(100, 2), inserts(200, 60, size=100)]


def test_discarding_keeps_what_is_complete(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    decoder = Decoder()
    known: dict[int, Relation] = {}
    messages = payloads(inserts(100, 2), known) + payloads(inserts(200, 4), known)[:3]
    writer.add(decoder.feed(*gulp(messages)))
    writer.discard_open()
    for one in decoded([inserts(300, 1)]):
        writer.add(one)
    writer.seal()
    assert content(tmp_path) == [inserts(100, 2), inserts(300, 1)]


def test_discarding_keeps_a_spilled_transaction_that_is_complete(
    tmp_path: Path,
) -> None:
    writer = spilling(tmp_path)
    finish_spilling(writer)
    writer.discard_open()
    writer.seal()
    assert content(tmp_path) == [inserts(100, 2), inserts(200, 60, size=100)]


def test_leftovers_of_a_crash_go_when_the_log_is_opened(tmp_path: Path) -> None:
    spilling(tmp_path)
    (tmp_path / "seg-00000000000000000002.json.tmp").write_text("{")
    (tmp_path / "seg-00000000000000000001-9-7.parquet").write_text("of a failed try")
    (tmp_path / "mine.txt").write_text("not ours")
    writer = open_writer(tmp_path)
    assert (writer.sealed_lsn, writer.last_number) == (108, 1)
    assert names(tmp_path) == [
        "mine.txt",
        "seg-00000000000000000001-1-0.parquet",
        "seg-00000000000000000001-transactions.parquet",
        "seg-00000000000000000001.json",
    ]
    assert content(tmp_path) == [inserts(100, 2)]


POINTS = (
    "segment.file_written",
    "segment.manifest_written",
    "segment.manifest_renamed",
)


class Armed:
    """Fails at the n-th arrival at any failpoint; keeps a copy of the directory there."""

    def __init__(self, directory: Path, at: int, error: Exception) -> None:
        self.directory = directory
        self.left = at
        self.error = error
        self.name: str | None = None

    def __call__(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.name = name
            shutil.copytree(self.directory, self.directory.parent / "crashed")
            raise self.error


@pytest.mark.parametrize("at", range(1, 7))
def test_a_crash_at_any_step_of_a_seal_leaves_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    one_by_one(directory, [50])
    writer = written(directory, MIXED)
    armed = Armed(directory, at, RuntimeError("crash"))
    monkeypatch.setattr(segments, "failpoint", armed)
    with pytest.raises(RuntimeError):
        writer.seal()
    # Three files, the transactions, then the manifest's two steps.
    assert armed.name == POINTS[max(0, at - 4)]
    crashed = tmp_path / "crashed"
    again = open_writer(crashed)
    visible = armed.name == "segment.manifest_renamed"
    assert content(crashed) == [inserts(50, 2), *(MIXED if visible else ())]
    assert again.sealed_lsn == (408 if visible else 58)
    assert len(names(crashed)) == (3 + 5 if visible else 3)


@pytest.mark.parametrize("at", range(1, 7))
def test_a_full_disk_at_any_step_of_a_seal_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    writer = written(directory, MIXED)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    armed = Armed(directory, at, full)
    monkeypatch.setattr(segments, "failpoint", armed)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        writer.seal()
    assert caught.value.sqlstate == "53100"
    if armed.name == "segment.manifest_renamed":
        # It can be seen, but nobody knows whether it is durable.
        with pytest.raises(StorageError, match="must be opened again"):
            writer.seal()
        assert open_writer(directory).sealed_lsn == 408
    else:
        assert names(directory) == []
        writer.seal()
    assert content(directory) == list(MIXED)


def test_a_full_disk_while_spilling_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path, segment_bytes=100)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing(name: str) -> None:
        raise full

    one = decoded([inserts(200, 60)], 1000)[0]
    held = replace(one, transactions=one.transactions.slice(0, 0), last_end_lsn=None)
    writer.add(held)
    before = writer.buffered_bytes
    with monkeypatch.context() as patch:
        patch.setattr(segments, "failpoint", failing)
        with pytest.raises(StorageError):
            writer.relieve()
    assert (names(tmp_path), writer.buffered_bytes) == ([], before)
    writer.relieve()
    assert (len(names(tmp_path)), writer.buffered_bytes) == (1, 0)
    writer.add(replace(one, blocks=[]))
    writer.seal()
    assert content(tmp_path) == [inserts(200, 60)]


# ------------------------------------------------------------------ reader


def test_a_flipped_bit_in_a_manifest_is_noticed(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100])
    path = tmp_path / "seg-00000000000000000001.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 1 << at % 8
        path.write_bytes(broken)
        with pytest.raises(CorruptLogError, match=r"seg-0+1\.json") as caught:
            LogReader(tmp_path).after(0)
        assert caught.value.sqlstate == "XX001"
        assert "(recopy = true)" in (caught.value.hint or "")


def test_a_flipped_bit_in_a_data_file_is_noticed(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100])
    reader = LogReader(tmp_path)
    (sealed,) = reader.after(0)
    for file in (sealed.files[0].file, sealed.transactions_file):
        path = reader.path(file)
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            broken = bytearray(whole)
            broken[at] ^= 1 << at % 8
            path.write_bytes(broken)
            assert refusal(reader, file) == "It fails its checksum."
        path.write_bytes(whole[:-1])
        assert "bytes where its manifest says" in refusal(reader, file)
        path.unlink()
        assert refusal(reader, file) == "The file is missing."
        path.write_bytes(whole)
        reader.verify(file)


def refusal(reader: LogReader, file: LogFile) -> str:
    """How ``verify`` refuses a file."""
    with pytest.raises(CorruptLogError) as caught:
        reader.verify(file)
    assert caught.value.sqlstate == "XX001"
    assert str(reader.path(file)) in caught.value.message
    assert "(recopy = true)" in (caught.value.hint or "")
    return caught.value.detail or ""


def test_reading_a_damaged_page_is_an_error_not_other_data(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100])
    reader = LogReader(tmp_path)
    (sealed,) = reader.after(0)
    path = reader.path(sealed.files[0].file)
    whole = path.read_bytes()
    expected = reader.read(sealed.files[0].file)
    column = pq.read_metadata(path).row_group(0).column(5)
    start = column.data_page_offset
    for at in range(start, start + column.total_compressed_size):
        broken = bytearray(whole)
        broken[at] ^= 4
        path.write_bytes(broken)
        try:
            # A page header has no sum: ``verify`` is for it.
            assert reader.read(sealed.files[0].file).equals(expected)
        except CorruptLogError as error:
            assert str(path) in error.message
    broken = bytearray(whole)
    broken[start + column.total_compressed_size - 1] ^= 1
    path.write_bytes(broken)
    with pytest.raises(CorruptLogError):
        reader.read(sealed.files[0].file)


def test_a_newer_manifest_is_refused_by_its_number(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100])
    path = tmp_path / "seg-00000000000000000001.json"
    ours = path.read_bytes()
    body = ours.rpartition(b',\n "crc32"')[0]
    body = body.replace(b'"format_version": 3', b'"format_version": 4')
    path.write_bytes(body + b',\n "crc32": "%08x"\n}\n' % zlib.crc32(body))
    with pytest.raises(ConfigurationError, match="unsupported log format version 4"):
        LogReader(tmp_path).after(0)
    with pytest.raises(
        ConfigurationError, match="unsupported log format version 4"
    ) as caught:
        open_writer(tmp_path)
    assert caught.value.hint == (
        "Use the version of wal2lake that wrote the log, or a newer one."
    )
    # Of a file that this version has written, it is that one.
    path.write_bytes(ours)
    assert len(LogReader(tmp_path).after(0)) == 1
    open_writer(tmp_path)


def test_readers_find_their_place_by_number_and_by_lsn(tmp_path: Path) -> None:
    reader = LogReader(tmp_path)
    assert (reader.after(0), reader.above(Lsn(0)), reader.newest()) == ([], [], None)
    one_by_one(tmp_path, [100, 200, 300])
    assert [m.number for m in reader.after(0)] == [1, 2, 3]
    assert [m.number for m in reader.after(0, limit=2)] == [1, 2]
    assert [m.number for m in reader.after(2)] == [3]
    assert reader.after(3) == []
    assert [m.number for m in reader.above(Lsn(108))] == [2, 3]
    assert [m.number for m in reader.above(Lsn(109))] == [2, 3]
    assert reader.above(Lsn(308)) == []
    newest = reader.newest()
    assert newest is not None
    assert newest.number == 3


def test_a_missing_manifest_between_others_is_corruption(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100, 200, 300])
    (tmp_path / "seg-00000000000000000002.json").unlink()
    with pytest.raises(CorruptLogError, match=r"seg-0+2\.json"):
        LogReader(tmp_path).after(0)


def test_a_manifest_that_goes_after_the_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(tmp_path, [100, 200, 300])
    reader = LogReader(tmp_path)
    numbers = reader.numbers()
    monkeypatch.setattr(reader, "numbers", lambda: numbers)
    Retention(tmp_path).trim(Lsn(108))
    assert [m.number for m in reader.after(0)] == [2, 3]


def test_names_and_lsns_of_any_shape_survive_a_manifest() -> None:
    from dataclasses import replace

    from wal2lake.changelog.manifest import LogFile, Manifest, RowsFile
    from wal2lake.model import Column, Oid, ReplicaIdentity

    odd = replace(
        relation(2**32 - 1),
        name='a"b\\c\n\x7fé\U0001f600',
        identity=ReplicaIdentity.FULL,
        columns=(Column("", Oid(4_000_000_000), 1048579, True),),
    )
    lsn = Lsn(2**63 - 1)
    file = LogFile("x", 2**40, 0)
    rows = RowsFile(
        file, odd, {Oid(16400): "public.mood"}, 1, 2, 3, 4, lsn, lsn, True, False, True
    )
    one = Manifest(2**40, lsn, lsn, lsn, -1, 5, file, (rows,))
    assert manifest.decode(manifest.encode(one), Path("x")) == one


# ------------------------------------------------------------------ retention


def test_applied_segments_go_oldest_first_with_their_files(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100, 200, 300, 400])
    retention = Retention(tmp_path)
    assert retention.trim(Lsn(107)) == []
    assert retention.trim(Lsn(208)) == [1, 2]
    assert {name[4:24] for name in names(tmp_path)} == {f"{3:020d}", f"{4:020d}"}
    # The newest one says where the log ends.
    assert retention.trim(Lsn(10**6)) == [3]
    assert content(tmp_path) == [inserts(400, 2)]
    assert open_writer(tmp_path).last_number == 4


def test_history_is_kept_up_to_its_size(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100, 200, 300, 400])
    size = LogReader(tmp_path).after(0)[2].size
    assert Retention(tmp_path, history_bytes=size).trim(Lsn(308)) == [1, 2]
    assert Retention(tmp_path, history_bytes=size).trim(Lsn(308)) == []
    assert Retention(tmp_path, history_bytes=size - 1).trim(Lsn(308)) == [3]


def damage_manifest(directory: Path, number: int) -> None:
    path = directory / f"seg-{number:020d}.json"
    path.write_bytes(path.read_bytes().replace(b'"number"', b'"NUMBER"'))


def test_a_damaged_manifest_goes_with_the_one_behind_it(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100, 200, 300, 400])
    damage_manifest(tmp_path, 2)
    assert Retention(tmp_path).trim(Lsn(208)) == [1]
    # Only the damaged one itself could say whether it is still needed.
    assert {name[4:24] for name in names(tmp_path)} == {f"{n:020d}" for n in (2, 3, 4)}
    assert Retention(tmp_path, history_bytes=1 << 20).trim(Lsn(308)) == [2]
    assert {name[4:24] for name in names(tmp_path)} == {f"{n:020d}" for n in (3, 4)}


@pytest.mark.parametrize("older", [True, False])
def test_a_log_that_nobody_reads_goes_on_behind_a_damaged_manifest(
    tmp_path: Path, older: bool
) -> None:
    one_by_one(tmp_path, [100, 200, 300])
    if not older:
        Retention(tmp_path).trim(Lsn(10**6))
    damage_manifest(tmp_path, 3)
    with pytest.raises(CorruptLogError, match=r"seg-0+3\.json"):
        open_writer(tmp_path)
    writer = open_writer(tmp_path, unread=True)
    assert (writer.last_number, writer.sealed_lsn) == (3, Lsn(308))
    # Where it ends is told by whichever file still does.
    path = tmp_path / f"seg-{3:020d}.json"
    path.write_bytes(b"")
    assert open_writer(tmp_path, unread=True).sealed_lsn == Lsn(308)
    (tmp_path / f"seg-{3:020d}-transactions.parquet").unlink()
    rest = Lsn(208) if older else Lsn(0)
    assert open_writer(tmp_path, unread=True).sealed_lsn == rest
    writer.reach(Lsn(400))
    writer.seal()
    assert Retention(tmp_path).trim(Lsn(400))[-1] == 3
    assert {name[4:24] for name in names(tmp_path)} == {f"{4:020d}"}
    assert open_writer(tmp_path).sealed_lsn == Lsn(400)


def test_a_crash_between_a_manifest_and_its_files_leaves_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wal2lake.changelog import retention

    one_by_one(tmp_path, [100, 200])

    def crash(name: str) -> None:
        raise RuntimeError(name)

    monkeypatch.setattr(retention, "failpoint", crash)
    with pytest.raises(RuntimeError, match=r"log\.trimmed"):
        Retention(tmp_path).trim(Lsn(108))
    assert len(names(tmp_path)) == 5
    assert content(tmp_path) == [inserts(200, 2)]
    open_writer(tmp_path)
    assert len(names(tmp_path)) == 3


def test_the_size_of_a_log_is_reported_against_its_limit(tmp_path: Path) -> None:
    one_by_one(tmp_path, [100])
    (tmp_path / "journal-00000000000000000001").write_bytes(b"x" * 1000)
    size = log_size(tmp_path)
    assert size.journal_bytes == 1000
    assert size.total_bytes == sum(p.stat().st_size for p in tmp_path.iterdir())
    total = size.total_bytes

    def state(limit: int) -> LimitState:
        return check_limit(size, LogSettings(size_limit_bytes=limit))

    assert state(0) is LimitState.BELOW
    assert state(total * 2) is LimitState.BELOW
    assert state(total * 5 // 4) is LimitState.NEAR
    assert state(total) is LimitState.REACHED


def test_parquet_files_carry_page_checksums(tmp_path: Path) -> None:
    batches = [b.batch for b in decoded([inserts(100, 5)], 100)[0].blocks]
    buffer, facts = parquet.encode_rows(parquet.VersionRows(relation(1), {}, batches))
    path = tmp_path / "x.parquet"
    path.write_bytes(buffer)
    assert facts.inserts == 5
    assert pq.read_metadata(path).row_group(0).column(4).compression == "ZSTD"
