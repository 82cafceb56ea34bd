"""The journal's files: what a crash, a full disk or a flipped bit leaves of them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.publisher import Change, Transaction, gulp, gulps, inserts, payloads

from wal2lake.changelog import files
from wal2lake.changelog.files import journal_name, journal_numbers
from wal2lake.changelog.journal import format as journal_format
from wal2lake.changelog.journal.format import JournalRecord, RecordKind
from wal2lake.changelog.journal.gulp import (
    LoggedDefinition,
    TransactionPositions,
    drop_headless,
    find_positions,
)
from wal2lake.changelog.journal.journal import Journal
from wal2lake.errors import (
    ConfigurationError,
    CorruptLogError,
    ProtocolViolation,
    StorageError,
)
from wal2lake.model import Lsn

pytestmark = pytest.mark.usefixtures("no_fsync")


def opened(directory: Path, file_bytes: int = 1 << 20) -> Journal:
    journal = Journal(directory, file_bytes=file_bytes)
    list(journal.recover())
    return journal


def recovered(directory: Path) -> list[JournalRecord]:
    return list(Journal(directory).recover())


def data_of(records: Sequence[JournalRecord]) -> list[bytes]:
    return [r.data for r in records if r.kind is RecordKind.DATA]


def definitions(found: TransactionPositions) -> list[LoggedDefinition]:
    """All of them; no streamed transaction ends there."""
    known = [one for one in found.definitions if isinstance(one, LoggedDefinition)]
    assert len(known) == len(found.definitions)
    return known


def filled(directory: Path, *, sync_each: bool = True) -> list[bytes]:
    """Three gulps in one file; returns their data."""
    journal = opened(directory)
    journal.append_connect(Lsn(1))
    written = []
    for data, lengths in gulps([inserts(100, 2), inserts(200, 2)], 3):
        journal.append(data, lengths)
        written.append(data)
        if sync_each:
            journal.sync()
    journal.sync()
    journal.close()
    assert len(written) == 3
    return written


def test_what_is_appended_is_recovered_in_order_with_its_kinds(tmp_path: Path) -> None:
    written = filled(tmp_path)
    records = recovered(tmp_path)
    assert [r.kind.name for r in records] == ["PREAMBLE", "CONNECT", *["DATA"] * 3]
    assert records[1].start_lsn == Lsn(1)
    assert data_of(records) == written
    assert all(int(r.lengths.sum()) == len(r.data) for r in records)


def test_sync_answers_the_end_of_the_last_whole_transaction(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    assert journal.sync() == 0
    first, second = payloads(inserts(100, 1)), payloads(inserts(200, 1))
    journal.append(*gulp(first + second[:2]))
    assert journal.logged == 0
    assert journal.sync() == 108
    journal.append(*gulp(second[2:]))
    assert journal.sync() == 208
    journal.close()
    assert opened(tmp_path).logged == 208


def test_a_file_cut_at_any_length_recovers_exactly_the_whole_records(
    tmp_path: Path,
) -> None:
    # Never synced in between: every record may be torn.
    origin = tmp_path / "origin"
    origin.mkdir()
    filled(origin, sync_each=False)
    content = (origin / journal_name(1)).read_bytes()
    records = recovered(origin)
    ends = [r.offset for r in records[1:]] + [len(content)]
    for size in range(len(content)):
        directory = tmp_path / str(size)
        directory.mkdir()
        (directory / journal_name(1)).write_bytes(content[:size])
        expected = [r.data for r, end in zip(records, ends, strict=True) if end <= size]
        assert [r.data for r in recovered(directory)] == expected
        # The tail is gone from the file too, and the journal can go on.
        journal = opened(directory)
        journal.append_connect(Lsn(77))
        journal.sync()
        journal.close()
        again = recovered(directory)
        assert again[-1].start_lsn == Lsn(77)
        whole = [r for r in again if r.number == 1 and len(again) > 2]
        assert [r.data for r in whole][: len(expected)] == expected
        (directory / journal_name(1)).unlink()


def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    written = filled(tmp_path)
    path = tmp_path / journal_name(1)
    content = path.read_bytes()
    last = recovered(tmp_path)[-1].offset
    for at in range(len(content)):
        broken = bytearray(content)
        broken[at] ^= 1 << at % 8
        path.write_bytes(broken)
        if at >= last:
            # Nothing after it says that it had been on disk: a torn tail.
            assert data_of(recovered(tmp_path)) == written[:-1]
        else:
            with pytest.raises((CorruptLogError, ConfigurationError)) as caught:
                recovered(tmp_path)
            assert str(path) in str(caught.value)
            assert caught.value.hint


def test_corruption_has_a_sqlstate_a_place_and_a_remedy(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / journal_name(1)
    content = bytearray(path.read_bytes())
    at = recovered(tmp_path)[2].offset
    content[at + 40] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptLogError) as caught:
        recovered(tmp_path)
    assert caught.value.sqlstate == "XX001"
    assert caught.value.detail == f"At byte {at}, a record fails its checksum."
    assert "(recopy = true)" in (caught.value.hint or "")
    # The file is evidence: nobody cuts it.
    assert path.read_bytes() == content


def test_a_torn_tail_is_only_believed_in_the_newest_file(tmp_path: Path) -> None:
    journal = opened(tmp_path, file_bytes=200)
    for data, lengths in gulps([inserts(100, 5)], 2):
        journal.append(data, lengths)
    journal.sync()
    journal.close()
    assert len(journal_numbers(tmp_path)) > 1
    path = tmp_path / journal_name(1)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptLogError, match=r"journal-0*1"):
        recovered(tmp_path)


def test_a_missing_file_between_others_is_corruption(tmp_path: Path) -> None:
    journal = opened(tmp_path, file_bytes=1)
    for data, lengths in gulps([inserts(100, 5)], 2):
        journal.append(data, lengths)
    journal.close()
    (tmp_path / journal_name(2)).unlink()
    with pytest.raises(CorruptLogError, match=r"journal-0*2"):
        recovered(tmp_path)


def test_a_value_that_is_a_piece_of_a_journal_is_not_taken_for_records(
    tmp_path: Path,
) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    filled(origin)
    piece = (origin / journal_name(1)).read_bytes()
    journal = opened(tmp_path)
    journal.append_connect(Lsn(1))
    value = Transaction(100, (Change(1, "I", (b"1", piece)),))
    journal.append(*gulp(payloads(value)))
    journal.close()
    path = tmp_path / journal_name(1)
    # Torn inside the value's record: all that follows looks like records of another place.
    path.write_bytes(path.read_bytes()[:-1])
    assert data_of(recovered(tmp_path)) == []


def test_files_change_in_the_middle_of_a_transaction_and_carry_the_relations(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path, file_bytes=300)
    journal.append_connect(Lsn(1))
    changes = [Change(r, "I", (b"%d" % i, b"x")) for i in range(9) for r in (1, 2)]
    for data, lengths in gulps([Transaction(100, tuple(changes))], 2):
        journal.append(data, lengths)
    journal.sync()
    journal.close()
    records = recovered(tmp_path)
    preambles = {r.number: r for r in records if r.kind is RecordKind.PREAMBLE}
    assert len(preambles) >= 3
    last = preambles[max(preambles)]
    known = definitions(find_positions(last.data, last.lengths))
    assert [d.oid for d in known] == [1, 2]
    assert len(preambles[1].data) == 0


def test_a_new_connection_forgets_the_relations(tmp_path: Path) -> None:
    journal = opened(tmp_path, file_bytes=1)
    journal.append_connect(Lsn(1))
    journal.append(*gulp(payloads(inserts(100, 1))))
    journal.append_connect(Lsn(108))
    journal.append(*gulp(payloads(inserts(200, 1))))
    journal.close()
    sizes = [
        len(r.lengths) for r in recovered(tmp_path) if r.kind is RecordKind.PREAMBLE
    ]
    assert sizes == [0, 0, 0, 0]


def test_trim_removes_files_once_all_their_transactions_are_sealed(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path, file_bytes=1)
    # One file per gulp: 1 begins 100; 2 ends it and begins 200; 3 is inside 200; 4 ends it.
    first, second = payloads(inserts(100, 2)), payloads(inserts(200, 4))
    pieces = [first[:2], first[2:] + second[:2], second[2:4], second[4:]]
    for messages in pieces:
        journal.append(*gulp(messages))
    journal.append(*gulp(payloads(inserts(300, 1))))
    journal.sync()
    assert journal_numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert journal.trim(Lsn(100)) == 0
    assert journal.trim(Lsn(108)) == 1
    assert journal_numbers(tmp_path) == [2, 3, 4, 5]
    assert journal.trim(Lsn(200)) == 0
    assert journal.trim(Lsn(208), keep_from=3) == 1
    assert journal.trim(Lsn(208)) == 2
    # The current file never goes.
    assert journal.trim(Lsn(999)) == 0
    assert journal_numbers(tmp_path) == [5]
    journal.append(*gulp(payloads(inserts(400, 1))))
    assert journal_numbers(tmp_path) == [5, 6]
    journal.close()


def test_recovery_knows_again_which_files_may_go(tmp_path: Path) -> None:
    journal = opened(tmp_path, file_bytes=1)
    for lsn in (100, 200, 300):
        journal.append(*gulp(payloads(inserts(lsn, 1))))
    journal.sync()
    journal.close()
    journal = opened(tmp_path)
    assert journal.trim(Lsn(208)) == 2
    assert journal_numbers(tmp_path) == [3]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let writes beyond ``size`` fail as a full disk does (EFBIG, after a short write)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_failed_append_leaves_whole_records_and_may_be_repeated(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path)
    journal.append(*gulp(payloads(inserts(100, 1))))
    path = tmp_path / journal_name(1)
    before = path.stat().st_size
    second = gulp(payloads(inserts(200, 50)))
    for room in (0, 1, 32, 500):
        with largest_file(before + room), pytest.raises(StorageError) as caught:
            journal.append(*second)
        assert caught.value.sqlstate == "58030"
        assert path.stat().st_size == before
    journal.append(*second)
    assert journal.sync() == 208
    journal.close()
    assert data_of(recovered(tmp_path))[1] == second[0]


class Failing:
    """An os function that fails when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self._real = getattr(module, name)
        self.error: int | None = None
        monkeypatch.setattr(module, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return self._real(*args, **kwargs)


@pytest.mark.parametrize(
    ("code", "sqlstate"),
    [(errno.ENOSPC, "53100"), (errno.EDQUOT, "53100"), (errno.EIO, "58030")],
)
def test_a_full_disk_has_postgresqls_sqlstate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, sqlstate: str
) -> None:
    journal = opened(tmp_path)
    journal.append(*gulp(payloads(inserts(100, 1))))
    write = Failing(monkeypatch, os, "pwritev")
    write.error = code
    with pytest.raises(StorageError) as caught:
        journal.append(*gulp(payloads(inserts(200, 1))))
    assert caught.value.sqlstate == sqlstate
    assert caught.value.message == (
        f'could not write to file "{tmp_path / journal_name(1)}": {os.strerror(code)}'
    )
    assert journal.sync() == 108
    write.error = None
    journal.append(*gulp(payloads(inserts(200, 1))))
    assert journal.sync() == 208


