"""Lets other threads interrupt a session.

Comes in: CancelRequest, statement_timeout, transaction_timeout, the node's shutdown. Goes out:
calls of ``Backend.cancel`` while a statement runs, and an exception at the session's check points.

As in PostgreSQL, a cancel that arrives between two statements affects neither. The lock is held
during the call of ``Backend.cancel``, so a late request cannot stop the next statement. While a
Backend is still preparing a statement it may have nothing to stop, so the call is repeated until
the statement has ended.

Source: src/backend/tcop/postgres.c (ProcessInterrupts).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from wal2lake.door.client.diagnostics import SessionEnd
from wal2lake.errors import UsageError, Wal2LakeError

_REPEAT_SECONDS: Final = 0.05
"""The time between two calls of Backend.cancel for one statement. Chosen arbitrarily."""


class Interrupt(Enum):
    """The reasons to cancel a statement; the value is PostgreSQL's message."""

    CANCEL = "canceling statement due to user request"
    """The client has sent a CancelRequest."""
    TIMEOUT = "canceling statement due to statement timeout"
    """statement_timeout has passed."""


class Interrupts:
    """The interrupts of one session."""

    __slots__ = (
        "_cancel",
        "_end_error",
        "_ended",
        "_lock",
        "_pending",
        "_running",
        "_transaction_timer",
        "_wake",
        "terminating",
    )

    def __init__(self, cancel: Callable[[], None], wake: Callable[[], None]) -> None:
        """``cancel`` is Backend.cancel; ``wake`` ends the session's wait for its client."""
        self._lock = threading.Lock()
        self._cancel = cancel
        self._wake = wake
        self._running = False
        self._ended = threading.Event()
        self._pending: Interrupt | None = None
        self.terminating = False
        self._end_error = shutdown_error
        self._transaction_timer: threading.Timer | None = None

    def request(self, interrupt: Interrupt) -> None:
        """Cancel the running statement, if there is one; may be called from any thread."""
        with self._lock:
            if self._running and self._pending is None:
                self._pending = interrupt
                self._cancel()
                self._repeat()

    def terminate(self) -> None:
        """End the session with 57P01; may be called from any thread."""
        with self._lock:
            self.terminating = True
            if self._running:
                self._cancel()
                self._repeat()
        self._wake()

    def watch_transaction(self, timeout_ms: int) -> None:
        """Start the timer of transaction_timeout; 0 stops it.

        Further calls do not restart a running timer. When the time has passed, the session ends
        with 25P04.
        """
        timer = self._transaction_timer
        if timeout_ms > 0 and timer is None:
            timer = threading.Timer(timeout_ms / 1000, self._end_transaction)
            timer.daemon = True
            self._transaction_timer = timer
            timer.start()
        elif timeout_ms <= 0 and timer is not None:
            timer.cancel()
            self._transaction_timer = None

    def _end_transaction(self) -> None:
        with self._lock:
            if self._transaction_timer is None or self.terminating:
                return
            self._end_error = _transaction_timeout_error
        self.terminate()

    def _repeat(self) -> None:
        ended = self._ended

        def again() -> None:
            while not ended.wait(_REPEAT_SECONDS):
                with self._lock:
                    if not ended.is_set():
                        self._cancel()

        threading.Thread(target=again, name="cancel", daemon=True).start()

    def check(self) -> None:
        """Check for interrupts; raises 57014, or SessionEnd with 57P01 or 25P04."""
        if self.terminating:
            raise SessionEnd(self._end_error())
        if self._pending is not None:
            raise UsageError(self._pending.value, sqlstate="57014")

    @contextmanager
    def running(self, timeout_ms: int = 0) -> Iterator[None]:
        """Wrap the run of one statement; an error that an interrupt caused becomes 57014."""
        with self._lock:
            self._running = True
            self._ended = threading.Event()
        timer = self._start_timer(timeout_ms)
        try:
            self.check()
            yield
        except Wal2LakeError as error:
            if error.sqlstate == "57014":
                self.check()
            raise
        except SessionEnd:
            raise
        except Exception:
            # An engine may fail in any way when it is interrupted.
            self.check()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            with self._lock:
                self._running = False
                self._pending = None
                self._ended.set()

    def _start_timer(self, timeout_ms: int) -> threading.Timer | None:
        if timeout_ms <= 0:
            return None
        timer = threading.Timer(
            timeout_ms / 1000, self.request, args=(Interrupt.TIMEOUT,)
        )
        timer.daemon = True
        timer.start()
        return timer


def _transaction_timeout_error() -> UsageError:
    return UsageError(
        "terminating connection due to transaction timeout", sqlstate="25P04"
    )


def shutdown_error() -> UsageError:
    """The error for a session that ends because of a shutdown or pg_terminate_backend()."""
    return UsageError(
        "terminating connection due to administrator command", sqlstate="57P01"
    )
