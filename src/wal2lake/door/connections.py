"""Lists the connected clients for the listener, cancel requests and status views.

Takes connections as they are accepted, get their session, and end. Gives counts, sessions by pid,
and waits for their end. Thread-safe. Of a session, other threads use only its interrupts and the
properties that it declares readable from any thread.

Source: src/backend/storage/ipc/procarray.c and procsignal.c (SendCancelRequest), in small.
"""

from __future__ import annotations

import hmac
import threading
from dataclasses import dataclass
from typing import Any

from wal2lake.door.client import Transport
from wal2lake.door.encryption import Encrypted
from wal2lake.door.greeting import Greeting
from wal2lake.door.session import ClientSession, Interrupt
from wal2lake.errors import UsageError


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session, as pg_stat_activity shows it."""

    pid: int
    user: str
    application_name: str
    client_host: str
    client_port: int
    started_at: float
    """Unix time."""
    state: str
    """active, idle, idle in transaction, idle in transaction (aborted)."""
    query: str
    """The running statement, or the last one."""
    encrypted: Encrypted | None


@dataclass(slots=True)
class Connection:
    """An accepted connection. Its pid never changes; its session is set later."""

    pid: int
    secret: bytes
    transport: Transport
    is_surplus: bool
    """True if it exceeds max_connections and will be refused."""
    started_at: float
    session: ClientSession | None = None
    greeting: Greeting | None = None

    def terminate(self) -> None:
        """End the connection with 57P01, whether or not it has a session."""
        if self.session is not None:
            self.session.interrupts.terminate()
        else:
            self.transport.wake()


class Connections:
    """The connections of one listener."""

    __slots__ = ("_by_pid", "_changed", "_log", "_threads")

    def __init__(self, log: Any) -> None:
        self._changed = threading.Condition()
        self._by_pid: dict[int, Connection] = {}
        self._threads = 0
        self._log = log

    def counts(self) -> tuple[int, int]:
        """Return the number of threads, and of served connections."""
        with self._changed:
            served = sum(not c.is_surplus for c in self._by_pid.values())
            return self._threads, served

    def add(self, connection: Connection) -> None:
        """Add an accepted connection, which has or is about to get a thread."""
        with self._changed:
            self._by_pid[connection.pid] = connection
            self._threads += 1

    def admit(
        self, connection: Connection, greeting: Greeting, max_wal_senders: int
    ) -> None:
        """Admit a connection to a session.

        53300 if its role's limit, or the limit of replication connections, is reached."""
        role = greeting.role
        with self._changed:
            senders = sum(
                other.greeting is not None and other.greeting.replication
                for other in self._by_pid.values()
            )
            if greeting.replication and senders >= max_wal_senders:
                raise UsageError(
                    'number of requested standby connections exceeds "max_wal_senders"'
                    f" (currently {max_wal_senders})",
                    sqlstate="53300",
                )
            held = sum(
                other.greeting is not None and other.greeting.role.oid == role.oid
                for other in self._by_pid.values()
            )
            if 0 <= role.connlimit <= held and not role.superuser:
                raise UsageError(
                    f'too many connections for role "{role.name}"', sqlstate="53300"
                )
            connection.greeting = greeting

    def begin(self, connection: Connection, session: ClientSession) -> None:
        """Set the session of an admitted connection."""
        with self._changed:
            connection.session = session

    def leave(self, connection: Connection) -> None:
        """Free the connection's place; its thread may still be sending its last messages."""
        with self._changed:
            self._by_pid.pop(connection.pid, None)
            self._changed.notify_all()

    def thread_ended(self) -> None:
        """Count down for a thread of ``add`` that has ended."""
        with self._changed:
            self._threads -= 1
            self._changed.notify_all()

    def all(self) -> list[Connection]:
        """Return the present connections."""
        with self._changed:
            return list(self._by_pid.values())

    def session(self, pid: int) -> ClientSession | None:
        """Return the session with the pid, if there is one."""
        with self._changed:
            connection = self._by_pid.get(pid)
        return None if connection is None else connection.session

    def cancel(self, pid: int, secret: bytes) -> None:
        """Handle a CancelRequest. The client gets no answer; failures are logged."""
        with self._changed:
            connection = self._by_pid.get(pid)
        if connection is None or connection.session is None:
            self._log.info(f"PID {pid} in cancel request did not match any process")
        elif not hmac.compare_digest(secret, connection.secret):
            self._log.info(f"wrong key in cancel request for process {pid}")
        else:
            connection.session.interrupts.request(Interrupt.CANCEL)

    def wait_for_sessions(self, timeout_s: float | None) -> bool:
        """Wait until no session is left; False if some are after the timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(c.session for c in self._by_pid.values()), timeout_s
            )

    def wait_for_all(self, timeout_s: float) -> bool:
        """Wait until no thread is left; False if some are after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._threads == 0, timeout_s)

    def infos(self) -> list[SessionInfo]:
        """Return every session, for pg_stat_activity."""
        sessions: list[SessionInfo] = []
        for connection in self.all():
            session, greeting = connection.session, connection.greeting
            if session is None or greeting is None:
                continue
            sessions.append(
                SessionInfo(
                    pid=connection.pid,
                    user=greeting.role.name,
                    application_name=session.application_name,
                    client_host=connection.transport.host,
                    client_port=connection.transport.port,
                    started_at=connection.started_at,
                    state=session.activity,
                    query=session.query,
                    encrypted=greeting.encrypted,
                )
            )
        return sessions
