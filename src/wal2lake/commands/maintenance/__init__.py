"""Statements about the tables as a whole: VACUUM, VERIFY, REPAIR and WAIT FOR LSN.

vacuuming       which tables, whose privileges, and what the client is told
comparedsource  a subscription's source: snapshots, and the tables that can be compared
sourcetables    the tables of a source in a snapshot, each locked while it is compared
states          the state of a subscription at the LSN of a snapshot
verifying       compares tables with their sources at one LSN
repairing       reads listed rows at the source, and has them written
waiting         waits until readers see an LSN of the source
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wal2lake.commands.maintenance.repairing import REPAIRED, repair
from wal2lake.commands.maintenance.vacuuming import vacuum
from wal2lake.commands.maintenance.verifying import FIELDS, verify
from wal2lake.commands.maintenance.waiting import STATUS, visible_lsn, wait_for_lsn
from wal2lake.local.node import Caller, EngineParts
from wal2lake.sql.backend import Outcome
from wal2lake.sql.grammar.maintenance import (
    RepairTables,
    VacuumTables,
    VerifyTables,
    WaitForLsn,
)
from wal2lake.wire.frontback import FieldDescription

MaintenanceStatement = VacuumTables | VerifyTables | RepairTables | WaitForLsn

ANSWERS: Final[dict[type, Sequence[FieldDescription]]] = {
    VerifyTables: FIELDS,
    RepairTables: REPAIRED,
    WaitForLsn: STATUS,
}
"""The columns of the statements that return rows."""


def maintain(
    node: EngineParts, caller: Caller, statement: MaintenanceStatement
) -> Outcome:
    """Execute one of the statements."""
    if isinstance(statement, VacuumTables):
        return Outcome(vacuum(node, caller, statement))
    if isinstance(statement, VerifyTables):
        return verify(node, caller, statement)
    if isinstance(statement, RepairTables):
        return repair(node, caller, statement)
    return wait_for_lsn(node, caller, statement)


__all__ = ["ANSWERS", "MaintenanceStatement", "maintain", "visible_lsn"]
