"""Interruptible waits for a server.

In: a socket, a deadline, and a check: a function that is called repeatedly and ends the wait by
raising. Out: whether the socket is ready. libpq's own waits have neither deadline nor check.

``give_up`` cancels the running statement before it closes the connection. Without the cancel
request the server would continue, and for example create a slot that no one knows of.

All waits use poll: select refuses descriptors from 1024 on, and a node with many sessions has them.

Source: libpqrcv_PQexec() in libpqwalreceiver.c (CHECK_FOR_INTERRUPTS while it waits); PostgreSQL
manual, 32.7 (canceling queries in progress).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable, Iterable
from typing import Final

from psycopg import Error, pq

Check = Callable[[], None]
"""Called in the waiting thread; ends the wait by raising."""

_LOOK_SECONDS: Final = 0.1
"""Interval of the checks. A guess at a delay that a person does not notice."""

_FAREWELL_SECONDS: Final = 1.0
"""Limit for the cancel request and its result: longer than a responsive server needs."""


def readable(filenos: Iterable[int], timeout_seconds: float | None) -> set[int]:
    """Wait until one of the descriptors can be read or has ended; return those that can or have."""
    return _ready(filenos, select.POLLIN, timeout_seconds)


def _ready(
    filenos: Iterable[int], events: int, timeout_seconds: float | None
) -> set[int]:
    poll = select.poll()
    for fileno in filenos:
        poll.register(fileno, events)
    ready = poll.poll(None if timeout_seconds is None else timeout_seconds * 1000)
    if any(event & select.POLLNVAL for _, event in ready):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return {fileno for fileno, _ in ready}


def wait_ready(
    fileno: int,
    *,
    writing: bool = False,
    deadline: float | None = None,
    check: Check | None = None,
) -> bool:
    """Wait until the socket can be read, or written with ``writing``.

    Returns False at ``deadline`` (of time.monotonic).
    """
    events = select.POLLOUT if writing else select.POLLIN
    while True:
        if check is not None:
            check()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        pause = left
        if check is not None:
            pause = _LOOK_SECONDS if left is None else min(_LOOK_SECONDS, left)
        if _ready([fileno], events, pause):
            return True
        if left is not None and time.monotonic() >= (deadline or 0.0):
            return False


def give_up(pgconn: pq.abc.PGconn) -> bool:
    """Cancel the running statement if the server responds, and close the connection.

    Returns True if the server has reported that the statement failed, so it had no effect.
    After False the statement may have completed, or may still complete."""
    deadline = time.monotonic() + _FAREWELL_SECONDS
    failed = False
    with contextlib.suppress(Error, OSError, ValueError):
        _cancel(pgconn, deadline)
        failed = _drain(pgconn, deadline)
    pgconn.finish()
    return failed


def _drain(pgconn: pq.abc.PGconn, deadline: float) -> bool:
    """Wait for the statement's end; return True if it ended with an error."""
    while True:
        while pgconn.is_busy():
            if not wait_ready(pgconn.socket, deadline=deadline):
                return False
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return False
        if has_failed(result):
            return True


def has_failed(result: pq.abc.PGresult) -> bool:
    """Return True if the server has reported that the statement failed.

    An error of libpq's about a broken connection does not count: it is not the server's. Nor
    does a FATAL error at a shutdown, which may follow a completed statement.
    """
    severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
    return severity == b"ERROR"


def _cancel(pgconn: pq.abc.PGconn, deadline: float) -> None:
    cancel = pgconn.cancel_conn()
    try:
        cancel.start()
        while (state := cancel.poll()) != pq.PollingStatus.OK:
            writing = state == pq.PollingStatus.WRITING
            if state == pq.PollingStatus.FAILED or not wait_ready(
                cancel.socket, writing=writing, deadline=deadline
            ):
                return
    finally:
        cancel.finish()