def test_a_full_disk_at_the_start_of_a_file_leaves_the_old_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path, file_bytes=1)
    journal.append(*gulp(payloads(inserts(100, 1))))
    directory_sync = Failing(monkeypatch, os, "fsync")
    directory_sync.error = errno.ENOSPC
    with pytest.raises(StorageError, match="could not create file"):
        journal.append(*gulp(payloads(inserts(200, 1))))
    assert journal_numbers(tmp_path) == [1]
    directory_sync.error = None
    journal.append(*gulp(payloads(inserts(200, 1))))
    assert journal.sync() == 208
    journal.close()
    assert len(data_of(recovered(tmp_path))) == 2


def test_after_a_failed_fsync_the_journal_refuses_all_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    data_sync = Failing(monkeypatch, files, "sync_data")
    journal.append(*gulp(payloads(inserts(100, 1))))
    data_sync.error = errno.EIO
    with pytest.raises(StorageError, match="could not fsync file"):
        journal.sync()
    data_sync.error = None
    assert journal.logged == 0
    with pytest.raises(StorageError, match="must be opened again"):
        journal.sync()
    with pytest.raises(StorageError, match="must be opened again"):
        journal.append(*gulp(payloads(inserts(200, 1))))
    journal.close()
    assert opened(tmp_path).logged == 108


