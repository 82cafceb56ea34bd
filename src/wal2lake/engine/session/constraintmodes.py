"""SET CONSTRAINTS: whether a transaction checks deferrable keys at once or at its end.

Takes the statement, the session's transaction, and its job. Called by ``lakebackend``. Source:
AfterTriggerSetState() in trigger.c.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from wal2lake.commands.constraints.keyconstraints import deferrable_tables
from wal2lake.local.node import Caller, EngineParts
from wal2lake.local.transaction.local import LocalTransaction
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.constraints import constraint_modes
from wal2lake.sql.query.results import Rendering


def set_constraints(
    node: EngineParts,
    caller: Caller,
    transaction: LocalTransaction,
    sql: str,
    job: AbstractContextManager[str],
    rendering: Rendering,
) -> str:
    """Execute SET CONSTRAINTS; returns its command tag."""
    modes = constraint_modes(sql)
    if not caller.in_block:
        caller.notice(
            Notice(
                "SET CONSTRAINTS can only be used in transaction blocks",
                severity="WARNING",
                sqlstate="25P01",
            )
        )
    tables = deferrable_tables(node, caller, modes)
    if caller.in_block:
        with job as group:
            transaction.set_constraints(
                tables, rendering, group, deferred=modes.deferred
            )
    return "SET CONSTRAINTS"
