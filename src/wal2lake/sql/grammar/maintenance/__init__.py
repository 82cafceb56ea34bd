"""The grammar of VACUUM, VERIFY and WAIT FOR LSN.

utilityoptions  the options of such statements
vacuuming       VACUUM and its options
verifying       VERIFY
waiting         WAIT FOR LSN
"""

from wal2lake.sql.grammar.maintenance.vacuuming import VacuumTables, vacuum_statement
from wal2lake.sql.grammar.maintenance.verifying import VerifyTables, verify_statement
from wal2lake.sql.grammar.maintenance.waiting import (
    WaitForLsn,
    WaitMode,
    wait_statement,
)

__all__ = [
    "VacuumTables",
    "VerifyTables",
    "WaitForLsn",
    "WaitMode",
    "vacuum_statement",
    "verify_statement",
    "wait_statement",
]
