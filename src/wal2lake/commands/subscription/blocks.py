"""Refuses commands that may not run inside BEGIN ... COMMIT.

A command calls ``outside_block`` where PostgreSQL refuses, because a replication slot cannot be
rolled back. The call comes after PostgreSQL's own checks and before the first effect. Message and
SQLSTATE are PostgreSQL's. All other changes of a command wait for COMMIT
(``transaction.definitions``). ALTER TABLE and commands about roles are refused in a block
altogether (decision 0002).

Several statements in one string are accepted, although PostgreSQL treats them as a block, too: what
earlier statements wrote is committed first (decision 0009).

Source: PreventInTransactionBlock() in xact.c, and its callers in subscriptioncmds.c.
"""

from __future__ import annotations

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.local.node import Caller

_ACTIVE_TRANSACTION = "25001"


def outside_block(caller: Caller, shown: str) -> None:
    """Raise 25001 if the caller is in a block; ``shown``: PostgreSQL's name of the command."""
    if caller.in_block:
        raise UsageError(
            f"{shown} cannot run inside a transaction block",
            sqlstate=_ACTIVE_TRANSACTION,
        )


def block_not_supported(command: str) -> FeatureNotSupportedError:
    """Return the error for a write in a block, which ROLLBACK could not undo."""
    return FeatureNotSupportedError(
        f"{command} inside a transaction block is not supported by this version",
        hint="Run it outside of BEGIN ... COMMIT (autocommit): each statement is a"
        " transaction.",
    )
