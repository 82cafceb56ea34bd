"""The frontend/backend protocol: what is written is read again, and nothing else is."""

from __future__ import annotations

import contextlib
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.errors import ProtocolViolation
from wal2lake.wire.frontback import (
    AuthenticationData,
    AuthenticationMD5Password,
    AuthenticationRequest,
    AuthenticationSASL,
    BackendKeyData,
    BackendReader,
    Bind,
    CancelRequest,
    Close,
    CommandComplete,
    CopyData,
    CopyDone,
    CopyFail,
    CopyResponse,
    DataRow,
    Describe,
    DescribeTarget,
    Diagnostic,
    ErrorResponse,
    Execute,
    FieldDescription,
    Flush,
    Frame,
    FrontendMessage,
    FrontendReader,
    FunctionCall,
    FunctionCallResponse,
    GSSENCRequest,
    NegotiateProtocolVersion,
    NotificationResponse,
    ParameterDescription,
    ParameterStatus,
    Parse,
    Query,
    ReadyForQuery,
    RowDescription,
    Signal,
    SSLRequest,
    StartupMessage,
    StartupPacket,
    Sync,
    Terminate,
    TransactionStatus,
    read_backend,
    read_data_rows,
    read_frontend,
    read_startup,
    write_backend,
    write_data_rows,
    write_frontend,
    write_startup,
)
from wal2lake.wire.frontback.backend import FIELD_LETTERS, AuthenticationKind, CopyMode

cstrings = st.binary(max_size=40).map(lambda b: b.replace(b"\0", b"x"))
texts = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40
)
values = st.none() | st.binary(max_size=40)
oids = st.integers(0, 2**32 - 1)
int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
T = TypeVar("T")


