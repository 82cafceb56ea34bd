"""One connection, from its first byte to a session or a refusal.

Takes an accepted ``Connection``. Runs its session to the end, hands a replication client over, or
sends PostgreSQL's refusal. Admission depends on the state:

    STARTING   every client gets 57P03 "the database system is starting up"
    READY      clients are admitted
    STOPPING   57P03 "the database system is shutting down"

Called by the listener, in one thread per connection.

Wrong passwords from one address are answered later and later, as by PostgreSQL's auth_delay.

Source: src/backend/tcop/backend_startup.c; canAcceptConnections in postmaster.c;
contrib/auth_delay.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from wal2lake.door.client import (
    ClientConversation,
    ReadTimeout,
    SessionEnd,
    TransportClosed,
)
from wal2lake.door.client.diagnostics import as_ours, error_fields
from wal2lake.door.connections import Connection, Connections
from wal2lake.door.entrance import Entrance
from wal2lake.door.greeting import (
    Door,
    Greeting,
    OldProtocol,
    admit,
    negotiate,
    read_startup_message,
)
from wal2lake.door.session import ClientSession, ReplicationRunner
from wal2lake.door.session.interrupts import shutdown_error
from wal2lake.errors import (
    FeatureNotSupportedError,
    ProtocolViolation,
    UsageError,
    Wal2LakeError,
)
from wal2lake.login import Throttle
from wal2lake.sql.backend import Backend, BackendFactory, Notice, SessionContext
from wal2lake.wire.frontback import ErrorResponse

_CANNOT_CONNECT_NOW: Final = "57P03"
_WRONG_PASSWORD: Final = "28P01"

LONGEST_PAUSE_S: Final = 5.0
"""Longest time that the answer to a wrong password is held back: it occupies a connection, of which
there are max_connections."""


class ListenerState(Enum):
    """Whether clients are admitted; the value is the refusal's message."""

    STARTING = "the database system is starting up"
    """Nobody is admitted yet."""
    READY = ""
    """Everybody who has the permission is admitted."""
    STOPPING = "the database system is shutting down"
    """Nobody is admitted any more."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Limits on connections, with PostgreSQL's names."""

    max_connections: int = 100
    """Connections served at a time."""
    max_wal_senders: int = 10
    """Connections for replication, included in the total."""
    authentication_timeout_s: float = 60.0
    """Time from accept to admission."""
    max_message_bytes: int = 64 << 20
    """Largest message a client may send."""
    max_session_bytes: int = 256 << 20
    """Size of prepared statements and portals of one session together."""
    write_timeout_s: float = 300.0
    """A client that takes no bytes of its results for this time is disconnected."""
    tcp_keepalives_idle_s: int = 300
    """Silence before the first keepalive probe; 0 for the system's default."""
    tcp_keepalives_interval_s: int = 30
    """Time between probes; 0 for the system's default."""
    tcp_keepalives_count: int = 4
    """Lost probes until a connection counts as dead; 0 for the system's default."""


ReplicationFactory = Callable[
    [ClientConversation, SessionContext, Backend], ReplicationRunner
]
"""Creates the runner of the commands of a connection with ``replication=database``."""


