"""Waiting for a server, in a way that others can end.

In: a socket, until when, and who may end the wait: a function that is called again and again and
raises. Out: whether the socket is ready. libpq's own waits know neither.

``give_up`` is what is owed to a server whose answer is not wanted any more: it goes on with a
statement whose client is gone, and makes a slot that nobody knows of.

Source: libpqrcv_PQexec() in libpqwalreceiver.c (CHECK_FOR_INTERRUPTS while it waits); PostgreSQL
manual, 32.7 (canceling queries in progress).
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable
from typing import Final

from psycopg import Error, pq

Check = Callable[[], None]
"""Raises to end a wait, from the thread that waits."""

_LOOK_SECONDS: Final = 0.1
"""How soon a wait is ended; a guess at what a person does not notice."""

_FAREWELL_SECONDS: Final = 1.0
"""For the cancel and what it brings: longer than any server takes that answers at all."""


def wait_ready(
    fileno: int,
    *,
    writing: bool = False,
    deadline: float | None = None,
    check: Check | None = None,
) -> bool:
    """Until the socket can be read (written); False at ``deadline`` (of time.monotonic)."""
    reads, writes = ([], [fileno]) if writing else ([fileno], [])
    while True:
        if check is not None:
            check()
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        pause = left
        if check is not None:
            pause = _LOOK_SECONDS if left is None else min(_LOOK_SECONDS, left)
        if any(select.select(reads, writes, [], pause)):
            return True
        if left is not None and time.monotonic() >= (deadline or 0.0):
            return False


def give_up(pgconn: pq.abc.PGconn) -> bool:
    """Have the server cancel what runs, if it answers at all, and close the connection.

    True: it has said that the statement failed, so it has done nothing. False: it may have
    done it, or may still do it."""
    deadline = time.monotonic() + _FAREWELL_SECONDS
    failed = False
    with contextlib.suppress(Error, OSError, ValueError):
        _cancel(pgconn, deadline)
        failed = _drain(pgconn, deadline)
    pgconn.finish()
    return failed


def _drain(pgconn: pq.abc.PGconn, deadline: float) -> bool:
    """Until the statement has ended; True: with an error."""
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
    """Has the server itself said that the statement was not done? What libpq says when a
    connection breaks is no word of the server's, and what a server says that is shut down
    (FATAL) may come when it was done."""
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