def few(of: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(of, max_size=5).map(tuple)


frontend_messages = st.one_of(
    st.builds(Query, cstrings),
    st.builds(Parse, cstrings, cstrings, few(oids)),
    st.builds(Bind, cstrings, cstrings, few(int16s), few(values), few(int16s)),
    st.builds(Describe, st.sampled_from(DescribeTarget), cstrings),
    st.builds(Execute, cstrings, int32s),
    st.builds(Close, st.sampled_from(DescribeTarget), cstrings),
    st.sampled_from([Flush(), Sync(), Terminate(), CopyDone()]),
    st.builds(FunctionCall, oids, few(int16s), few(values), int16s),
    st.builds(CopyData, st.binary(max_size=40)),
    st.builds(CopyFail, cstrings),
    st.builds(AuthenticationData, st.binary(max_size=40)),
)

diagnostics = st.fixed_dictionaries(dict.fromkeys(FIELD_LETTERS, texts)).map(
    # A severity that is not given in the server's language goes as the other one.
    lambda d: Diagnostic(**{**d, "severity_nonlocalized": d["severity"]})
)
described = few(
    st.tuples(
        st.builds(FieldDescription, texts, oids, int16s, int32s, oids, int16s), int16s
    )
).map(
    lambda pairs: RowDescription(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
)

backend_messages = st.one_of(
    st.builds(
        AuthenticationRequest,
        st.sampled_from(AuthenticationKind),
        st.binary(max_size=9),
    ),
    st.builds(AuthenticationMD5Password, st.binary(min_size=4, max_size=4)),
    st.builds(AuthenticationSASL, few(st.text("ABC-256", min_size=1))),
    st.builds(ParameterStatus, texts, texts),
    st.builds(BackendKeyData, int32s, st.binary(max_size=32)),
    st.builds(ReadyForQuery, st.sampled_from(TransactionStatus)),
    st.builds(
        NegotiateProtocolVersion,
        st.integers(0, 9),
        st.integers(0, 65535),
        few(cstrings),
    ),
    st.builds(NotificationResponse, int32s, texts, texts),
    st.builds(FunctionCallResponse, values),
    described,
    st.builds(DataRow, few(values)),
    st.builds(CommandComplete, texts),
    st.builds(ParameterDescription, few(oids)),
    st.builds(
        CopyResponse,
        st.sampled_from(CopyMode),
        st.integers(0, 255),
        few(int16s),
    ),
    st.builds(CopyData, st.binary(max_size=40)),
    st.just(CopyDone()),
    st.sampled_from(Signal),
    st.builds(ErrorResponse, diagnostics, st.booleans()),
)

startup_packets = st.one_of(
    st.sampled_from([SSLRequest(), GSSENCRequest()]),
    st.builds(CancelRequest, int32s, st.binary(min_size=1, max_size=256)),
    st.builds(
        StartupMessage,
        st.just(3),
        st.integers(0, 65535),
        st.dictionaries(cstrings.filter(bool), cstrings, max_size=5),
    ),
)


@settings(deadline=None)
@given(frontend_messages)
def test_every_frontend_message_is_read_as_it_was_written(message):
    frame = write_frontend(message)
    assert read_frontend(Frame(frame[:1], frame[5:])) == message


@settings(deadline=None)
@given(backend_messages)
def test_every_backend_message_is_read_as_it_was_written(message):
    frame = write_backend(message)
    assert read_backend(Frame(frame[:1], frame[5:])) == message


@settings(deadline=None)
@given(startup_packets)
def test_every_startup_packet_is_read_as_it_was_written(packet):
    assert read_startup(write_startup(packet)[4:]) == packet


@settings(deadline=None)
@given(st.lists(frontend_messages, max_size=6), st.data())
def test_a_reader_finds_the_messages_however_the_bytes_are_cut(messages, data):
    start = StartupMessage(3, 0, {b"user": b"u"})
    stream = write_startup(SSLRequest()) + write_startup(start)
    stream += b"".join(map(write_frontend, messages))
    reader = FrontendReader()
    packets: list[StartupPacket] = []
    found: list[FrontendMessage] = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        reader.feed(stream[:cut])
        stream = stream[cut:]
        while len(packets) < 2 and (packet := reader.next_packet()) is not None:
            packets.append(packet)
        while len(packets) == 2 and (message := reader.next_message()) is not None:
            found.append(message)
    assert packets == [SSLRequest(), start]
    assert found == messages
    assert reader.buffered == 0


@settings(deadline=None)
@given(st.lists(backend_messages, max_size=6), st.data())
def test_a_backend_reader_finds_the_messages_however_the_bytes_are_cut(messages, data):
    stream = b"".join(map(write_backend, messages))
    reader = BackendReader()
    found = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        reader.feed(stream[:cut])
        stream = stream[cut:]
        while (message := reader.next_message()) is not None:
            found.append(message)
    assert found == messages


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_at_the_start_are_a_packet_or_a_violation(data):
    reader = FrontendReader()
    reader.feed(data)
    with contextlib.suppress(ProtocolViolation):
        while not isinstance(packet := reader.next_packet(), StartupMessage):
            if packet is None:
                break
        else:
            while reader.next_frame() is not None:
                pass
    assert reader.buffered <= len(data)


frame_like = st.builds(
    lambda kind, body, lie: kind + (len(body) + 4 + lie).to_bytes(4, "big") + body,
    st.sampled_from([bytes([b]) for b in b"QPBDECHSFdcfpXRSKZvAVTtGHWNEI123sn"]),
    st.binary(max_size=60),
    st.sampled_from([0, 0, 0, 1, 5]),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(frame_like | st.binary(max_size=9), max_size=4).map(b"".join))
def test_arbitrary_frames_are_messages_or_violations_of_both_readers(data):
    frontend, backend = FrontendReader(), BackendReader()
    frontend.feed(write_startup(StartupMessage(3, 0, {})) + data)
    frontend.next_packet()
    backend.feed(data)
    for reader in (frontend, backend):
        found = 0
        with contextlib.suppress(ProtocolViolation):
            while reader.next_message() is not None:
                found += 1
        assert found <= len(data) // 5, "a message has a kind and a length"


@settings(deadline=None)
@given(st.sampled_from(list(b"QPBDECHSFcfX")), st.binary(max_size=60))
def test_a_body_that_breaks_the_protocol_leaves_the_stream_readable(kind, body):
    reader = FrontendReader()
    reader.feed(write_startup(StartupMessage(3, 0, {})))
    reader.next_packet()
    reader.feed(Frame(bytes([kind]), body).encode() + write_frontend(Sync()))
    with contextlib.suppress(ProtocolViolation):
        reader.next_message()
    assert reader.next_message() == Sync()


def test_the_bytes_are_those_of_the_manual():
    assert write_startup(SSLRequest()) == bytes.fromhex("00000008 04d2162f")
    assert write_startup(GSSENCRequest()) == bytes.fromhex("00000008 04d21630")
    assert write_startup(CancelRequest(7, b"abcd")) == (
        bytes.fromhex("00000010 04d2162e 00000007") + b"abcd"
    )
    assert write_startup(StartupMessage(3, 0, {b"user": b"u"})) == (
        b"\0\0\0\x10\0\3\0\0user\0u\0\0"
    )
    assert write_frontend(Query(b"select 1")) == b"Q\0\0\0\x0dselect 1\0"
    assert write_frontend(Bind(b"", b"s", (1,), (None, b"x"), (0,))) == (
        b"B\0\0\0\x1a\0s\0\0\1\0\1\0\2\xff\xff\xff\xff\0\0\0\1x\0\1\0\0"
    )
    assert write_backend(ReadyForQuery(TransactionStatus.IDLE)) == b"Z\0\0\0\5I"
    assert write_backend(AuthenticationSASL(("SCRAM-SHA-256",))) == (
        b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0"
    )
    # libpq compares the whole version word, not the minor number alone.
    assert write_backend(NegotiateProtocolVersion(3, 0, (b"_pq_.x",))) == (
        b"v\0\0\0\x13\0\3\0\0\0\0\0\1_pq_.x\0"
    )
    field = FieldDescription("a", 23, 4)
    assert write_backend(RowDescription((field,), (1,))) == (
        b"T\0\0\0\x1a\0\1a\0" + b"\0" * 6 + b"\0\0\0\x17\0\4\xff\xff\xff\xff\0\1"
    )
    assert write_backend(ErrorResponse(Diagnostic("ERROR", "42601", "m"))) == (
        b"E\0\0\0\x1dSERROR\0VERROR\0C42601\0Mm\0\0"
    )


def test_unknown_fields_of_an_error_are_ignored():
    body = b"SERROR\0C42601\0Mm\0?new\0\0"
    error = read_backend(Frame(b"E", body))
    assert error == ErrorResponse(Diagnostic("ERROR", "42601", "m"))


def test_a_nul_in_an_error_message_does_not_cut_the_message():
    frame = write_backend(ErrorResponse(Diagnostic("ERROR", "22021", "a\0b")))
    error = read_backend(Frame(b"E", frame[5:]))
    assert isinstance(error, ErrorResponse)
    assert error.fields.message == "ab"


def test_text_that_the_client_encoding_lacks_gets_question_marks():
    frame = write_backend(CommandComplete("π"), encoding="latin-1")
    assert frame == b"C\0\0\0\x06?\0"


@pytest.mark.parametrize("length", [0, 3, 7, 10_005, 2**31, 0x47455420])
def test_an_impossible_startup_length_is_refused_before_its_bytes_come(length):
    reader = FrontendReader()
    reader.feed(length.to_bytes(4, "big"))
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match="invalid length of startup packet"):
            reader.next_packet()


def test_the_largest_startup_packet_is_accepted():
    packet = StartupMessage(3, 0, {b"user": b"u" * (10_000 - 4 - 5 - 2)})
    data = write_startup(packet)
    assert len(data) == 10_004
    reader = FrontendReader()
    reader.feed(data)
    assert reader.next_packet() == packet


@pytest.mark.parametrize(
    "body", [b"\0\3\0\0user\0u\0", b"\0\3\0\0user\0", b"\0\3\0\0user\0u\0\0x"]
)
def test_a_startup_packet_must_end_where_it_says(body):
    with pytest.raises(ProtocolViolation, match="expected terminator as last byte"):
        read_startup(body)


def started(max_message_bytes=1 << 20):
    reader = FrontendReader(max_message_bytes=max_message_bytes)
    reader.feed(write_startup(StartupMessage(3, 0, {})))
    reader.next_packet()
    return reader


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"Q\0\0\0\3", "invalid message length"),
        (b"Q\xff\xff\xff\xff", "invalid message length"),
        (b"Q\x00\x10\x00\x01", "invalid message length"),
        (b"S\x00\x00\x27\x11", "invalid message length"),
        (b"!", "invalid frontend message type 33"),
    ],
)
def test_a_bad_header_is_refused_at_once_and_for_ever(header, message):
    reader = started()
    reader.feed(header)
    for _ in range(2):
        with pytest.raises(ProtocolViolation, match=message):
            reader.next_frame()
        reader.feed(write_frontend(Sync()))


