"""Statements that maintain what tables are made of, and prove it: VACUUM and VERIFY.

vacuuming     which tables, whose privileges, and what the client is told
sourcetables  the tables of a source in a snapshot, each locked while it is compared
states        the state of a subscription at the LSN of a snapshot
verifying     compares tables with their sources at one LSN
"""

from wal2lake.commands.maintenance.vacuuming import vacuum
from wal2lake.commands.maintenance.verifying import FIELDS, verify

__all__ = ["FIELDS", "vacuum", "verify"]
