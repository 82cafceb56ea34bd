"""The TCP listener: one thread per connection, and the list of connections.

Takes a listening socket; after ``ready``, runs sessions over the Backends of a factory
(``reception`` decides on admission). Lives in the engine's process.

A connection costs a thread that sleeps in poll, and no buffer while it is idle. Above
``max_connections``, up to as many additional threads refuse clients (53300) and serve cancel
requests. Beyond that, connections are closed unread. Threads, and the memory of each (see
ListenerSettings), are therefore bounded under any load.

Source: src/backend/postmaster/postmaster.c (ServerLoop), src/backend/libpq/pqcomm.c.
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
from typing import Final

from wal2lake.door.client import Transport
from wal2lake.door.connections import Connection, Connections, SessionInfo
from wal2lake.door.entrance import Entrance
from wal2lake.door.greeting import Door
from wal2lake.door.reception import (
    ListenerSettings,
    ListenerState,
    Reception,
    ReplicationFactory,
)
from wal2lake.door.session import Interrupt
from wal2lake.observe import get_logger
from wal2lake.sql.backend import BackendFactory

_SECRET_BYTES: Final = 4
"""Size of a cancel key in protocol 3.0."""

_ACCEPT_PAUSE_S: Final = 0.1
"""Pause after a failed accept (no descriptors left), as in PostgreSQL."""


class Listener:
    """Accepts connections on a socket and serves them."""

    def __init__(
        self,
        listening: socket.socket | Sequence[socket.socket],
        settings: ListenerSettings,
        entrance: Entrance,
    ) -> None:
        """One listener gets all sockets of a node, since limits and pids are shared."""
        self._sockets: tuple[socket.socket, ...] = (
            (listening,) if isinstance(listening, socket.socket) else tuple(listening)
        )
        self._settings = settings
        self._log = get_logger()
        self._connections = Connections(self._log)
        self._reception = Reception(settings, entrance, self._connections, self._log)
        self._pids = itertools.count(1)
        self._wake_read, self._wake_write = socket.socketpair()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port of the first socket."""
        name = self._sockets[0].getsockname()
        return str(name[0]), int(name[1])

    @property
    def state(self) -> ListenerState:
        """The present state of admission."""
        return self._reception.state

    def start(self) -> None:
        """Accept connections in a thread; clients are refused as "starting up"."""
        # An inherited descriptor shares its description with the supervisor's. It must not be
        # shut down. It may be non-blocking for both, as only one process accepts at a time.
        for listening in self._sockets:
            listening.setblocking(False)
        self._thread = self._spawn(self._accept_loop, "listener")
        self._thread.start()

    def ready(
        self,
        door: Door,
        factory: BackendFactory,
        *,
        replication: ReplicationFactory | None = None,
    ) -> None:
        """Admit clients from now on."""
        self._reception.open(door, factory, replication)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Smart shutdown: admit nobody and wait for the sessions' end; False if some stay."""
        self._reception.close()
        return self._connections.wait_for_sessions(timeout_s)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Fast shutdown: end every session with 57P01, then stop listening.

        After ``timeout_s``, clients that do not read are disconnected, which may take as long
        again. Threads that a Backend still holds are left behind.
        """
        self._reception.end()
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
        """Return the connected sessions, for pg_stat_activity."""
        return self._connections.infos()

    def cancel(self, pid: int) -> bool:
        """Cancel a session's statement for pg_cancel_backend; False without such a session."""
        session = self._connections.session(pid)
        if session is None:
            return False
        session.interrupts.request(Interrupt.CANCEL)
        return True

    def terminate(self, pid: int) -> bool:
        """End a session for pg_terminate_backend; False without such a session."""
        session = self._connections.session(pid)
        if session is None:
            return False
        session.interrupts.terminate()
        return True

    # -- accepting

    def _spawn(self, target: Callable[[], None], name: str) -> threading.Thread:
        # A new thread has no context of its own, but the log's fields are in the context.
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
            # No thread could be started, or the client has already gone.
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
            lambda: self._reception.serve(connection), f"session-{connection.pid}"
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
            # Some systems lack some of these options.
            if number > 0 and hasattr(socket, option):
                accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), number)
