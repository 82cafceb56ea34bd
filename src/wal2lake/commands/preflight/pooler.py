"""Is there a connection pooler between us and the server, and what does it break?

In: a session, and a way to open ordinary ones. Out: facts. A pooler invents the process number that
it tells its clients at connect, for it cancels by it; so it is not the one that the
server answers (measured with PgBouncer 1.18). Whether it gives every
transaction another server process is seen from two connections: one has a transaction open, and
the other meets the same process, or another one than before.

PgBouncer before 1.23 refuses a replication connection ("unsupported startup parameter:
replication"), and before 1.20 ``options``, too. Later ones give it a server connection of its own,
but ordinary ones, which read the copy, are pooled as configured, and those of ``options`` that
ignore_startup_parameters names are dropped in silence.

With one server connection in its pool the second of the two would wait until the first is closed,
so it waits for a moment only; a copy, which reads through several at once, would do the same.

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
"""Opens an ordinary connection that waits so many seconds for an answer."""

ANSWER_SECONDS: Final = 5.0
"""A pool that has room answers at once, and one that has none lets its clients wait for minutes.
A guess at what is neither."""


@dataclass(frozen=True, slots=True)
class Pooler:
    """Somebody in between."""

    refusal: str | None = None
    """Why it has refused an ordinary connection; None: it has not."""
    alone: str | None = None
    """Why there was no second ordinary connection beside the first; None: there was."""
    ignored: tuple[str, ...] = ()
    """Settings that our connections set at their start and do not have."""
    shares: bool = False
    """Transactions of one connection meet several server processes."""


def ask_pooler(
    session: Session, connect: Connect, *, ordinary: bool = False
) -> Pooler | None:
    """None: there is none. ``ordinary``: the session is one itself, so one of the two."""
    if session.value("SELECT pg_catalog.pg_backend_pid()") == str(session.backend_pid):
        return None
    try:
        held = nullcontext(session) if ordinary else connect(ANSWER_SECONDS)
    except PublisherError as error:
        return Pooler(refusal=error.message)
    with held as second:
        try:
            with connect(ANSWER_SECONDS) as first:
                return _look(first, second)
        except PublisherError as error:
            return Pooler(alone=error.message)


def _look(first: Session, second: Session) -> Pooler:
    wanted = dict(OUTPUT_SETTINGS)
    names = ", ".join(f"'{name}'" for name in wanted)
    rows = first.query(
        "SELECT pg_catalog.lower(name), setting FROM pg_catalog.pg_settings"
        f" WHERE pg_catalog.lower(name) IN ({names})"
    )
    found = {str(name): str(value) for name, value in rows}
    pid = "SELECT pg_catalog.pg_backend_pid()"
    before = first.value(pid)
    second.execute("BEGIN")
    other = second.value(pid)
    try:
        after = first.value(pid)
    finally:
        second.execute("ROLLBACK")
    return Pooler(
        ignored=tuple(
            name
            for name, value in wanted.items()
            if not _is_as_good(name, found[name], value)
        ),
        shares=other == before or after != before,
    )


def _is_as_good(name: str, value: str, wanted: str) -> bool:
    if name == "extra_float_digits":
        # From 1 on all digits that there are.
        return int(value) > 0
    # DateStyle has an order of fields behind it.
    return value.split(",")[0].lower() == wanted.lower()