def test_a_file_is_synced_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path, file_bytes=1)
    journal.append(*gulp(payloads(inserts(100, 1))))
    data_sync = Failing(monkeypatch, files, "sync_data")
    data_sync.error = errno.EIO
    with pytest.raises(StorageError, match="could not fsync file"):
        journal.append(*gulp(payloads(inserts(200, 1))))
    assert journal_numbers(tmp_path) == [1]


def test_a_file_that_is_only_a_torn_header_leaves_no_gap(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / journal_name(2)).write_bytes(b"w2ljrnl\0\1")
    journal = opened(tmp_path)
    journal.append_connect(Lsn(5))
    journal.close()
    assert journal_numbers(tmp_path) == [1, 2]
    assert recovered(tmp_path)[-1].start_lsn == Lsn(5)


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / journal_name(1)
    content = bytearray(path.read_bytes())
    content[8] = 3
    content[28:32] = zlib.crc32(content[:28]).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="unsupported log format version 3"):
        recovered(tmp_path)


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append_connect(Lsn(0x0102030405060708))
    journal.close()
    content = (tmp_path / journal_name(1)).read_bytes()
    assert content.hex(" ", 4) == (
        # header: magic, version 2, 0, number 1, 0, CRC
        "77326c6a 726e6c00 02000000 00000000 01000000 00000000 00000000 26dbe11a "
        # PREAMBLE without messages: magic, CRC, kind 2, count 0, 0 bytes, synced 0
        "57324c52 2bbe21a5 02000000 00000000 00000000 00000000 00000000 00000000 "
        # CONNECT: one payload of 8 bytes, 64 bytes were synced
        "57324c52 c01158b5 01000000 01000000 08000000 00000000 40000000 00000000 "
        "08000000 08070605 04030201"
    )


