"""The TCP listener: one thread per connection, and the list of who is connected.

In: a listening socket. Out: sessions over the Backends of a factory, from ``ready`` on. Lives
in the engine's process.

    STARTING   every client is told 57P03 "the database system is starting up"
    READY      clients are let in
    STOPPING   57P03 "the database system is shutting down"; sessions end or are ended

A connection costs a thread that sleeps in poll, and no buffer while it is idle. Above
``max_connections`` clients are told so (53300) by as many threads again, which also serve
cancel requests; beyond that, connections are closed unread. So threads, and what
each may hold (see ListenerSettings), are bounded, whatever comes in.

Source: src/backend/postmaster/postmaster.c (canAcceptConnections), src/backend/libpq/pqcomm.c.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from wal2lake.errors import (
    FeatureNotSupportedError,
    ProtocolViolation,
    UsageError,
    Wal2LakeError,
)
from wal2lake.frontend.backend import Backend, BackendFactory, Notice, SessionContext
from wal2lake.frontend.client import (
    Conversation,
    ReadTimeout,
    SessionEnd,
    Transport,
    TransportClosed,
)
from wal2lake.frontend.client.diagnostics import as_ours, error_fields
from wal2lake.frontend.door.connections import Connection, Connections, SessionInfo
from wal2lake.frontend.door.greeting import (
    Door,
    Greeting,
    OldProtocol,
    admit,
    negotiate,
    read_startup_message,
)
from wal2lake.frontend.session import Interrupt, Session
from wal2lake.frontend.session.interrupts import shutdown_error
from wal2lake.observe import get_logger
from wal2lake.wire.frontback import ErrorResponse

_SECRET_BYTES: Final = 4
"""Protocol 3.0's cancel key."""

_ACCEPT_PAUSE_S: Final = 0.1
"""After a failed accept (no descriptors left): PostgreSQL's pause, for the same reason."""


class ListenerState(Enum):
    """Who is let in."""

    STARTING = "the database system is starting up"
    """Nobody yet."""
    READY = ""
    """Everybody who may."""
    STOPPING = "the database system is shutting down"
    """Nobody any more."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Limits of the front door, named as PostgreSQL names them."""

    max_connections: int = 100
    """Connections served at a time."""
    authentication_timeout_s: float = 60.0
    """From accept to being let in."""
    max_message_bytes: int = 64 << 20
    """Largest message a client may send."""
    max_session_bytes: int = 256 << 20
    """Prepared statements and portals of one session together."""
    write_timeout_s: float = 300.0
    """A client that takes nothing of its results for so long is cut off."""
    tcp_keepalives_idle_s: int = 300
    """Silence before the first keepalive probe; 0: the system's default."""
    tcp_keepalives_interval_s: int = 30
    """Between probes; 0: the system's default."""
    tcp_keepalives_count: int = 4
    """Lost probes until a connection is dead; 0: the system's default."""


@dataclass(frozen=True, slots=True)
class ReplicationClient:
    """A client of ``replication=database``, authenticated, AuthenticationOk sent.

    Whoever takes it sends ParameterStatus, BackendKeyData and ReadyForQuery, and closes it.
    """

    conversation: Conversation
    greeting: Greeting
    pid: int
    secret: bytes


ReplicationHandler = Callable[[ReplicationClient], None]
"""Runs in the connection's thread; the connection is closed when it returns."""


