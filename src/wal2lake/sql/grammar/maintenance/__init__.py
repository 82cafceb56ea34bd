"""The grammar of VACUUM, VERIFY, REPAIR and WAIT FOR LSN.

utilityoptions  the options of such statements
vacuuming       VACUUM and its options
verifying       VERIFY and REPAIR
waiting         WAIT FOR LSN
"""

from wal2lake.sql.grammar.maintenance.vacuuming import VacuumTables, vacuum_statement
from wal2lake.sql.grammar.maintenance.verifying import (
    RepairTables,
    VerifyTables,
    repair_statement,
    verify_statement,
)
from wal2lake.sql.grammar.maintenance.waiting import (
    WaitForLsn,
    WaitMode,
    wait_statement,
)

__all__ = [
    "RepairTables",
    "VacuumTables",
    "VerifyTables",
    "WaitForLsn",
    "WaitMode",
    "repair_statement",
    "vacuum_statement",
    "verify_statement",
    "wait_statement",
]