class Reception:
    """Receives the connections of one listener."""

    def __init__(
        self,
        settings: ListenerSettings,
        entrance: Entrance,
        connections: Connections,
        log: Any,
    ) -> None:
        self._settings = settings
        self._entrance = entrance
        self._connections = connections
        self._log = log
        self._lock = threading.Lock()
        self._state = ListenerState.STARTING
        self._door: Door | None = None
        self._factory: BackendFactory | None = None
        self._replication: ReplicationFactory | None = None
        self._ending = threading.Event()
        self._throttle = Throttle()

    @property
    def state(self) -> ListenerState:
        """The present state."""
        return self._state

    def open(
        self,
        door: Door,
        factory: BackendFactory,
        replication: ReplicationFactory | None,
    ) -> None:
        """Admit clients from now on."""
        with self._lock:
            self._door = door
            self._factory = factory
            self._replication = replication
            if self._state is ListenerState.STARTING:
                self._state = ListenerState.READY

    def close(self) -> None:
        """Admit no more clients."""
        with self._lock:
            self._state = ListenerState.STOPPING

    def end(self) -> None:
        """Admit no more clients, and end sessions that are just beginning."""
        self.close()
        self._ending.set()

    def serve(self, connection: Connection) -> None:
        """Serve a connection from the first byte to the last, in the connection's thread."""
        log = self._log.bind(session=connection.pid, client=connection.transport.host)
        conversation = ClientConversation(
            connection.transport, max_message_bytes=self._settings.max_message_bytes
        )
        try:
            self._welcome(connection, conversation, log)
        except (TransportClosed, ReadTimeout):
            pass
        except Exception as error:
            log.error("internal error", exc_info=error)
        finally:
            # Leave the list first: a client that sees the end may connect again at once.
            self._connections.leave(connection)
            connection.transport.linger()
            self._connections.thread_ended()

    def _welcome(
        self, connection: Connection, conversation: ClientConversation, log: Any
    ) -> None:
        transport = connection.transport
        transport.deadline = time.monotonic() + self._settings.authentication_timeout_s
        try:
            request = read_startup_message(
                conversation, self._connections.cancel, self._entrance.tls
            )
        except ProtocolViolation as error:
            log.info(error.message)
            return
        if request is None:
            return
        try:
            negotiate(conversation, request.message)
            door, factory = self._check_open(connection)
            greeting = admit(conversation, request, door, self._entrance.rules)
            transport.deadline = None
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
            refusal = as_ours(error)
            if refusal.sqlstate == _WRONG_PASSWORD:
                self._hold_up(transport.host)
            self._refuse(conversation, refusal, log)
            return
        session.run(connection.pid, connection.secret)

    def _hold_up(self, address: str) -> None:
        """Wait before the answer to a wrong password if the address tries many. Right passwords are
        never held up, and the session's thread waits, no other."""
        self._throttle.failed(address, time.monotonic())
        wait = self._throttle.wait_seconds(address, time.monotonic())
        self._ending.wait(min(wait, LONGEST_PAUSE_S))

    def _check_open(self, connection: Connection) -> tuple[Door, BackendFactory]:
        with self._lock:
            state, door, factory = self._state, self._door, self._factory
        if state is not ListenerState.READY:
            raise UsageError(state.value, sqlstate=_CANNOT_CONNECT_NOW)
        if connection.is_surplus:
            raise UsageError("sorry, too many clients already", sqlstate="53300")
        assert door is not None and factory is not None
        return door, factory

    def _begin(
        self,
        connection: Connection,
        conversation: ClientConversation,
        greeting: Greeting,
        factory: BackendFactory,
        log: Any,
    ) -> ClientSession:
        assert self._door is not None
        door = self._door
        self._connections.admit(connection, greeting, self._settings.max_wal_senders)

        contexts: list[SessionContext] = []

        def make_backend(notice: Callable[[Notice], None]) -> Backend:
            contexts.append(
                SessionContext(
                    pid=connection.pid,
                    user=greeting.role.name,
                    database=door.database,
                    parameters=greeting.parameters,
                    notice=notice,
                    client_host=connection.transport.host,
                    client_port=connection.transport.port,
                )
            )
            return factory(contexts[0])

        replication = self._replication

        def make_replication(backend: Backend) -> ReplicationRunner:
            if replication is None:
                raise FeatureNotSupportedError(
                    "replication connections are not supported"
                )
            return replication(conversation, contexts[0], backend)

        session = ClientSession(
            conversation=conversation,
            parameters=greeting.parameters,
            make_backend=make_backend,
            max_bytes=self._settings.max_session_bytes,
            log=log.bind(user=greeting.role.name),
            make_replication=make_replication if greeting.replication else None,
        )
        self._connections.begin(connection, session)
        if self._ending.is_set():
            # The listener may have ended the sessions before this one was in the list.
            session.interrupts.terminate()
        return session

    def _refuse(
        self, conversation: ClientConversation, error: Wal2LakeError, log: Any
    ) -> None:
        # A client that comes too early or too late is not an error of the node.
        report = log.debug if error.sqlstate == _CANNOT_CONNECT_NOW else log.critical
        report(error.message, error=error, sqlstate=error.sqlstate)
        with contextlib.suppress(TransportClosed):
            conversation.send(ErrorResponse(error_fields(error, severity="FATAL")))
            conversation.transport.flush()


def _too_slow() -> UsageError:
    return UsageError("canceling authentication due to timeout", sqlstate="57014")
