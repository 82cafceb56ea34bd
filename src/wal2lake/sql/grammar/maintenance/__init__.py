"""The grammar of VACUUM and VERIFY.

vacuuming  VACUUM and its options
verifying  VERIFY
"""

from wal2lake.sql.grammar.maintenance.vacuuming import VacuumTables, vacuum_statement
from wal2lake.sql.grammar.maintenance.verifying import VerifyTables, verify_statement

__all__ = ["VacuumTables", "VerifyTables", "vacuum_statement", "verify_statement"]
