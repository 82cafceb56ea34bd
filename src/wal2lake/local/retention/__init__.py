"""Retention: states and files that nobody needs any more go.

Takes: the catalog, the tables' directories, what sessions, batches, capture and the catalog hold.
Gives: fewer files; reports. Owns: the order in which states, files and the log go. Never:
commits to a table, removes a file that a kept version needs.

    holders    what holds which versions and files of a table
    vacuuming  one table: what may go, and its removal
    branchplaces   branches that nobody knows
    worker     all tables, now and then, beside everything else
"""

from wal2lake.local.retention.branchplaces import remove_branch, unknown_branches
from wal2lake.local.retention.holders import TablePlace, places_of
from wal2lake.local.retention.vacuuming import (
    Skipped,
    Vacuum,
    VacuumReport,
    VacuumRequest,
)
from wal2lake.local.retention.worker import RetentionWorker

__all__ = [
    "RetentionWorker",
    "Skipped",
    "TablePlace",
    "Vacuum",
    "VacuumReport",
    "VacuumRequest",
    "places_of",
    "remove_branch",
    "unknown_branches",
]
