"""Statements that maintain what tables are made of: VACUUM.

vacuuming  which tables, whose privileges, and what the client is told
"""

from wal2lake.commands.maintenance.vacuuming import vacuum

__all__ = ["vacuum"]
