"""Verifies the server's WAL position on an ordinary connection, in a thread of its own.

A keepalive is trusted only up to a position that the server is known to have flushed
(``feedback``). In: positions of keepalives. Out: ``position``, the server's own position, which is
first recorded in the log's file ``confirmed`` (``source`` explains why); a byte into the reader's
pipe. The callback ``look`` gets the session for other periodic queries.

    failure                              reaction
    -------                              --------
    a session that has worked before     a new session at once, no warning: firewalls cut idle ones
    a new connection or its query        a warning; retry after wal_retrieve_retry_interval
    recording the position               another warning; retry after the same time, same session
    the server is below the keepalive    no failure: queried again after a second

The warning is logged once until verification succeeds again. Replication goes on, so it is no error
of the subscription. But meanwhile nothing beyond the log is confirmed, and an idle slot holds its
publisher's WAL. The reader only sets the wanted position and reads the verified one, so neither an
unresponsive server, nor a refused connection, nor a slow disk keeps the reader from answering
keepalives.

Every ten seconds the thread also calls ``watch`` with the session, for facts that others show. Its
failure is no failure of the verification, and is not logged: the facts say how old they are.

The session is an ordinary one: it needs no walsender, and pg_stat_replication shows one row for the
subscription.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from wal2lake.errors import Wal2LakeError
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import get_logger
from wal2lake.pg import Publisher, Session

PAUSE_SECONDS: Final = 0.02
"""Pause between two queries. Each query costs a round trip and an fdatasync besides the journal's.
Chosen arbitrarily: only synchronous commits that concern no table here wait for it."""

_NOT_THERE_SECONDS: Final = 1.0
"""Pause if the server has not flushed up to the position of its own keepalive."""

_WATCH_SECONDS: Final = 10.0
"""Interval between two calls of ``watch``."""

_FIRST_WATCH_SECONDS: Final = 1.0
"""Time until the first call of ``watch``. A receiver that fails at once asks nothing."""

_STOP_SECONDS: Final = 1.0
"""Time to wait for the thread at the end. A thread that still waits for the server ends with the
process."""


class PositionVerifier:
    """Verifies the server's position for one connection, from ``start`` to ``stop``. The reader
    calls ``request`` and ``position``."""

    def __init__(
        self,
        connect: Callable[[], Session],
        record: Callable[[Lsn], None],
        wake: Callable[[], None],
        *,
        verified: Lsn,
        retry_interval_seconds: float,
        subscription: str,
        look: Callable[[Session], None] = lambda session: None,
        watch: Callable[[Session], None] | None = None,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """``record`` makes a position durable, or raises. ``verified`` is durable already.
        ``pause_seconds`` is the time between two queries."""
        self._connect = connect
        self._record = record
        self._look = look
        self._pause_seconds = pause_seconds
        self._watch = watch
        self._next_watch = time.monotonic() + _FIRST_WATCH_SECONDS
        self._wake = wake
        self._retry_seconds = retry_interval_seconds
        self._subscription = subscription
        self._changed = threading.Condition()
        self._wanted = INVALID_LSN
        self._position = verified
        self._stopped = False
        self._reported = False
        self._session: Session | None = None
        self._events = get_logger()
        self._thread = threading.Thread(target=self._run, name="verify", daemon=True)

    def start(self) -> None:
        """Start the thread. It connects later."""
        self._thread.start()

    def stop(self) -> threading.Thread:
        """End the thread, within a time limit. Returns the thread, which may still run."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(_STOP_SECONDS)
        return self._thread

    def request(self, position: Lsn) -> None:
        """Request verification of a position. Returns at once, and may be repeated."""
        if position > self._wanted:
            with self._changed:
                self._wanted = position
                self._changed.notify()

    @property
    def position(self) -> Lsn:
        """Recorded position up to which the server is known to have flushed its WAL."""
        return self._position

    def _run(self) -> None:
        try:
            while not self._stopped:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._stopped or self._wanted > self._position,
                        self._seconds_to_watch(),
                    )
                    wanted = self._wanted
                pause = 0.0
                if not self._stopped and wanted > self._position:
                    pause = self._verify(wanted)
                if not self._stopped and self._seconds_to_watch() == 0.0:
                    self._call_watch()
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, pause)
        finally:
            self._close()

    def _seconds_to_watch(self) -> float | None:
        if self._watch is None:
            return None
        return max(0.0, self._next_watch - time.monotonic())

    def _call_watch(self) -> None:
        if self._watch is None:
            return
        try:
            if self._session is None:
                self._session = self._connect()
            self._watch(self._session)
        except Exception:
            self._close()
        # After the call: an answer that takes long must not be followed by the next question.
        self._next_watch = time.monotonic() + _WATCH_SECONDS

    def _verify(self, wanted: Lsn) -> float:
        """Verify a position. Return the seconds until the next query."""
        waited = self._session is not None
        try:
            if self._session is None:
                self._session = self._connect()
            flushed = Publisher(self._session).flushed_lsn()
            self._look(self._session)
        except Exception as error:
            self._close()
            if waited:
                # A session that was idle for long may have been cut off.
                return 0.0
            return self._failed("could not verify the publisher's position", error)
        if flushed > self._position:
            try:
                self._record(flushed)
            except Exception as error:
                # A local error: the session stays.
                return self._failed("could not record the publisher's position", error)
            self._position = flushed
        self._reported = False
        self._wake()
        return self._pause_seconds if flushed >= wanted else _NOT_THERE_SECONDS

    def _failed(self, text: str, error: Exception) -> float:
        """Log a warning, once until verification succeeds. Return the seconds until the next
        attempt."""
        if not (self._reported or self._stopped):
            self._reported = True
            text += (
                "; none beyond the change log is confirmed for subscription"
                f' "{self._subscription}", so an idle slot holds the publisher\'s WAL'
            )
            if isinstance(error, Wal2LakeError):
                self._events.warning(text, error=error)
            else:
                self._events.warning(text, exc_info=error)
        return self._retry_seconds

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
