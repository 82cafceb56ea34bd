"""How far is the server's WAL really? Asked on an ordinary connection, by a thread of its own.

A keepalive is only believed up to a position that the server was seen to have flushed (see
``feedback``). In: positions that keepalives have named. Out: ``position``, the server's own,
which is in the log's file ``confirmed`` before it is here (``source`` says why), and a byte into
the reader's pipe. Whoever else has a question to this server now and then is called with the
session (``look``).

    goes wrong                           then
    ----------                           ----
    a session that had worked            another one at once, and no word: idle ones get cut off
    a new connection, its question       a warning; again after wal_retrieve_retry_interval
    the record of the answer             a warning of its own; the session stays; again after it
    the server is not as far as asked    no failure: asked again after a second

The warning comes once, until it works again, and goes to the log alone: nothing stands still, so it
is no error of the subscription. But nothing is confirmed beyond the log meanwhile, and an idle slot
holds its publisher's WAL. The reader only leaves its question and reads the answer: neither a
server that does not answer, nor a refused connection, nor the disk keeps it from answering
keepalives.

It is an ordinary session: it takes no walsender, and pg_stat_replication shows one row for
the subscription.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wal2lake.errors import Wal2LakeError
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import get_logger
from wal2lake.pg import Publisher, Session

_PAUSE_SECONDS: Final = 0.02
"""Each answer costs a round trip and an fdatasync beside the journal's. A guess: what waits
for it, a synchronous commit that concerns no table here, waits for both anyway."""

_NOT_THERE_SECONDS: Final = 1.0
"""A server that has not got as far as its own keepalive said is not asked again sooner."""

_STOP_SECONDS: Final = 1.0
"""An answer that is still awaited then is left behind: the thread dies with the process."""


class PositionVerifier:
    """Asks the server for its position, for one connection, from ``start`` to ``stop``. ``ask`` and
    ``position`` are for the reader."""

    def __init__(
        self,
        connect: Callable[[], Session],
        record: Callable[[Lsn], None],
        wake: Callable[[], None],
        *,
        known: Lsn,
        retry_interval_seconds: float,
        subscription: str,
        look: Callable[[Session], None] = lambda session: None,
    ) -> None:
        """``record`` makes a position durable, or raises; ``known`` is already."""
        self._connect = connect
        self._record = record
        self._look = look
        self._wake = wake
        self._retry_seconds = retry_interval_seconds
        self._subscription = subscription
        self._changed = threading.Condition()
        self._wanted = INVALID_LSN
        self._position = known
        self._stopped = False
        self._reported = False
        self._session: Session | None = None
        self._events = get_logger()
        self._thread = threading.Thread(target=self._run, name="verify", daemon=True)

    def start(self) -> None:
        """No connection yet: many subscriptions never need it."""
        self._thread.start()

    def stop(self) -> threading.Thread:
        """End it, or leave it behind; returns its thread, to tell which."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(_STOP_SECONDS)
        return self._thread

    def ask(self, position: Lsn) -> None:
        """Is the server there? Returns at once; the same question may be repeated."""
        if position > self._wanted:
            with self._changed:
                self._wanted = position
                self._changed.notify()

    @property
    def position(self) -> Lsn:
        """The server has flushed its WAL at least up to here, and it is recorded."""
        return self._position

    def _run(self) -> None:
        try:
            while not self._stopped:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._stopped or self._wanted > self._position
                    )
                    wanted = self._wanted
                pause = 0.0 if self._stopped else self._answer(wanted)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped, pause)
        finally:
            self._close()

    def _answer(self, wanted: Lsn) -> float:
        """Seconds until the next question."""
        waited = self._session is not None
        try:
            if self._session is None:
                self._session = self._connect()
            flushed = Publisher(self._session).flushed_lsn()
            self._look(self._session)
        except Exception as error:
            self._close()
            if waited:
                # A session that nobody has used for long may have been cut off.
                return 0.0
            return self._failed("could not verify the publisher's position", error)
        if flushed > self._position:
            try:
                self._record(flushed)
            except Exception as error:
                # Ours: the session has nothing to do with it.
                return self._failed("could not record the publisher's position", error)
            self._position = flushed
        self._reported = False
        self._wake()
        return _PAUSE_SECONDS if flushed >= wanted else _NOT_THERE_SECONDS

    def _failed(self, text: str, error: Exception) -> float:
        """Tell it, once until it works again; seconds until the next attempt."""
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
