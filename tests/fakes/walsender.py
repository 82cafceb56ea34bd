"""A publisher on a socket that sends what a test tells it, malformed or not.

Speaks as much of PostgreSQL's protocol as a receiver asks for: startup, IDENTIFY_SYSTEM, the
few queries of a subscriber, START_REPLICATION into CopyBoth. It keeps its slot as a server
does: what was reported as flushed is confirmed, and who starts streaming is sent the
transactions that end above where it starts and above that.

A *script* is a connection's stream: whole transactions, each the payloads of its CopyData
messages as bytes. The last script serves all later connections too.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from wal2lake.model import Lsn
from wal2lake.wire.copyboth import Keepalive, StandbyStatus, read_from_client
from wal2lake.wire.copyboth import write_payload as write_from_server
from wal2lake.wire.frontback import (
    AuthenticationRequest,
    BackendMessage,
    CommandComplete,
    CopyData,
    CopyDone,
    CopyResponse,
    DataRow,
    ErrorResponse,
    FieldDescription,
    FrontendReader,
    ParameterStatus,
    Query,
    ReadyForQuery,
    RowDescription,
    StartupMessage,
    Terminate,
    TransactionStatus,
    write_backend,
)
from wal2lake.wire.frontback.backend import AuthenticationKind, CopyMode

SYSTEM = "7000000000000000001"


@dataclass(frozen=True)
class Scripted:
    """A transaction, or something in its place, and where it ends."""

    end_lsn: int
    payloads: tuple[bytes, ...]


class FakeWalsender:
    """A context manager; ``conninfo`` reaches it."""

    def __init__(self, scripts: Sequence[Sequence[Scripted]]) -> None:
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._guard = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.confirmed = Lsn(0)
        """The highest flush position that was reported; a test may move the slot."""
        self.timeline, self.history = 1, ""
        self.started = ""
        self.in_recovery = False
        self.on_identify: Callable[[], None] = lambda: None
        """Called once IDENTIFY_SYSTEM has been answered."""
        self.end: Lsn | None = None
        """Where its WAL ends; None: with the last transaction of the scripts."""
        self.refusal: ErrorResponse | None = None
        """The answer to START_REPLICATION, instead of a stream."""
        self.failure: ErrorResponse | None = None
        """What the stream ends with."""
        self.on_start: Callable[[], None] = lambda: None
        """Called at START_REPLICATION, before it is answered."""
        self.heard = 0
        """How many status updates have come."""
        self.streamed = 0
        """How many connections have been sent their script."""

    @property
    def conninfo(self) -> str:
        port = self._listener.getsockname()[1]
        return (
            f"host=127.0.0.1 port={port} user=u dbname=d sslmode=disable"
            " gssencmode=disable"
        )

    def __enter__(self) -> FakeWalsender:
        self._spawn(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, target: object, *arguments: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._guard:
                self._sockets.append(client)
            self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        reader = FrontendReader()
        with contextlib.suppress(OSError), client:
            while not isinstance(reader.next_packet(), StartupMessage):
                reader.feed(_received(client))
            _send(
                client,
                AuthenticationRequest(AuthenticationKind.OK),
                ParameterStatus("server_version", "18.0"),
                ParameterStatus("client_encoding", "UTF8"),
                ReadyForQuery(TransactionStatus.IDLE),
            )
            while True:
                while (message := reader.next_message()) is None:
                    reader.feed(_received(client))
                if isinstance(message, Terminate | CopyDone):
                    return
                if isinstance(message, CopyData):
                    self._heard(message.data)
                if isinstance(message, Query):
                    self._answer(client, message.sql.decode())

    def _heard(self, data: bytes) -> None:
        status = read_from_client(data)
        if isinstance(status, StandbyStatus):
            with self._guard:
                self.confirmed = max(self.confirmed, status.flush_lsn)
                self.heard += 1

    def _answer(self, client: socket.socket, sql: str) -> None:
        streaming = re.match(r"START_REPLICATION SLOT \S+ LOGICAL (\S+)", sql)
        if streaming:
            self.on_start()
            if self.refusal is not None:
                _send(client, self.refusal, ReadyForQuery(TransactionStatus.IDLE))
                return
            _send(client, CopyResponse(CopyMode.BOTH, 0))
            self._stream(client, Lsn.parse(streaming[1]))
            return
        last = max(s.end_lsn for script in self._scripts for s in script)
        end = str(Lsn(last) if self.end is None else self.end)
        rows: list[tuple[str | None, ...]] = [("",)]
        if sql == "IDENTIFY_SYSTEM":
            rows = [(SYSTEM, str(self.timeline), end, "d")]
            self.on_identify()
        elif sql.startswith("TIMELINE_HISTORY"):
            rows = [("x.history", self.history)]
        elif "pg_replication_slots" in sql:
            columns = sql.partition("FROM")[0].count(",") + 1
            named: dict[int, str] = {}
            if "plugin" in sql:
                named = {0: "pgoutput", 1: "d", 4: str(self.confirmed)}
            rows = [tuple(named.get(i) for i in range(columns))]
        elif "pg_postmaster_start_time" in sql:
            rows = [(self.started,)]
        elif sql.endswith("pg_is_in_recovery()"):
            rows = [("t" if self.in_recovery else "f",)]
        elif "pg_walfile_name" in sql:
            rows = [(f"{self.timeline:08X}{0:016X}",)]
        elif "flush_lsn" in sql:
            rows = [(end,)]
        _send(
            client,
            RowDescription(
                tuple(_field(f"c{i}") for i in range(len(rows[0]))),
                (0,) * len(rows[0]),
            ),
            *(
                DataRow(tuple(None if v is None else v.encode() for v in row))
                for row in rows
            ),
            CommandComplete(f"SELECT {len(rows)}"),
            ReadyForQuery(TransactionStatus.IDLE),
        )

    def _stream(self, client: socket.socket, start: Lsn) -> None:
        with self._guard:
            script = self._scripts[min(self.streamed, len(self._scripts) - 1)]
            self.streamed += 1
            start = max(start, self.confirmed)
        for one in script:
            if one.end_lsn > start:
                _send(client, *(CopyData(payload) for payload in one.payloads))
        alive = Keepalive(Lsn(0), 1, reply_requested=True)
        _send(client, CopyData(write_from_server(alive)))
        if self.failure is not None:
            _send(client, self.failure, ReadyForQuery(TransactionStatus.IDLE))


def _field(name: str) -> FieldDescription:
    return FieldDescription(name, 25)


def _received(client: socket.socket) -> bytes:
    data = client.recv(1 << 16)
    if not data:
        raise ConnectionResetError
    return data


def _send(client: socket.socket, *messages: BackendMessage) -> None:
    client.sendall(b"".join(write_backend(message) for message in messages))
