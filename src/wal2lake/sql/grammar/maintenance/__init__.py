"""The grammar of VACUUM.

vacuuming  the statement and its options
"""

from wal2lake.sql.grammar.maintenance.vacuuming import VacuumTables, vacuum_statement

__all__ = ["VacuumTables", "vacuum_statement"]
