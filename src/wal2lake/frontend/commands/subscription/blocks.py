"""What may not run inside BEGIN ... COMMIT.

Every command calls ``outside_block`` once: after PostgreSQL's own checks, before its first effect.
Where PostgreSQL refuses, because a replication slot cannot be rolled back, the words and the
SQLSTATE are its own. The rest it would roll back; this node cannot, and refuses as it does
all other statements that define something (decision 0002).

Several statements in one string are accepted, though PostgreSQL takes them for a block, too: what
was written before is committed first (decision 0009).

Source: PreventInTransactionBlock() in xact.c, and its callers in subscriptioncmds.c.
"""

from __future__ import annotations

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.frontend.commands.node import Caller

_ACTIVE_TRANSACTION = "25001"


def outside_block(caller: Caller, command: str, *, refused_as: str | None) -> None:
    """Raise if the caller is in a block: 25001 if PostgreSQL refuses, with what it calls
    the command, else 0A000."""
    if not caller.in_block:
        return
    if refused_as is not None:
        raise UsageError(
            f"{refused_as} cannot run inside a transaction block",
            sqlstate=_ACTIVE_TRANSACTION,
        )
    raise block_not_supported(command)


def block_not_supported(command: str) -> FeatureNotSupportedError:
    """A write that ROLLBACK could not undo must not begin."""
    return FeatureNotSupportedError(
        f"{command} inside a transaction block is not supported by this version",
        hint="Run it outside of BEGIN ... COMMIT (autocommit): each statement is a"
        " transaction.",
    )
