"""wire.replication.conversation: what a walsender answers, when it asks, and when it gives up."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import streams as ws

from wal2lake.errors import ProtocolViolation
from wal2lake.model import INVALID_LSN, Lsn, Xid
from wal2lake.wire.copyboth import (
    FromClient,
    FromServer,
    HotStandbyFeedback,
    Keepalive,
    PrimaryStatus,
    PrimaryStatusRequest,
    StandbyStatus,
    read_from_server,
    write_payload,
)
from wal2lake.wire.frontback import (
    BackendReader,
    CommandComplete,
    CopyData,
    CopyDone,
    Frame,
)
from wal2lake.wire.replication import (
    FAREWELL,
    ClientPositions,
    Conversation,
    ConversationEvent,
)

NOW = 77
"""The time that is sent."""


def _conversation(start: int = 100, timeout: float = 60.0) -> Conversation:
    return Conversation(Lsn(start), timeout_seconds=timeout, now=1000.0)


def _frame(payload: FromClient) -> Frame:
    return Frame(b"d", write_payload(payload))


def _status(flush: int, *, write: int = 0, ask: bool = False) -> Frame:
    return _frame(StandbyStatus(Lsn(write or flush), Lsn(flush), Lsn(0), 5, ask))


def _messages(data: bytes) -> list[object]:
    """What a client reads, CopyData taken apart."""
    reader = BackendReader()
    reader.feed(data)
    found: list[object] = []
    while (message := reader.next_message()) is not None:
        found.append(
            read_from_server(message.data) if isinstance(message, CopyData) else message
        )
    return found


def _said(data: bytes) -> FromServer:
    (message,) = _messages(data)
    assert isinstance(message, Keepalive | PrimaryStatus)
    return message


def test_positions_are_what_the_client_says_and_the_slot_never_goes_back() -> None:
    talk = _conversation()
    talk.sent_up_to(Lsn(200))
    talk.sent_up_to(Lsn(150))
    assert talk.sent == 200
    status = StandbyStatus(Lsn(190), Lsn(180), Lsn(170), 5, False)
    assert talk.receive(_frame(status), 1001.0, NOW) == (
        ConversationEvent.POSITIONS,
        b"",
    )
    assert talk.positions == ClientPositions(Lsn(190), Lsn(180), Lsn(170), 5)
    assert talk.confirmed == 180
    talk.receive(_status(0, write=160), 1002.0, NOW)
    assert talk.positions == ClientPositions(Lsn(160), Lsn(0), Lsn(0), 5)
    assert talk.confirmed == 180
    # Nobody has what was not sent.
    talk.receive(_status(999), 1003.0, NOW)
    assert (talk.positions.flush, talk.confirmed) == (999, 200)


def test_a_status_that_asks_is_answered_by_how_far_we_are() -> None:
    talk = _conversation()
    event, answer = talk.receive(_status(90, ask=True), 1001.0, NOW)
    assert event is ConversationEvent.POSITIONS
    assert _said(answer) == Keepalive(Lsn(100), NOW, False)


def test_feedback_of_a_hot_standby_is_ignored() -> None:
    feedback = HotStandbyFeedback(5, Xid(7), 0, Xid(8), 0)
    talk = _conversation()
    assert talk.receive(_frame(feedback), 1001.0, NOW) == (
        ConversationEvent.NOTHING,
        b"",
    )
    assert talk.positions == ClientPositions()


def test_a_request_for_the_primarys_status_is_answered() -> None:
    talk = _conversation()
    event, answer = talk.receive(_frame(PrimaryStatusRequest(5)), 1001.0, NOW)
    assert (event, answer) == (ConversationEvent.STATUS_REQUESTED, b"")
    status = talk.primary_status(NOW, oldest_xid=1 << 32 | 5, next_xid=1 << 32 | 9)
    assert _said(status) == PrimaryStatus(Lsn(100), 1 << 32 | 5, 1 << 32 | 9, NOW)


def test_copydone_ends_the_stream_with_both_tags() -> None:
    event, answer = _conversation().receive(Frame(b"c", b""), 1001.0, NOW)
    assert event is ConversationEvent.DONE
    assert _messages(answer) == [
        CopyDone(),
        CommandComplete("COPY 0"),
        CommandComplete("START_REPLICATION"),
    ]
    assert _messages(FAREWELL) == [CommandComplete("COPY 0")]


def test_terminate_is_not_answered() -> None:
    talk = _conversation()
    assert talk.receive(Frame(b"X", b""), 1001.0, NOW) == (
        ConversationEvent.TERMINATED,
        b"",
    )


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame(b"Q", b"select 1\0"), 'invalid standby message type "Q"'),
        (Frame(b"f", b"\0"), 'invalid standby message type "f"'),
        (Frame(b"\xff", b""), 'invalid standby message type "\\xff"'),
        (Frame(b"d", b"w"), 'unexpected message type "w"'),
        (Frame(b"d", b""), "insufficient data left in message"),
        (Frame(b"d", b"r\0"), "insufficient data left in message"),
        (Frame(b"d", b"p" + bytes(9)), "invalid message format"),
    ],
)
def test_anything_else_breaks_the_protocol(frame: Frame, text: str) -> None:
    talk = _conversation()
    with pytest.raises(ProtocolViolation) as raised:
        talk.receive(frame, 1050.0, NOW)
    assert (raised.value.message, raised.value.sqlstate) == (text, "08P01")
    assert talk.has_timed_out(1060.0)


def test_a_silent_client_is_asked_once_and_then_given_up() -> None:
    talk = _conversation()
    assert talk.next_tick == 1030.0
    assert talk.tick(1029.9, NOW) == b""
    assert _said(talk.tick(1030.0, NOW)) == Keepalive(Lsn(100), NOW, True)
    assert talk.next_tick == 1060.0
    assert talk.tick(1045.0, NOW) == talk.ask(NOW) == talk.idle(NOW) == b""
    assert not talk.has_timed_out(1059.9)
    assert talk.has_timed_out(1060.0)
    # Whatever it says, it is there.
    talk.receive(_frame(HotStandbyFeedback(5, Xid(0), 0, Xid(0), 0)), 1059.9, NOW)
    assert not talk.has_timed_out(1060.0)
    assert talk.next_tick == 1089.9
    assert talk.ask(NOW) != b""


def test_without_a_timeout_nobody_is_asked_or_given_up() -> None:
    talk = _conversation(timeout=0)
    assert talk.next_tick is None
    assert talk.tick(1e9, NOW) == b""
    assert not talk.has_timed_out(1e9)
    talk.timeout_seconds = 1.0
    assert talk.has_timed_out(1001.0)


def test_an_idle_stream_says_once_how_far_it_is() -> None:
    talk = _conversation()
    assert _said(talk.idle(NOW)) == Keepalive(Lsn(100), NOW, False)
    assert talk.idle(NOW) == b""
    talk.sent_up_to(Lsn(150))
    assert _said(talk.idle(NOW)) == Keepalive(Lsn(150), NOW, False)
    talk.sent_up_to(Lsn(160))
    talk.receive(_status(0, write=160), 1001.0, NOW)
    assert talk.idle(NOW) == b""


def test_replicated_is_what_is_flushed_or_written_by_who_never_flushes() -> None:
    talk = _conversation()
    assert not talk.is_replicated
    talk.receive(_status(0, write=100), 1001.0, NOW)
    assert talk.is_replicated
    talk.receive(_status(90, write=100), 1001.0, NOW)
    assert not talk.is_replicated
    talk.receive(_status(100), 1001.0, NOW)
    assert talk.is_replicated


@given(
    st.lists(
        st.builds(StandbyStatus, ws.lsns, ws.lsns, ws.lsns, ws.times, st.booleans())
        | ws.lsns
    )
)
def test_what_is_confirmed_only_grows_and_was_sent(
    steps: list[StandbyStatus | Lsn],
) -> None:
    talk, before = _conversation(0), INVALID_LSN
    for step in steps:
        if isinstance(step, StandbyStatus):
            talk.receive(_frame(step), 1000.0, NOW)
        else:
            talk.sent_up_to(step)
        assert before <= talk.confirmed <= talk.sent
        before = talk.confirmed


@given(st.binary(max_size=1), st.binary(max_size=40))
def test_no_bytes_bring_anything_but_an_event_or_a_violation(
    kind: bytes, body: bytes
) -> None:
    talk = _conversation()
    sent = talk.sent
    with contextlib.suppress(ProtocolViolation):
        event, _ = talk.receive(Frame(kind or b"d", body), 1000.0, NOW)
        assert isinstance(event, ConversationEvent)
    assert talk.confirmed <= talk.sent == sent, "nothing is confirmed that was not sent"