def test_a_reader_that_gave_everything_out_holds_no_memory():
    reader = started(1 << 24)
    reader.feed(write_frontend(Query(b"x" * (1 << 20))))
    assert reader.next_frame() is not None
    assert reader.buffered == 0
    assert len(reader._frames._buffer) == 0


columns_strategy = st.integers(1, 6).flatmap(
    lambda rows: st.lists(
        st.lists(st.none() | st.binary(max_size=700), min_size=rows, max_size=rows),
        min_size=1,
        max_size=6,
    )
)


@settings(deadline=None)
@given(columns_strategy)
def test_rows_in_bulk_are_the_rows_one_by_one(columns):
    rows = list(zip(*columns, strict=True))
    one_by_one = b"".join(write_backend(DataRow(row)) for row in rows)
    assert write_data_rows(columns) == one_by_one
    bodies, at = [], 0
    while at < len(one_by_one):
        length = int.from_bytes(one_by_one[at + 1 : at + 5], "big")
        bodies.append(one_by_one[at + 5 : at + 1 + length])
        at += length + 1
    assert read_data_rows(bodies) == rows


def test_rows_without_columns_are_counted():
    assert write_data_rows([], 2) == b"D\0\0\0\6\0\0" * 2
    assert write_data_rows([]) == b""
    assert write_data_rows([[], []]) == b""


def test_columns_of_different_length_are_our_bug():
    with pytest.raises(ValueError, match="differ in length"):
        write_data_rows([[b"a"], [b"a", b"b"]])
