"""Logical messages in the log: sealed, spilled, recovered, read back, removed."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.publisher import (
    Emitted,
    Event,
    Transaction,
    content,
    gulp,
    gulps,
    inserts,
    payloads,
)

from wal2lake.changelog import ChangeLog, LogReader, MessageHistory, Retention
from wal2lake.changelog.files import journal_numbers, manifest_numbers
from wal2lake.changelog.journal.gulp import drop_headless, find_positions
from wal2lake.changelog.journal.journal import Journal
from wal2lake.changelog.segments import SegmentWriter, open_writer
from wal2lake.errors import CorruptLogError, UsageError
from wal2lake.model import Lsn
from wal2lake.settings import LogSettings
from wal2lake.wire.columnar import Decoder

pytestmark = pytest.mark.usefixtures("no_fsync")

SENT: list[Event] = [
    Emitted(100, b"first"),
    replace(inserts(200, 2), messages=(b"a", b"\0\xff")),
    Transaction(300, (), messages=(b"alone",)),
    # Both begin where the one before them ends.
    Emitted(308, b""),
    inserts(316, 1),
]


def fed(writer: SegmentWriter, events: list[Event]) -> None:
    decoder = Decoder(skip_below=writer.complete_lsn)
    for one in gulps(events, 2):
        writer.add(decoder.feed(*one))


def contents(directory: Path, limit: int = 1000) -> list[bytes]:
    found: list[bytes] = (
        MessageHistory(directory).read(limit_bytes=limit)["content"].to_pylist()
    )
    return found


def test_messages_are_sealed_with_the_transactions_around_them(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    fed(writer, SENT)
    sealed = writer.seal()
    assert sealed is not None
    assert (sealed.sealed_lsn, sealed.transactions) == (Lsn(324), 3)
    assert content(tmp_path) == SENT
    rows = MessageHistory(tmp_path).read(limit_bytes=1000).to_pylist()
    assert [(r["lsn"], r["commit_lsn"], r["content"]) for r in rows] == [
        (108, None, b"first"),
        (199, 200, b"a"),
        (199, 200, b"\0\xff"),
        (299, 300, b"alone"),
        (316, None, b""),
    ]


def test_a_message_outside_of_transactions_is_sealed_without_one(
    tmp_path: Path,
) -> None:
    writer = open_writer(tmp_path)
    fed(writer, SENT[:1])
    sealed = writer.seal()
    assert sealed is not None
    assert (sealed.transactions, sealed.sealed_lsn) == (0, Lsn(108))
    assert (sealed.first_commit_lsn, sealed.last_commit_lsn) == (0, 0)
    assert writer.seal() is None
    # Who opens the log again goes on behind it.
    writer = open_writer(tmp_path)
    assert writer.complete_lsn == Lsn(108)
    fed(writer, SENT)
    writer.seal()
    assert content(tmp_path) == SENT


def test_what_the_open_transaction_has_waits_for_its_commit(tmp_path: Path) -> None:
    writer, decoder = open_writer(tmp_path), Decoder()
    # Its commit record begins where that of the message ends.
    events: list[Event] = [
        Emitted(100, b"first"),
        replace(inserts(108, 2), messages=(b"a",)),
    ]
    messages = [m for one in events for m in payloads(one)]
    writer.add(decoder.feed(*gulp(messages[:-1])))
    writer.seal()
    assert content(tmp_path) == events[:1]
    writer.add(decoder.feed(*gulp(messages[-1:])))
    writer.seal()
    assert content(tmp_path) == events


def test_many_messages_of_an_open_transaction_are_spilled_and_taken_as_they_are(
    tmp_path: Path,
) -> None:
    writer, decoder = open_writer(tmp_path, segment_bytes=2000), Decoder()
    large = replace(
        inserts(200, 3), messages=tuple(b"%03d" % i * 99 for i in range(30))
    )
    messages = payloads(large)
    for one in messages[:-1]:
        writer.add(decoder.feed(*gulp([one])))
        writer.relieve()
        assert writer.buffered_bytes < 3000
    spilled = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len([name for name in spilled if "messages" in name]) > 2
    writer.add(decoder.feed(*gulp(messages[-1:])))
    writer.seal()
    assert content(tmp_path) == [large]
    for name, before in spilled.items():
        assert (tmp_path / name).read_bytes() == before


def test_a_lost_connection_takes_the_open_transactions_messages_with_it(
    tmp_path: Path,
) -> None:
    writer, decoder = open_writer(tmp_path, segment_bytes=2000), Decoder()
    large = replace(inserts(200, 0), messages=(b"x" * 3000, b"y"))
    messages = payloads(SENT[0]) + payloads(large)
    for one in messages[:-1]:
        writer.add(decoder.feed(*gulp([one])))
        writer.relieve()
    assert [path.name for path in tmp_path.glob("*2-messages-*")] != []
    writer.discard_open()
    assert [path.name for path in tmp_path.glob("*2-messages-*")] == []
    assert writer.buffered_bytes == 0
    fed(writer, [SENT[0], large])
    writer.seal()
    assert content(tmp_path) == [SENT[0], large]


def opened(directory: Path) -> ChangeLog:
    sizes = LogSettings(journal_file_bytes=200, segment_bytes=3000)
    return ChangeLog.open(directory, sizes)


def test_a_message_that_only_the_journal_has_is_logged_and_recovered(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path)
    log.connected(Lsn(0))
    for one in gulps(SENT[:1]):
        log.append(*one)
    assert log.sync() == Lsn(108), "it may be confirmed: it will not be sent again"
    log.close()
    log = opened(tmp_path)
    assert log.logged == log.sealed == Lsn(108)
    assert contents(tmp_path) == [b"first"]
    log.close()


def test_a_journal_file_stays_until_its_messages_are_sealed(tmp_path: Path) -> None:
    journal = Journal(tmp_path, file_bytes=100)
    assert list(journal.recover()) == []
    journal.append_connect(Lsn(0))
    journal.append(*gulp(payloads(Emitted(200, b"held" * 50))))
    journal.append(*gulp(payloads(inserts(300, 1))))
    # The message shares the first file with the connection, or has the second one.
    before = journal_numbers(tmp_path)
    holder = len([path for path in tmp_path.iterdir() if b"held" in path.read_bytes()])
    assert (holder, len(before)) == (1, 3)
    journal.trim(Lsn(207))
    assert len([p for p in tmp_path.iterdir() if b"held" in p.read_bytes()]) == 1
    journal.trim(Lsn(208))
    assert journal_numbers(tmp_path) == before[-1:]
    journal.close()


def test_messages_between_transactions_are_recovered_in_their_place(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path)
    log.connected(Lsn(0))
    for one in gulps(SENT[:3], 1):
        log.append(*one)
    while log.absorb(0):
        pass
    log.seal()
    for one in gulps(SENT[3:], 1):
        log.append(*one)
    log.sync()
    log.close()
    log = opened(tmp_path)
    assert content(tmp_path) == SENT
    log.close()


def test_a_journal_knows_messages_outside_of_transactions_as_ends() -> None:
    begun = payloads(inserts(200, 1))
    found = find_positions(*gulp([*payloads(SENT[0]), *begun[:-1]]))
    assert (found.last_begin, found.last_end) == (Lsn(200), Lsn(108))
    found = find_positions(*gulp([*begun, *payloads(Emitted(300, b""))]))
    assert (found.last_begin, found.last_end) == (Lsn(307), Lsn(308))
    inside = payloads(Transaction(200, (), messages=(b"x",)))
    found = find_positions(*gulp(inside[:-1]))
    assert (found.last_begin, found.last_end) == (Lsn(200), Lsn(0))


def test_messages_behind_a_headless_transaction_stay() -> None:
    headless = payloads(replace(inserts(100, 1), messages=(b"gone",)))[1:]
    kept = payloads(Emitted(200, b"kept"))
    data, lengths, begun = drop_headless(*gulp([*headless, *kept]))
    assert (data, begun) == (headless[0] + kept[0], False)
    assert lengths.tolist() == [len(headless[0]), len(kept[0])]


# ---- reading ------------------------------------------------------------------------


def test_a_history_follows_the_segments_that_come_and_go(tmp_path: Path) -> None:
    history = MessageHistory(tmp_path / "log")
    assert history.read(limit_bytes=0).num_rows == 0, "nothing is there yet"
    (tmp_path / "log").mkdir()
    writer = open_writer(tmp_path / "log")
    shown = []
    for one in SENT:
        fed(writer, [one])
        writer.seal()
        shown.append(history.read(limit_bytes=1000)["content"].to_pylist())
    assert shown[0] == [b"first"]
    assert shown[-1] == [b"first", b"a", b"\0\xff", b"alone", b""]
    assert Retention(tmp_path / "log").trim(Lsn(300)) == [1, 2]
    assert history.read(limit_bytes=1000)["content"].to_pylist() == [b"alone", b""]
    left = {path.name.split("-")[1][:20] for path in (tmp_path / "log").glob("seg-*")}
    assert left == {f"{n:020d}" for n in (3, 4, 5)}


def test_a_segment_that_goes_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path)
    for one in SENT:
        fed(writer, [one])
        writer.seal()
    history = MessageHistory(tmp_path)
    follow = MessageHistory._follow

    def trimmed(self: MessageHistory) -> None:
        follow(self)
        Retention(tmp_path).trim(Lsn(300))

    monkeypatch.setattr(MessageHistory, "_follow", trimmed)
    assert history.read(limit_bytes=1000)["content"].to_pylist() == [b"alone", b""]


def test_a_lost_file_is_corruption(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    fed(writer, SENT)
    writer.seal()
    (lost,) = tmp_path.glob("*-messages-0.parquet")
    lost.unlink()
    with pytest.raises(CorruptLogError, match="messages-0"):
        contents(tmp_path)


def test_more_than_the_limit_is_refused_and_not_cut(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    fed(writer, SENT)
    writer.seal()
    size = sum(map(len, (b"first", b"a", b"\0\xff", b"alone")))
    assert len(contents(tmp_path, size)) == 5
    with pytest.raises(UsageError) as caught:
        contents(tmp_path, size - 1)
    assert caught.value.sqlstate == "53400"
    assert f"take {size} bytes" in caught.value.message
    assert caught.value.hint == (
        "Raise log.messages_view_bytes, or lower log.history_bytes."
    )
    # Each of both, done.
    assert len(contents(tmp_path, size)) == 5
    fed(writer, [inserts(400, 1)])
    writer.seal()
    fed(writer, [inserts(500, 1)])
    newest = writer.seal()
    assert newest is not None
    Retention(tmp_path, history_bytes=1 << 20).trim(newest.sealed_lsn)
    assert hint_remains(tmp_path, size - 1)
    Retention(tmp_path, history_bytes=0).trim(newest.sealed_lsn)
    assert contents(tmp_path, size - 1) == []


def hint_remains(directory: Path, limit: int) -> bool:
    with pytest.raises(UsageError):
        contents(directory, limit)
    return True


def test_a_segment_of_format_version_1_is_read_and_continued(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    fed(writer, [inserts(100, 2)])
    writer.seal()
    path = tmp_path / "seg-00000000000000000001.json"
    members = json.loads(path.read_bytes())
    assert members.pop("messages_files") == []
    members["format_version"] = 1
    del members["crc32"]
    body = json.dumps(members, indent=1).removesuffix("\n}").encode()
    path.write_bytes(body + b',\n "crc32": "%08x"\n}\n' % zlib.crc32(body))
    writer = open_writer(tmp_path)
    fed(writer, [inserts(100, 2), *SENT[1:]])
    writer.seal()
    assert content(tmp_path) == [inserts(100, 2), *SENT[1:]]
    assert manifest_numbers(tmp_path) == [1, 2]
    assert [len(m.messages_files) for m in LogReader(tmp_path).after(0)] == [0, 1]