def test_a_record_can_be_read_back_by_its_place(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    places = [journal.append(*one) for one in gulps([inserts(100, 3)], 2)]
    expected = [data for data, _ in gulps([inserts(100, 3)], 2)]
    assert [journal.read(place).data for place in places] == expected
    path = tmp_path / journal_name(1)
    content = bytearray(path.read_bytes())
    content[places[1].offset + 50] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptLogError):
        journal.read(places[1])
    journal.close()


def test_positions_are_found_without_decoding() -> None:
    messages = payloads(inserts(100, 2)) + payloads(inserts(200, 1, relid=9))[:3]
    found = find_positions(*gulp(messages))
    assert (found.last_begin, found.last_end) == (200, 108)
    known = definitions(found)
    assert [(d.oid, d.is_type) for d in known] == [(1, False), (9, False)]
    assert known[1].payload == messages[-2]
    empty = find_positions(b"", np.zeros(0, np.uint32))
    assert (empty.last_begin, empty.last_end, empty.definitions) == (0, 0, ())


def test_the_headless_part_of_a_transaction_goes_but_its_relations_stay() -> None:
    first = payloads(Transaction(100, (Change(1, "I", (b"1", b"x")),)))
    second = payloads(inserts(200, 1))
    data, lengths, begun = drop_headless(*gulp(first[1:] + second))
    assert (data, begun) == (b"".join([first[1], *second]), True)
    assert int(lengths.sum()) == len(data)
    data, lengths, begun = drop_headless(*gulp(first[2:]))
    assert (data, len(lengths), begun) == (b"", 0, False)


@pytest.mark.parametrize("cut", [26, 30, 34])
def test_a_begin_cut_short_is_refused_before_it_is_written(
    tmp_path: Path, cut: int
) -> None:
    journal = opened(tmp_path)
    begin = payloads(inserts(100, 1))[0][: cut - 1]
    with pytest.raises(ProtocolViolation, match="insufficient data"):
        journal.append(*gulp([begin + b"B"[: cut == 26]]))
    assert journal_numbers(tmp_path) == []


def test_any_bytes_after_the_magic_are_no_record(tmp_path: Path) -> None:
    filled(tmp_path)
    path = tmp_path / journal_name(1)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"W2LR" + b"\0" * 100)
    assert len(data_of(recovered(tmp_path))) == 3
    assert path.stat().st_size == size
    assert journal_format.FILE_HEADER_BYTES == journal_format.RECORD_HEADER_BYTES == 32
