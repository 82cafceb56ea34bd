"""Ending the wait of a slot's creation on an idle server.

CREATE_REPLICATION_SLOT waits for a record of the running transactions, which an idle server
writes every 15 s only. A second connection asks for one, again and again until the creation
is done: the creation may come to wait for more than one of them, and for transactions that
run. A server that answers at once never sees that connection.

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
"""A busy server is done by then."""

_AGAIN_SECONDS: Final = 0.3


class _Done(Exception):
    """The creation is, or somebody does not want it any more."""


@contextmanager
def nudged(
    conninfo: str, application_name: str, *, must_use_password: bool = False
) -> Iterator[None]:
    """While it lasts, a creation of a slot at that server need not wait for long."""
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
        # It may be looking a name up, which nothing ends.
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
        # Not allowed, or no connection left: the server's own record comes.
        return