class Listener:
    """Accepts connections on a socket and serves them."""

    def __init__(
        self,
        listening: socket.socket | Sequence[socket.socket],
        settings: ListenerSettings,
    ) -> None:
        """All sockets of a node belong in one listener: limits and pids are shared."""
        self._sockets: tuple[socket.socket, ...] = (
            (listening,) if isinstance(listening, socket.socket) else tuple(listening)
        )
        self._settings = settings
        self._log = get_logger()
        self._lock = threading.Lock()
        self._connections = Connections(self._log)
        self._pids = itertools.count(1)
        self._state = ListenerState.STARTING
        self._door: Door | None = None
        self._factory: BackendFactory | None = None
        self._replication: ReplicationHandler | None = None
        self._wake_read, self._wake_write = socket.socketpair()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are listened on; the first, if there are several."""
        name = self._sockets[0].getsockname()
        return str(name[0]), int(name[1])

    @property
    def state(self) -> ListenerState:
        """Who is let in at the moment."""
        return self._state

    def start(self) -> None:
        """Accept connections in a thread of its own; all are told "starting up"."""
        # The description behind an inherited descriptor is shared: it must not be shut
        # down, and it may be non-blocking for both, as only one accepts at a time.
        for listening in self._sockets:
            listening.setblocking(False)
        self._thread = self._spawn(self._accept_loop, "listener")
        self._thread.start()

    def ready(
        self,
        door: Door,
        factory: BackendFactory,
        *,
        replication: ReplicationHandler | None = None,
    ) -> None:
        """Let clients in from now on."""
        with self._lock:
            self._door = door
            self._factory = factory
            self._replication = replication
            if self._state is ListenerState.STARTING:
                self._state = ListenerState.READY

    def drain(self, timeout_s: float | None = None) -> bool:
        """Smart shutdown: let nobody in, wait for sessions to leave; False: some stay."""
        with self._lock:
            self._state = ListenerState.STOPPING
        return self._connections.wait_for_sessions(timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Fast shutdown: end every session with 57P01, then stop listening.

        After ``timeout_s`` clients that do not read are cut off, which may take as long
        again; threads that a Backend does not give back are left behind.
        """
        with self._lock:
            self._state = ListenerState.STOPPING
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._wake_write.send(b"x")
        if self._thread is not None:
            self._thread.join()
        for connection in self._connections.all():
            connection.terminate()
        if not self._connections.wait_for_all(timeout_s):
            for connection in self._connections.all():
                connection.transport.kill()
            if not self._connections.wait_for_all(timeout_s):
                self._log.warning("sessions did not end in time")
        for listening in self._sockets:
            listening.close()
        self._wake_read.close()
        self._wake_write.close()

    def sessions(self) -> list[SessionInfo]:
        """Who is connected, for pg_stat_activity."""
        return self._connections.infos()

    def cancel(self, pid: int) -> bool:
        """pg_cancel_backend; False: no such session."""
        session = self._connections.session(pid)
        if session is None:
            return False
        session.interrupts.request(Interrupt.CANCEL)
        return True

    def terminate(self, pid: int) -> bool:
        """pg_terminate_backend; False: no such session."""
        session = self._connections.session(pid)
        if session is None:
            return False
        session.interrupts.terminate()
        return True

    # -- accepting

    def _spawn(self, target: Callable[[], None], name: str) -> threading.Thread:
        # A new thread has no context of its own, and the log's fields live there.
        context = contextvars.copy_context()
        return threading.Thread(
            target=context.run, args=(target,), name=name, daemon=True
        )

    def _accept_loop(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        by_descriptor = {listening.fileno(): listening for listening in self._sockets}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        while not self._stopping.is_set():
            for descriptor, _ in poll.poll():
                if descriptor in by_descriptor and not self._stopping.is_set():
                    self._accept(by_descriptor[descriptor])

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, peer = listening.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            self._log.error(f"could not accept new connection: {error.strerror}")
            self._stopping.wait(_ACCEPT_PAUSE_S)
            return
        try:
            self._accepted(accepted, (str(peer[0]), int(peer[1])))
        except (OSError, RuntimeError) as error:
            # No thread could be started, or the client has gone already.
            self._log.error("could not start a session", error=error)
            accepted.close()

    def _accepted(self, accepted: socket.socket, peer: tuple[str, int]) -> None:
        limit = self._settings.max_connections
        threads, served = self._connections.counts()
        if threads >= 2 * limit + 2:
            accepted.close()
            return
        self._configure(accepted)
        transport = Transport(
            accepted, write_timeout_s=self._settings.write_timeout_s, peer=peer
        )
        connection = Connection(
            pid=next(self._pids),
            secret=secrets.token_bytes(_SECRET_BYTES),
            transport=transport,
            is_surplus=served >= limit,
            started_at=time.time(),
        )
        thread = self._spawn(
            lambda: self._serve(connection), f"session-{connection.pid}"
        )
        self._connections.add(connection)
        try:
            thread.start()
        except RuntimeError:
            self._connections.leave(connection)
            self._connections.thread_ended()
            raise

    def _configure(self, accepted: socket.socket) -> None:
        settings = self._settings
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, number in (
            ("TCP_KEEPIDLE", settings.tcp_keepalives_idle_s),
            ("TCP_KEEPINTVL", settings.tcp_keepalives_interval_s),
            ("TCP_KEEPCNT", settings.tcp_keepalives_count),
        ):
            # Not every system has all three.
            if number > 0 and hasattr(socket, option):
                accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), number)

    # -- one connection

    def _serve(self, connection: Connection) -> None:
        log = self._log.bind(session=connection.pid, client=connection.transport.host)
        conversation = Conversation(
            connection.transport, max_message_bytes=self._settings.max_message_bytes
        )
        try:
            self._welcome(connection, conversation, log)
        except (TransportClosed, ReadTimeout):
            pass
        except Exception as error:
            log.error("internal error", exc_info=error)
        finally:
            # First out of the list: whoever sees the connection closed may come again.
            self._connections.leave(connection)
            connection.transport.linger()
            self._connections.thread_ended()

    def _welcome(
        self, connection: Connection, conversation: Conversation, log: Any
    ) -> None:
        transport = connection.transport
        transport.deadline = time.monotonic() + self._settings.authentication_timeout_s
        try:
            startup = read_startup_message(conversation, self._connections.cancel)
        except ProtocolViolation as error:
            log.info(error.message)
            return
        if startup is None:
            return
        try:
            negotiate(conversation, startup)
            door, factory = self._check_open(connection)
            greeting = admit(conversation, startup, door)
            transport.deadline = None
            if greeting.replication:
                self._replicate(connection, conversation, greeting)
                return
            session = self._begin(connection, conversation, greeting, factory, log)
        except OldProtocol as old:
            # Protocol 2: the letter, then text up to a NUL.
            log.critical(old.error.message)
            conversation.send_raw(b"EFATAL:  " + str(old).encode("ascii") + b"\n\0")
            return
        except ReadTimeout:
            self._refuse(conversation, _too_slow(), log)
            return
        except TransportClosed:
            if self._state is ListenerState.STOPPING:
                self._refuse(conversation, shutdown_error(), log)
            return
        except SessionEnd as end:
            self._refuse(conversation, end.error, log)
            return
        except Exception as error:
            if not isinstance(error, Wal2LakeError):
                log.error("internal error", exc_info=error)
            self._refuse(conversation, as_ours(error), log)
            return
        session.run(connection.pid, connection.secret)

    def _check_open(self, connection: Connection) -> tuple[Door, BackendFactory]:
        with self._lock:
            state, door, factory = self._state, self._door, self._factory
        if state is not ListenerState.READY:
            raise UsageError(state.value, sqlstate="57P03")
        if connection.is_surplus:
            raise UsageError("sorry, too many clients already", sqlstate="53300")
        assert door is not None and factory is not None
        return door, factory

    def _replicate(
        self, connection: Connection, conversation: Conversation, greeting: Greeting
    ) -> None:
        if self._replication is None:
            raise FeatureNotSupportedError("replication connections are not supported")
        self._replication(
            ReplicationClient(conversation, greeting, connection.pid, connection.secret)
        )

    def _begin(
        self,
        connection: Connection,
        conversation: Conversation,
        greeting: Greeting,
        factory: BackendFactory,
        log: Any,
    ) -> Session:
        assert self._door is not None
        door = self._door

        def make_backend(notice: Callable[[Notice], None]) -> Backend:
            return factory(
                SessionContext(
                    pid=connection.pid,
                    user=greeting.role.name,
                    superuser=greeting.role.superuser,
                    database=door.database,
                    parameters=greeting.parameters,
                    notice=notice,
                    client_host=connection.transport.host,
                    client_port=connection.transport.port,
                )
            )

        session = Session(
            conversation=conversation,
            parameters=greeting.parameters,
            user=greeting.role.name,
            make_backend=make_backend,
            max_bytes=self._settings.max_session_bytes,
            log=log.bind(user=greeting.role.name),
        )
        self._connections.begin(connection, greeting, session)
        if self._stopping.is_set():
            # ``stop`` may have looked before the session was there.
            session.interrupts.terminate()
        return session

    def _refuse(
        self, conversation: Conversation, error: Wal2LakeError, log: Any
    ) -> None:
        log.critical(error.message, error=error, sqlstate=error.sqlstate)
        with contextlib.suppress(TransportClosed):
            conversation.send(ErrorResponse(error_fields(error, severity="FATAL")))
            conversation.transport.flush()


def _too_slow() -> UsageError:
    return UsageError("canceling authentication due to timeout", sqlstate="57014")
