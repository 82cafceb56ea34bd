"""The tables of a source in an imported snapshot, each locked only while it is compared.

Comes in: a session whose transaction has imported the snapshot. Goes out: one table at a time, as
it was in the snapshot. Called by ``verifying``.

TRUNCATE and ALTER TABLE are not MVCC-safe: a table that was rewritten since the snapshot looks
empty. So a table is locked (ACCESS SHARE), and its file and columns are compared with those of the
snapshot (``tablesync.unaltered``). A savepoint gives each table's lock back when the table is done,
and lock_timeout ends the wait for a table that another session has locked: that session could be
waiting for this one.

Source: PostgreSQL manual, 13.6 (Caveats); ROLLBACK TO SAVEPOINT releases the locks taken since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from wal2lake.errors import PublisherError
from wal2lake.pg import RemoteTable, Session
from wal2lake.pg.quoting import quote_literal
from wal2lake.tablesync.unaltered import (
    PlannedTable,
    SourceChanged,
    check_files,
    lock_unaltered,
)
from wal2lake.verify import NotComparable

LOCK_TIMEOUT_MS: Final = 1_000
"""Longest wait for a table's lock if subscription.max_lock_wait_ms is 0: its default."""

_LOCK_NOT_AVAILABLE: Final = "55P03"


def import_snapshot(
    session: Session, snapshot: str | None, lock_timeout_ms: int
) -> None:
    """Begin the transaction that reads the tables of a snapshot; None: its own, which its first
    query takes."""
    # Row security would leave out rows in silence.
    session.execute("SET row_security = off")
    session.execute(f"SET lock_timeout = {lock_timeout_ms}")
    # The server's limits for sessions of its applications, which pg_dump puts out of force, too:
    # a digest takes long, and the session is idle while the copy is read.
    session.execute("SET statement_timeout = 0")
    session.execute("SET idle_in_transaction_session_timeout = 0")
    if session.server_version >= 170000:
        session.execute("SET transaction_timeout = 0")
    session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    if snapshot is not None:
        session.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}")


@contextmanager
def locked_table(
    session: Session, find: Callable[[], RemoteTable | None], end: str = "source"
) -> Iterator[RemoteTable]:
    """Give a table that is locked, and has the rows of the snapshot, until the block ends.

    ``find`` asks the session for the table; None: there is none. ``end``: the server's part in the
    comparison. Raises NotComparable if the table has changed, if another session has locked it, and
    for each error of the server in the block."""
    session.execute("SAVEPOINT verified")
    try:
        remote = find()
        if remote is None:
            raise NotComparable(f"there is no such table at the {end}")
        planned = PlannedTable.of(remote)
        lock_unaltered(session, planned)
        yield remote
        if planned.partitioned:
            # The leaves are locked since they were read.
            check_files(session, planned)
    except SourceChanged as error:
        raise NotComparable(f"the {end} changed meanwhile: {error.message}") from None
    except PublisherError as error:
        if error.sqlstate == _LOCK_NOT_AVAILABLE:
            # PostgreSQL opens all tables of a publication to describe one of them.
            raise NotComparable(
                "another session has locked it, or a table of the same publication, at the"
                f" {end}"
            ) from None
        raise NotComparable(f"the {end} says: {error.message}") from None
    finally:
        # If the connection is lost, the next statement says so. The first error is not hidden.
        with suppress(PublisherError):
            session.execute(
                "ROLLBACK TO SAVEPOINT verified; RELEASE SAVEPOINT verified"
            )
