"""Replication origins that sessions have set up, and their transactions' positions there.

One session at a time uses an origin. In PostgreSQL, too, only one process may advance it.
Source: replorigin_session_setup(), pg_replication_origin_xact_setup() in origin.c.
"""

from __future__ import annotations

import threading

from wal2lake.errors import UsageError
from wal2lake.lake.capture import OriginMark


class ActiveOrigins:
    """Active origins of one node. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}

    def take(self, name: str, number: int, pid: int) -> None:
        """Set up an origin for a session; 55006 if another session uses it."""
        with self._lock:
            user = self._users.setdefault(name, pid)
        if user != pid:
            raise is_active(number, user)

    def user_of(self, name: str) -> int | None:
        """Return the process number of the session that uses the origin."""
        with self._lock:
            return self._users.get(name)

    def release(self, name: str, pid: int) -> None:
        """Release the session's origin."""
        with self._lock:
            if self._users.get(name) == pid:
                del self._users[name]


def is_active(number: int, user: int) -> UsageError:
    """Return the error for an origin that another session has set up."""
    return UsageError(
        f"replication origin with ID {number} is already active for PID {user}",
        sqlstate="55006",
    )


class SessionOrigin:
    """The origin that one session has set up. Used by the session's thread only."""

    def __init__(self, active: ActiveOrigins, pid: int) -> None:
        self._active = active
        self._pid = pid
        self.name: str | None = None
        self._lsn = 0
        self._time_us: int | None = None

    @property
    def mark(self) -> OriginMark | None:
        """Return the origin to record in a commit now; None without one."""
        if self.name is None:
            return None
        return OriginMark(self.name, self._lsn, self._time_us)

    def set_up(self, name: str, number: int) -> None:
        """Set up an origin; 55000 if the session has one, 55006 if another session uses it."""
        if self.name is not None:
            raise UsageError(
                "cannot setup replication origin when one is already setup",
                sqlstate="55000",
            )
        self._active.take(name, number, self._pid)
        self.name = name

    def need(self) -> str:
        """Return the origin's name; 55000 without one."""
        if self.name is None:
            raise UsageError("no replication origin is configured", sqlstate="55000")
        return self.name

    def set_transaction(self, lsn: int, time_us: int | None) -> None:
        """Set the position of the session's transactions at the origin; 55000 without one."""
        self.need()
        self._lsn, self._time_us = lsn, time_us

    def end(self) -> None:
        """Release the origin, if the session has one."""
        if self.name is not None:
            self._active.release(self.name, self._pid)
            self.name = None
        self._lsn, self._time_us = 0, None
