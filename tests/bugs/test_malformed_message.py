"""A message that the decoder refuses once stayed in the journal for ever: every later start of
the receiver tripped over it, though the publisher would have sent it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.publisher import (
    Transaction,
    content,
    gulp,
    inserts,
    payloads,
)

from wal2lake.changelog import ChangeLog
from wal2lake.changelog.files import journal_name, journal_numbers
from wal2lake.errors import InternalError, ProtocolViolation
from wal2lake.model import Lsn, Relation
from wal2lake.settings import LogSettings
from wal2lake.wire.columnar.timeline import CLASS_OF_KIND
from wal2lake.wire.copyboth import XLogData, write_xlogdata

SMALL = LogSettings(journal_file_bytes=600, segment_bytes=3000)
SENT = [inserts(100, 3), inserts(200, 9), inserts(300, 2)]


pytestmark = pytest.mark.usefixtures("no_fsync")


def stream(transactions: list[Transaction] = SENT) -> list[bytes]:
    known: dict[int, Relation] = {}
    return [m for t in transactions for m in payloads(t, known)]


# Messages 0 to 5 are the first transaction (Begin, Relation, three rows, Commit), 6 the Begin
# of the second, 7 to 15 its rows, 16 its Commit, 17 to 20 the third.
BEGIN, ROW, COMMIT = 6, 9, 16


def spoiled(at: int) -> list[bytes]:
    """The stream with one message that breaks the protocol."""
    messages = stream()
    if messages[at][25:26] == b"C":
        # Another commit LSN than its Begin's.
        wrong = bytearray(messages[at])
        wrong[34] ^= 1
        messages[at] = bytes(wrong)
    else:
        messages[at] += b"?"
    return messages


def received(directory: Path, messages: list[bytes], per_gulp: int) -> None:
    """A receiver takes it all in and ends before anything is decoded."""
    log = ChangeLog.open(directory, SMALL)
    log.connected(Lsn(0))
    for i in range(0, len(messages), per_gulp):
        log.append(*gulp(messages[i : i + per_gulp]))
    log.sync()
    log.close()


def journal(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.glob("journal-*")}


@pytest.mark.parametrize("per_gulp", [1, 4, 100])
@pytest.mark.parametrize("bad", [BEGIN, BEGIN + 1, ROW, COMMIT - 1, COMMIT])
def test_what_cannot_be_decoded_is_dropped_if_the_publisher_sends_it_again(
    tmp_path: Path, bad: int, per_gulp: int
) -> None:
    received(tmp_path, spoiled(bad), per_gulp)
    log = ChangeLog.open(tmp_path, SMALL)
    # The whole transactions before it are kept, also those of the same gulp.
    assert log.undecodable is not None
    assert (log.logged, log.sealed) == (108, 108)
    assert content(tmp_path) == SENT[:1]
    log.ask_again(Lsn(108))
    assert log.undecodable is None
    assert journal_numbers(tmp_path) == []
    log.connected(Lsn(108))
    log.append(*gulp(stream(SENT[1:])))
    assert log.sync() == 308
    while log.absorb(0):
        pass
    log.seal()
    log.close()
    assert content(tmp_path) == SENT


@pytest.mark.parametrize(
    ("confirmed", "again"), [(150, True), (200, True), (201, False)]
)
def test_it_is_sent_again_iff_its_transaction_commits_at_or_above_the_confirmed_position(
    tmp_path: Path, confirmed: int, again: bool
) -> None:
    received(tmp_path, spoiled(ROW), 4)
    log = ChangeLog.open(tmp_path, SMALL)
    if again:
        log.ask_again(Lsn(confirmed))
    else:
        with pytest.raises(ProtocolViolation):
            log.ask_again(Lsn(confirmed))
    log.close()
    assert bool(journal_numbers(tmp_path)) is not again


def test_what_was_confirmed_is_kept_with_an_error_that_names_the_file(
    tmp_path: Path,
) -> None:
    received(tmp_path, spoiled(ROW), 4)
    before = journal(tmp_path)
    for _ in range(3):
        log = ChangeLog.open(tmp_path, SMALL)
        with pytest.raises(ProtocolViolation) as caught:
            log.ask_again(Lsn(308))
        log.close()
        assert journal(tmp_path) == before
    error = caught.value
    assert error.sqlstate == "08P01"
    named = next(p for p in tmp_path.glob("journal-*") if p.name in str(error.detail))
    assert b"W2LR" in named.read_bytes()
    assert "0/C8" in str(error.detail), "where its transaction commits"
    assert "0/134" in str(error.detail), "what the slot has confirmed"
    assert "(recopy = true)" in str(error.hint)
    assert "XLogData at 0/C7" in str(error.context)


def test_a_decoder_that_understands_it_after_all_loses_nothing(tmp_path: Path) -> None:
    """What an upgrade of wal2lake does after a bug of ours."""
    messages = spoiled(ROW)
    received(tmp_path, messages, 4)
    with pytest.MonkeyPatch.context() as patch:
        log = ChangeLog.open(tmp_path, SMALL)
        with pytest.raises(ProtocolViolation):
            log.ask_again(Lsn(308))
        log.close()
        _mend(patch, messages[ROW])
        log = ChangeLog.open(tmp_path, SMALL)
        assert log.undecodable is None
        assert log.logged == 308
        log.close()
    assert content(tmp_path) == SENT


def _mend(patch: pytest.MonkeyPatch, bad: bytes) -> None:
    from wal2lake.wire.columnar import StreamDecoder

    feed = StreamDecoder.feed

    def mended(decoder, data, lengths):
        at = data.find(bad)
        if at >= 0:
            ends = lengths.cumsum()
            data = data.replace(bad, bad[:-1])
            lengths = lengths.copy()
            lengths[list(ends).index(at + len(bad))] -= 1
        return feed(decoder, data, lengths)

    patch.setattr(StreamDecoder, "feed", mended)


def test_a_failure_of_ours_in_the_decoder_is_treated_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wal2lake.wire.columnar import StreamDecoder

    feed = StreamDecoder.feed
    wanted = stream()[ROW]

    def failing(decoder, data, lengths):
        if wanted in data:
            raise IndexError("a bug")
        return feed(decoder, data, lengths)

    monkeypatch.setattr(StreamDecoder, "feed", failing)
    received(tmp_path, stream(), 4)
    log = ChangeLog.open(tmp_path, SMALL)
    assert log.logged == 108
    with pytest.raises(InternalError, match="a bug"):
        log.ask_again(Lsn(308))
    log.close()


def test_nothing_is_streamed_before_it_is_settled(tmp_path: Path) -> None:
    received(tmp_path, spoiled(ROW), 4)
    log = ChangeLog.open(tmp_path, SMALL)
    with pytest.raises(InternalError):
        log.connected(log.logged)
    log.close()
    assert ChangeLog.open(tmp_path, SMALL).undecodable is not None


def test_a_malformed_message_of_the_open_transaction_is_no_different(
    tmp_path: Path,
) -> None:
    received(tmp_path, spoiled(ROW)[: ROW + 2], 4)
    log = ChangeLog.open(tmp_path, SMALL)
    assert log.logged == 108
    log.ask_again(Lsn(180))
    log.connected(Lsn(108))
    log.close()


@pytest.mark.parametrize("kind", [b"S", b"b", b"X", b"\0"])
def test_a_kind_that_was_not_asked_for_never_reaches_the_journal(
    tmp_path: Path, kind: bytes
) -> None:
    log = ChangeLog.open(tmp_path, SMALL)
    log.connected(Lsn(0))
    log.append(*gulp(stream()[:6]))
    log.sync()
    before = journal(tmp_path)
    foreign = write_xlogdata(XLogData(Lsn(150), Lsn(150), 0, kind + b"1234567"))
    with pytest.raises(ProtocolViolation, match="invalid logical replication") as why:
        log.append(*gulp([*stream()[6:10], foreign]))
    assert "XLogData at 0/96" in str(why.value.context)
    assert journal(tmp_path) == before
    log.close()


def test_the_journal_takes_the_kinds_that_the_decoder_takes(tmp_path: Path) -> None:
    from wal2lake.changelog.journal.gulp import KINDS

    assert sorted(KINDS) == [k for k in range(256) if CLASS_OF_KIND[k]]
    assert journal_name(1)
