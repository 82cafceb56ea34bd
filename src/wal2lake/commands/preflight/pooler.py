"""Detects a connection pooler in front of the server, and what it breaks.

Takes a session and a function that opens ordinary ones. Returns facts. A pooler sends its clients
an invented process number at connect, since it handles cancel requests itself; the number therefore
differs from the server's pg_backend_pid() (measured with PgBouncer 1.18). Two connections show
whether the pooler gives each transaction another server process: while one has a transaction open,
the other meets the same process, or another process than before.

PgBouncer before 1.23 refuses a replication connection ("unsupported startup parameter:
replication"), and before 1.20 also ``options``. Later versions give a replication connection a
server connection of its own. Ordinary connections, which read the copy, are pooled as configured,
and the ``options`` that ignore_startup_parameters names are dropped silently.

If the pool has one server connection only, the second connection would wait until the first is
closed. Its timeout is therefore short. A copy, which reads through several connections at once,
would hang likewise.

Source: PgBouncer's documentation (pool_mode, ignore_startup_parameters) and changelog.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import PublisherError
from wal2lake.pg import OUTPUT_SETTINGS, Session

Connect = Callable[[float], Session]
"""Opens an ordinary connection with an answer timeout in seconds."""

ANSWER_SECONDS: Final = 5.0
"""Answer timeout. A pool with a free connection answers at once, and an exhausted pool makes its
clients wait for minutes. The value between is chosen arbitrarily."""


@dataclass(frozen=True, slots=True)
class Pooler:
    """A connection pooler in front of the server."""

    refusal: str | None = None
    """Reason for refusing an ordinary connection; None if it was accepted."""
    alone: str | None = None
    """Reason for refusing a second ordinary connection; None if it was accepted."""
    ignored: tuple[str, ...] = ()
    """Settings of the startup packet that the connections don't have."""
    shares: bool = False
    """True if transactions of one connection run in several server processes."""


def ask_pooler(
    session: Session, connect: Connect, *, ordinary: bool = False
) -> Pooler | None:
    """Return the pooler; None without one. ``ordinary``: the session can be one of the two."""
    if session.value("SELECT pg_catalog.pg_backend_pid()") == str(session.backend_pid):
        return None
    try:
        held = nullcontext(session) if ordinary else connect(ANSWER_SECONDS)
    except PublisherError as error:
        return Pooler(refusal=error.message)
    with held as second:
        try:
            with connect(ANSWER_SECONDS) as first:
                return _compare(first, second)
        except PublisherError as error:
            return Pooler(alone=error.message)


def _compare(first: Session, second: Session) -> Pooler:
    settings = dict(OUTPUT_SETTINGS)
    names = ", ".join(f"'{name}'" for name in settings)
    rows = first.query(
        "SELECT pg_catalog.lower(name), setting FROM pg_catalog.pg_settings"
        f" WHERE pg_catalog.lower(name) IN ({names})"
    )
    actual = {str(name): str(value) for name, value in rows}
    pid = "SELECT pg_catalog.pg_backend_pid()"
    before = first.value(pid)
    second.execute("BEGIN")
    second_pid = second.value(pid)
    try:
        after = first.value(pid)
    finally:
        second.execute("ROLLBACK")
    return Pooler(
        ignored=tuple(
            name
            for name, value in settings.items()
            if not _is_as_good(name, actual[name], value)
        ),
        shares=second_pid == before or after != before,
    )


def _is_as_good(name: str, value: str, wanted: str) -> bool:
    if name == "extra_float_digits":
        # All values from 1 on give the shortest exact form.
        return int(value) > 0
    # The server appends the order of fields to DateStyle.
    return value.split(",")[0].lower() == wanted.lower()
