"""Shortens the creation of a slot on an idle server.

CREATE_REPLICATION_SLOT waits for a record of the running transactions, which an idle server
writes every 15 s only. A second connection requests such records repeatedly until the creation
ends, because the creation may wait for several records, and for running transactions. If the
server answers at once, the second connection is not opened.

Source: reference, traps (slot creation on an idle server); PostgreSQL manual 9.28.6
(pg_log_standby_snapshot, since 16).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from wal2lake.errors import PublisherError, UsageError
from wal2lake.pg.connection import connect
from wal2lake.pg.publisher import Publisher

_FIRST_SECONDS: Final = 0.03
"""A busy server creates the slot within this time."""

_AGAIN_SECONDS: Final = 0.3


class _Done(Exception):
    """Raised to end the nudger's waits: the slot's creation has ended."""


@contextmanager
def nudged(
    conninfo: str, application_name: str, *, must_use_password: bool = False
) -> Iterator[None]:
    """Keep the creation of a slot at the server from waiting for a record of 15 s."""
    done = threading.Event()
    nudger = threading.Thread(
        target=_nudge,
        args=(conninfo, application_name, must_use_password, done),
        name="nudge",
        daemon=True,
    )
    nudger.start()
    try:
        yield
    finally:
        done.set()
        # The thread may be in a name lookup, which cannot be interrupted.
        nudger.join(1.0)


def _nudge(
    conninfo: str,
    application_name: str,
    must_use_password: bool,
    done: threading.Event,
) -> None:
    def check() -> None:
        if done.is_set():
            raise _Done

    if done.wait(_FIRST_SECONDS):
        return
    try:
        with connect(
            conninfo,
            application_name=application_name,
            must_use_password=must_use_password,
            check=check,
        ) as session:
            while Publisher(session).log_running_transactions():
                if done.wait(_AGAIN_SECONDS):
                    return
    except _Done:
        return
    except (PublisherError, UsageError):
        # Without permission or a free connection, the creation waits for the server's
        # periodic record.
        return
