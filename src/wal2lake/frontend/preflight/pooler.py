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

Source: PgBouncer's documentation (pool_mode, ignore_startup_parameters) and changelog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wal2lake.errors import PublisherError
from wal2lake.pg import OUTPUT_SETTINGS, Session


@dataclass(frozen=True, slots=True)
class Pooler:
    """Somebody in between."""

    refusal: str | None = None
    """Why it has refused an ordinary connection; None: it has not."""
    ignored: tuple[str, ...] = ()
    """What our connections set at their start, and do not have."""
    shares: bool = False
    """Transactions of one connection meet several server processes."""


def ask_pooler(session: Session, connect: Callable[[], Session]) -> Pooler | None:
    """None: there is none. ``connect`` opens an ordinary connection."""
    if session.value("SELECT pg_catalog.pg_backend_pid()") == str(session.backend_pid):
        return None
    try:
        with connect() as first, connect() as second:
            return _look(first, second)
    except PublisherError as error:
        return Pooler(refusal=error.message)


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
    after = first.value(pid)
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
