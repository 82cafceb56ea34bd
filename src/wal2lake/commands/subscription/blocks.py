"""Refuses commands that may not run inside BEGIN ... COMMIT. COMMIT.

A command calls ``outside_block`` where PostgreSQL refuses, because a replication slot cannot be
rolled back: after PostgreSQL's own checks, before its first effect. The words and the SQLSTATE are
PostgreSQL's. All else that a command changes waits for COMMIT (``transaction.definitions``). DDL of
tables and roles is refused in a block as a whole (decision 0002).

Several statements in one string are accepted, though PostgreSQL takes them for a block, too: what
was written before is committed first (decision 0009).

Source: PreventInTransactionBlock() in xact.c, and its callers in subscriptioncmds.c.
"""

from __future__ import annotations

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.local.node import Caller

_ACTIVE_TRANSACTION = "25001"


def outside_block(caller: Caller, shown: str) -> None:
    """Raise 25001 if the caller is in a block; ``shown``: what PostgreSQL calls the command."""
    if caller.in_block:
        raise UsageError(
            f"{shown} cannot run inside a transaction block",
            sqlstate=_ACTIVE_TRANSACTION,
        )


def block_not_supported(command: str) -> FeatureNotSupportedError:
    """A write that ROLLBACK could not undo must not begin."""
    return FeatureNotSupportedError(
        f"{command} inside a transaction block is not supported by this version",
        hint="Run it outside of BEGIN ... COMMIT (autocommit): each statement is a"
        " transaction.",
    )
